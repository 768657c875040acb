// What a client in TypeScript does with the types of the frames. It is compiled, strictly, and that is its test.

import type {
  Actor,
  ClientFrame,
  Command,
  CommandFrame,
  CommandResult,
  Envelope,
  EventToPublish,
  Filter,
  Hello,
  Outcome,
  Pattern,
  Rejection,
  Rule,
  Run,
  ServerFrame,
  Target,
} from "../../../packages/reflexr-core/schemas/frames.js";

/** What cannot be: the compiler refuses a call if some case was forgotten. */
function never(value: never): never {
  throw new Error(`not known: ${JSON.stringify(value)}`);
}

// --- What a server sends

export function described(frame: ServerFrame): string {
  switch (frame.type) {
    case "welcome":
      return `${frame.workspace_id} is at ${frame.head_seq}${frame.reset ? ", another log than before" : ""}`;
    case "event":
      return line(frame.envelope);
    case "delta":
      return `${frame.delta.run_id} says: ${frame.delta.text}`;
    case "replay_complete":
      return `live after ${frame.up_to_seq}`;
    case "command_result":
      return answer(frame);
    case "error":
      return refusal(frame.rejection);
    default:
      return never(frame);
  }
}

function answer(result: CommandResult): string {
  return result.ok
    ? `${result.command_id}: ${outcome(result.outcome)}`
    : `${result.command_id}: ${refusal(result.rejection)}`;
}

function outcome(outcome: Outcome): string {
  switch (outcome.type) {
    case "published":
      return `${outcome.id} is at ${outcome.seq}${outcome.duplicate ? ", as it was" : ""}`;
    case "published_many":
      return outcome.published.map((one) => one.seq.toFixed()).join(", ");
    case "recorded":
      return `${outcome.id} is at ${outcome.seq}`;
    case "run":
      return state(outcome.run);
    case "rule":
      return `${outcome.rule} is at ${outcome.progress.cursor} of generation ${outcome.progress.generation}`;
    case "rule_version":
      return `${outcome.rule} has version ${outcome.version}`;
    default:
      return never(outcome);
  }
}

function refusal(rejection: Rejection): string {
  switch (rejection.type) {
    case "validation_failed":
      return [rejection.message, ...rejection.errors].join("\n");
    case "depth_exceeded":
      return `${rejection.message} (${rejection.depth} of ${rejection.limit})`;
    case "not_found":
    case "invalid_state":
    case "forbidden":
    case "unsupported_protocol":
      return rejection.message;
    default:
      return never(rejection);
  }
}

function state(run: Run): string {
  const matched: number[] = run.matched;
  const error: string | null | undefined = run.error;
  switch (run.status) {
    case "dead_lettered":
    case "retrying":
      return `${run.id} failed: ${error}`;
    case "paused":
      return `${run.id} asks: ${JSON.stringify(run.waiting?.request)}`;
    case undefined:
    case "pending":
    case "running":
    case "succeeded":
    case "cancelled":
    case "skipped":
      return `${run.id} of ${run.rule}, which matched ${matched.length}`;
    default:
      return never(run.status);
  }
}

function line(envelope: Envelope): string {
  const depth = envelope.causation?.depth ?? 0;
  return `${envelope.seq} ${envelope.ts} ${who(envelope.actor)} ${depth} ${JSON.stringify(envelope.event)}`;
}

function who(actor: Actor): string {
  switch (actor.kind) {
    case "user":
      return actor.name ?? actor.id;
    case "agent":
      return `${actor.name} for ${actor.rule} in ${actor.run_id}`;
    case "external_agent":
      return `${actor.client_id} for ${actor.on_behalf_of ?? "itself"}`;
    case "system":
    case "source":
      return actor.name;
    case "evaluator":
      return `${actor.name} ${actor.version}`;
    default:
      return never(actor);
  }
}

// --- What a client sends

export const hellos: Hello[] = [
  { type: "hello", protocol: "reflexr.v1" },
  { type: "hello", protocol: "reflexr.v1", resume_after_seq: 41, types: ["ops:service.error"] },
  { type: "hello", protocol: "reflexr.v1", from_head: true, types: null },
];

const filters: [Filter, ...Filter[]] = [
  { kind: "on", types: ["ops:service.error"] },
  { kind: "where", field: "severity", op: "ge", value: 7 },
  { kind: "any", of: [{ kind: "predicate", name: "on-call" }] },
  { kind: "not", filter: { kind: "where", field: "service", op: "in", value: ["auth", "mail"] } },
];

const patterns: Record<Pattern["kind"], Pattern> = {
  each: { kind: "each" },
  count: { kind: "count", at_least: 3, within: "PT1M" },
  sequence: { kind: "sequence", steps: [filters[0], { kind: "all", of: filters }], within: "PT1H" },
  absence: { kind: "absence", within: "P1D" },
};

const rule: Rule = {
  name: "ops:error-spike",
  description: "Somebody should look.",
  when: {
    filter: { kind: "all", of: filters },
    dedupe: { key: ["service"], within: "PT5S" },
    pattern: patterns.count,
    throttle: { at_most: 1, per: "PT15M" },
  },
  scope: { fields: ["service"] },
  then: { action: "triage", params: { channel: "#ops", urgent: true } },
  retry: { max_attempts: 3, backoff: "PT1S", multiplier: 1.5, max_backoff: "PT1M" },
  ordering: "none",
  on_dead_letter: "block",
  on_pause: "block",
  start: "beginning",
  timeout: "PT5M",
  enabled: true,
};

const targets: Record<Target["kind"], Target> = {
  run: { kind: "run", run_id: "fir_0123456789abcdef" },
  firing: { kind: "firing", firing_id: "fir_0123456789abcdef" },
  chain: { kind: "chain", correlation_id: "alert-7" },
};

const failed: EventToPublish = { event: { type: "ops:service.error", service: "auth", severity: 8 }, id: "alert-7" };

/** One of each command: the compiler says if one is missing. */
export const commands: { [Type in Command["type"]]: Extract<Command, { type: Type }> } = {
  publish: { type: "publish", ...failed, correlation_id: null },
  publish_many: { type: "publish_many", events: [failed, { event: { type: "ops:checked" } }], correlation_id: "alert-7" },
  give_feedback: { type: "give_feedback", feedback_type: "useful", target: targets.run, value: { score: 1 } },
  retry_run: { type: "retry_run", run_id: "fir_0123456789abcdef" },
  skip_run: { type: "skip_run", run_id: "fir_0123456789abcdef", reason: "it was a drill" },
  cancel_run: { type: "cancel_run", run_id: "fir_0123456789abcdef" },
  resume_run: { type: "resume_run", run_id: "fir_0123456789abcdef", answer: { approved: true }, attempt: 1 },
  replay_rule: { type: "replay_rule", rule: "ops:error-spike", from_seq: 0, mode: "rebuild" },
  install_rule: { type: "install_rule", rule, provenance: { by: "ada" } },
  update_rule: { type: "update_rule", rule, expected_version: 1 },
  archive_rule: { type: "archive_rule", rule: rule.name, expected_version: null, reason: "not needed" },
};

export function framed(command: Command, command_id: string): CommandFrame {
  return { type: "command", command_id, command };
}

export function written(frame: ClientFrame): string {
  return JSON.stringify(frame);
}
