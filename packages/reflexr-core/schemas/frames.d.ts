/**
 * The frames of `reflexr.v1`: a client sends each `ClientFrame`, a server each `ServerFrame`.
 *
 * Generated from frames.schema.json by `python -m scripts.typescript`.
 */

export type Frame = ClientFrame | ServerFrame;
export type ClientFrame = Hello | CommandFrame;
export type Text = string;
export type Place = number;
export type EventType = string;
export type Id = string;
export type Command =
  | Publish
  | PublishMany
  | GiveFeedback
  | RetryRun
  | SkipRun
  | CancelRun
  | ResumeRun
  | ReplayRule
  | InstallRule
  | UpdateRule
  | ArchiveRule;
export type Target = RunTarget | FiringTarget | ChainTarget;
export type Positive = number;
export type AnyRuleName = string;
export type RuleName = string;
export type Filter = On | Where | AllOf | AnyOf | Not | Predicate;
export type FieldPath = string;
export type Operator = "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "in" | "contains" | "matches" | "exists";
export type Window = string;
export type Pattern = Each | Count | Sequence | Absence;
export type Duration = string;
export type ServerFrame = Welcome | EventFrame | DeltaFrame | ReplayComplete | CommandResult | ErrorFrame;
export type Seq = number;
export type UtcDatetime = string;
export type Actor = UserActor | AgentActor | ExternalAgentActor | SystemActor | SourceActor | EvaluatorActor;
export type DeltaKind = "text" | "thinking" | "tool_call" | "tool_result";
export type CommandResult = CommandSucceeded | CommandRejected;
export type Outcome = Published | PublishedMany | Recorded | RunChanged | RuleReplayed | RuleVersion;
export type RunStatus =
  "pending" | "running" | "retrying" | "paused" | "succeeded" | "dead_lettered" | "cancelled" | "skipped";
export type Rejection =
  | NotFoundRejection
  | InvalidStateRejection
  | ValidationFailedRejection
  | ForbiddenRejection
  | DepthExceededRejection
  | UnsupportedProtocolRejection;

/**
 * The first frame of a client: where its stream begins and what it is sent.
 */
export interface Hello {
  type: "hello";
  /**
   * What it speaks: `reflexr.v1`.
   */
  protocol: Text;
  /**
   * The last place it has seen; 0 for everything.
   */
  resume_after_seq?: Place;
  /**
   * Whether it wants only what comes next, and nothing of the past.
   */
  from_head?: boolean;
  /**
   * The event types it is sent; `null` for all.
   */
  types?: [EventType, ...EventType[]] | null;
  /**
   * Whether it is sent the deltas of the runs that are at work, too.
   */
  deltas?: boolean;
}
/**
 * A command, under an id by which a repetition of it is recognised.
 */
export interface CommandFrame {
  type: "command";
  command_id: Id;
  command: Command;
}
/**
 * Appends an event to the log; an `id` that is there already appends nothing.
 */
export interface Publish {
  type: "publish";
  event: EventObject;
  id?: Id | null;
  correlation_id?: Id | null;
}
export interface EventObject {
  type: string;
  [k: string]: unknown;
}
/**
 * Appends events to the log, in order and all or none; those whose `id` is there already append nothing. At most `MAX_BATCH` of them.
 */
export interface PublishMany {
  type: "publish_many";
  /**
   * @maxItems 10000
   */
  events: EventToPublish[];
  correlation_id?: Id | null;
}
/**
 * One event of a `publish_many`, with its `id` if the client chooses it.
 */
export interface EventToPublish {
  event: EventObject;
  id?: Id | null;
}
/**
 * Records a judgement of a run, a firing or a chain.
 */
export interface GiveFeedback {
  type: "give_feedback";
  feedback_type: Id;
  target: Target;
  value: JsonObject;
}
/**
 * The run with this id: one execution of a workflow.
 */
export interface RunTarget {
  kind: "run";
  run_id: Id;
}
/**
 * The firing with this id: whether the rule should have fired.
 */
export interface FiringTarget {
  kind: "firing";
  firing_id: Id;
}
/**
 * The causal chain that started with the event of this id: everything it led to.
 */
export interface ChainTarget {
  kind: "chain";
  correlation_id: Id;
}
export interface JsonObject {
  [k: string]: unknown;
}
/**
 * Queues a run again that was dead-lettered, cancelled or skipped.
 */
export interface RetryRun {
  type: "retry_run";
  run_id: Id;
}
/**
 * Gives up a run, so that it holds back no later run of its scope.
 */
export interface SkipRun {
  type: "skip_run";
  run_id: Id;
  reason?: Text | null;
}
/**
 * Ends a run that has not ended.
 */
export interface CancelRun {
  type: "cancel_run";
  run_id: Id;
  reason?: Text | null;
}
/**
 * Answers a paused run, which then goes on.
 */
export interface ResumeRun {
  type: "resume_run";
  /**
   * The run.
   */
  run_id: Id;
  answer?: unknown;
  /**
   * The attempt whose question it answers, the run's `attempt` when that was read; the command is refused where the run asks another one by now.
   */
  attempt?: Positive | null;
}
/**
 * Evaluates the log again from a place.
 */
export interface ReplayRule {
  type: "replay_rule";
  /**
   * The rule's name.
   */
  rule: AnyRuleName;
  /**
   * The first place to evaluate.
   */
  from_seq: Place;
  /**
   * `rebuild` recomputes the rule's state without firing up to the head; `refire` fires again for the past.
   */
  mode: "rebuild" | "refire";
}
/**
 * Stores a rule in the workspace, as a first version or as the next after it was archived.
 */
export interface InstallRule {
  type: "install_rule";
  rule: Rule;
  provenance?: JsonObject;
}
/**
 * What to watch, how to partition it, and what to run.
 */
export interface Rule {
  /**
   * The qualified name, which identifies the rule in its workspace.
   */
  name: RuleName;
  /**
   * What the rule is for, in prose; agents that it runs read it.
   */
  description?: Text | null;
  /**
   * The condition.
   */
  when: Condition;
  /**
   * The partition; by default the whole workspace.
   */
  scope?: Scope;
  /**
   * The action.
   */
  then: ActionRef;
  /**
   * How often a run is tried.
   */
  retry?: RetryPolicy;
  /**
   * Whether runs of a scope start in firing order (`scope`) or whenever they can (`none`).
   */
  ordering?: "scope" | "none";
  /**
   * Whether later runs of a scope go on after a dead-lettered one, or wait for someone to retry or skip it.
   */
  on_dead_letter?: "continue" | "block";
  /**
   * Whether later runs of a scope go on while one is paused, or wait until it has ended.
   */
  on_pause?: "continue" | "block";
  /**
   * Whether a rule that is new to a workspace begins at the head of its log or at the beginning.
   */
  start?: "now" | "beginning";
  /**
   * How long one attempt may take; `null` for any time.
   */
  timeout?: Window | null;
  /**
   * Whether the rule is evaluated and its runs are started.
   */
  enabled?: boolean;
}
/**
 * When a rule fires: a pipeline of stages, evaluated per scope.
 */
export interface Condition {
  filter: Filter;
  dedupe?: Dedupe | null;
  pattern?: Pattern;
  throttle?: Throttle | null;
}
/**
 * Admits envelopes of these event types.
 */
export interface On {
  kind: "on";
  /**
   * @minItems 1
   */
  types: [EventType, ...EventType[]];
}
/**
 * Admits envelopes whose event's field compares so with the value.
 */
export interface Where {
  kind: "where";
  field: FieldPath;
  op: Operator;
  value: unknown;
}
/**
 * Admits envelopes that every one of these filters admits.
 */
export interface AllOf {
  kind: "all";
  /**
   * @minItems 1
   */
  of: [Filter, ...Filter[]];
}
/**
 * Admits envelopes that at least one of these filters admits.
 */
export interface AnyOf {
  kind: "any";
  /**
   * @minItems 1
   */
  of: [Filter, ...Filter[]];
}
/**
 * Admits envelopes that this filter does not admit.
 */
export interface Not {
  kind: "not";
  filter: Filter;
}
/**
 * Admits envelopes for which the application's function of this name returns true.
 */
export interface Predicate {
  kind: "predicate";
  name: Id;
}
/**
 * Drops an envelope whose key fields equal those of one that passed less than `within` before.
 */
export interface Dedupe {
  /**
   * @minItems 1
   */
  key: [FieldPath, ...FieldPath[]];
  within: Window;
}
/**
 * Fires at every envelope.
 */
export interface Each {
  kind: "each";
}
/**
 * Fires when `at_least` envelopes are inside the window that ends at the latest; the firing consumes them all.
 */
export interface Count {
  kind: "count";
  at_least: Positive;
  within: Window;
}
/**
 * Fires when the steps were matched in order, all inside the window that begins at the first matched envelope. One envelope fills one step. An envelope that does not match the awaited step but the first starts again; any other is ignored.
 */
export interface Sequence {
  kind: "sequence";
  /**
   * @minItems 2
   */
  steps: [Filter, Filter, ...Filter[]];
  within: Window;
}
/**
 * Fires when a scope that was seen stays quiet for the window; then waits for its next envelope.
 */
export interface Absence {
  kind: "absence";
  within: Window;
}
/**
 * Lets at most `at_most` firings of a scope through in any window of `per`.
 */
export interface Throttle {
  at_most: Positive;
  per: Window;
}
/**
 * How a rule is partitioned: state and order are independent for each list of these fields' values. No field is one scope, the whole workspace.
 */
export interface Scope {
  /**
   * @minItems 0
   */
  fields?: FieldPath[];
}
/**
 * What a firing runs: an action by its registered name, with the values of its params model.
 */
export interface ActionRef {
  action: Id;
  params?: {
    [k: string]: unknown;
  };
}
/**
 * How often a run is tried, and how long it waits between attempts.
 */
export interface RetryPolicy {
  /**
   * The attempts of a run before it is dead-lettered; one that paused does not count.
   */
  max_attempts?: Positive;
  /**
   * How long a run waits after its first failed attempt.
   */
  backoff?: Duration;
  /**
   * How much longer after each further one.
   */
  multiplier?: number;
  /**
   * The longest wait.
   */
  max_backoff?: Duration;
}
/**
 * Stores a rule's next version.
 */
export interface UpdateRule {
  type: "update_rule";
  /**
   * The rule as it is to be.
   */
  rule: Rule;
  /**
   * The version it is to follow; the command is refused where another is current.
   */
  expected_version?: Positive | null;
  /**
   * Where the change comes from; opaque to reflexr.
   */
  provenance?: JsonObject;
}
/**
 * Ends a stored rule, with its unfinished runs.
 */
export interface ArchiveRule {
  type: "archive_rule";
  /**
   * The rule's name.
   */
  rule: AnyRuleName;
  /**
   * The version it ends; the command is refused where another is current.
   */
  expected_version?: Positive | null;
  /**
   * Why.
   */
  reason?: Text | null;
}
/**
 * The answer to a hello.
 */
export interface Welcome {
  type: "welcome";
  /**
   * The workspace whose log is streamed.
   */
  workspace_id: Id;
  /**
   * The last place of the log; what comes up to it is the replay.
   */
  head_seq: Seq;
  /**
   * Whether the client was ahead of the log: what it has seen is void, and it is sent everything.
   */
  reset: boolean;
}
/**
 * One envelope of the log.
 */
export interface EventFrame {
  type: "event";
  envelope: Envelope;
}
/**
 * A stored event, which is also its wire shape.
 */
export interface Envelope {
  /**
   * Its gap-free place in the workspace's log, from 1.
   */
  seq: number;
  /**
   * The event's id: publishing the same id again appends nothing.
   */
  id: Id;
  /**
   * When it was appended; the clock that rules use. It never decreases in a log.
   */
  ts: UtcDatetime;
  /**
   * The workspace whose log holds it.
   */
  workspace_id: Id;
  /**
   * Who published it.
   */
  actor: Actor;
  /**
   * The firing and run that emitted it, and the chain's depth; `null` for an event from outside.
   */
  causation?: Causation | null;
  /**
   * The id of the first event of its causal chain.
   */
  correlation_id: Id;
  /**
   * The W3C trace context of the span that published it.
   */
  traceparent?: string | null;
  event: {
    [k: string]: unknown;
  };
}
/**
 * A person.
 */
export interface UserActor {
  kind: "user";
  id: Id;
  name?: Id | null;
}
/**
 * A rule's run: the agent, graph or function that a firing started.
 */
export interface AgentActor {
  kind: "agent";
  rule: AnyRuleName;
  run_id: Id;
  name: Id;
}
/**
 * An agent outside reflexr, such as an MCP client, perhaps on behalf of a person.
 */
export interface ExternalAgentActor {
  kind: "external_agent";
  client_id: Id;
  name?: Id | null;
  on_behalf_of?: Id | null;
}
/**
 * A part of reflexr, such as the reactor or a schedule.
 */
export interface SystemActor {
  kind: "system";
  name: Id;
}
/**
 * A system that publishes events, such as a monitoring service.
 */
export interface SourceActor {
  kind: "source";
  name: Id;
}
/**
 * A judge or a decision model, by name and version.
 */
export interface EvaluatorActor {
  kind: "evaluator";
  name: Id;
  version: Id;
}
/**
 * The firing and the run that led to an event, and how deep its causal chain is by then.
 */
export interface Causation {
  firing_id: Id;
  run_id: Id;
  depth: number;
}
/**
 * A piece of what a run says while it is at work. It has no place in the log, and may be lost. It is sent only to a client whose hello asks for deltas.
 */
export interface DeltaFrame {
  type: "delta";
  delta: Delta;
}
/**
 * A piece of what an attempt of a run says while it is at work. The texts of the same `kind` and `part` of an attempt, in their order, are what it has said there so far.
 */
export interface Delta {
  /**
   * The run.
   */
  run_id: Id;
  /**
   * Its rule.
   */
  rule: AnyRuleName;
  /**
   * The attempt, from 1; the next one begins anew.
   */
  attempt: number;
  /**
   * The delta's place in its attempt, from 1. Where one is missing in between, it was lost.
   */
  number: number;
  /**
   * What it is a piece of: a text, the thinking before it, the JSON of the arguments with which a tool is called, or the beginning of what a tool returned.
   */
  kind: DeltaKind;
  /**
   * Which part of what is said it belongs to, from 0. A tool's result belongs to the part that called it.
   */
  part: number;
  /**
   * The piece, perhaps empty; at most 1,000 characters.
   */
  text: Text;
  /**
   * The tool that is called; `null` where there is none.
   */
  tool?: Text | null;
  /**
   * How many deltas its reader was not given right before it, as it was too far behind.
   */
  lost?: number;
}
/**
 * Everything up to this place was sent; what follows is live.
 */
export interface ReplayComplete {
  type: "replay_complete";
  up_to_seq: Seq;
}
/**
 * What came of a command that was carried out.
 */
export interface CommandSucceeded {
  type: "command_result";
  command_id: Id;
  ok: true;
  outcome: Outcome;
}
/**
 * An event is in the log.
 */
export interface Published {
  type: "published";
  /**
   * Its place.
   */
  seq: Seq;
  /**
   * Its id.
   */
  id: Id;
  /**
   * Whether it was there already, so that nothing was appended.
   */
  duplicate: boolean;
}
/**
 * Events are in the log, each as its `published` has it, in the order in which they were given.
 */
export interface PublishedMany {
  type: "published_many";
  published: Published[];
}
/**
 * Feedback is in the log.
 */
export interface Recorded {
  type: "recorded";
  /**
   * The place of its fact.
   */
  seq: Seq;
  /**
   * The id of its fact.
   */
  id: Id;
}
/**
 * A run was retried, skipped or cancelled: this is what it is now.
 */
export interface RunChanged {
  type: "run";
  run: Run;
}
/**
 * One firing's execution, over all its attempts.
 */
export interface Run {
  /**
   * The firing's id, its own in the workspace: a run elsewhere may have the same.
   */
  id: Id;
  /**
   * The rule that fired.
   */
  rule: AnyRuleName;
  /**
   * The rule's generation when it fired.
   */
  generation: number;
  /**
   * The scope's fields and their values; empty for the whole workspace.
   */
  scope: {
    [k: string]: unknown;
  };
  /**
   * The canonical JSON of the list of those values.
   */
  scope_key: string;
  /**
   * The place of the envelope at which the rule fired.
   */
  fired_seq: Seq;
  /**
   * That envelope's time.
   */
  fired_at: UtcDatetime;
  /**
   * The places of the envelopes that the firing matched, in order.
   */
  matched: Seq[];
  /**
   * The causal chain that the run continues.
   */
  correlation_id: Id;
  /**
   * How deep in that chain the run's events are, from 1.
   */
  depth: number;
  /**
   * Where it is in its lifecycle.
   */
  status?: RunStatus;
  /**
   * How many attempts have begun. It only grows, so it fences each attempt's outcome.
   */
  attempt?: number;
  /**
   * How often it was retried after it had ended.
   */
  requeues?: number;
  /**
   * How many of its attempts its retry policy does not count: those before it was last retried, and those that paused.
   */
  spent?: number;
  /**
   * When a retrying run may start; `null` in every other status.
   */
  next_attempt_at?: UtcDatetime | null;
  /**
   * What its latest failed attempt said; `null` if none failed since it was last retried, or it succeeded.
   */
  error?: string | null;
  /**
   * A stable code or a person's words for that failure, the cancellation or the skip.
   */
  reason?: string | null;
  output?: unknown;
  checkpoint?: unknown;
  /**
   * How often its action saved.
   */
  checkpoints?: number;
  /**
   * The step after which it last saved.
   */
  step?: string | null;
  /**
   * What it waits for; `null` in every status but `paused`.
   */
  waiting?: Waiting | null;
  /**
   * What it was told when it last paused; `null` once its action has saved again, as then that is known, or the run was cancelled or skipped.
   */
  answer?: Answer | null;
  /**
   * The trace of each traced attempt, the latest last: of the latest `MAX_TRACES`.
   */
  trace_ids?: string[];
  /**
   * When its latest attempt began.
   */
  started_at?: UtcDatetime | null;
  /**
   * When it ended; `null` while it is to run.
   */
  finished_at?: UtcDatetime | null;
}
/**
 * What a paused run waits for.
 */
export interface Waiting {
  request: unknown;
  /**
   * When it paused.
   */
  since: UtcDatetime;
  /**
   * When it fails if nobody has answered; `null` if it waits for any time.
   */
  until?: UtcDatetime | null;
  /**
   * Whether it keeps its place in the order of its scope meanwhile, as its rule said when it paused.
   */
  blocks?: boolean;
}
/**
 * What a paused run was told.
 */
export interface Answer {
  value: unknown;
  /**
   * Who gave it.
   */
  actor: Actor;
  /**
   * When.
   */
  at: UtcDatetime;
}
/**
 * A rule evaluates the log again, from this progress on.
 */
export interface RuleReplayed {
  type: "rule";
  rule: AnyRuleName;
  progress: RuleProgress;
}
/**
 * How far a rule has evaluated a workspace's log.
 */
export interface RuleProgress {
  /**
   * The rule's name.
   */
  rule: string;
  /**
   * Counted from 1; a reset starts the next. Firings of different generations have different ids.
   */
  generation: number;
  /**
   * The place of the last envelope that was evaluated; 0 before the first.
   */
  cursor: number;
  /**
   * The hash of the condition and scope it evaluated with.
   */
  definition: string;
  /**
   * The last place up to which no firing is recorded, in a rebuild; else 0.
   */
  silent_through?: number;
}
/**
 * A stored rule was installed, updated or archived.
 */
export interface RuleVersion {
  type: "rule_version";
  /**
   * Its name.
   */
  rule: AnyRuleName;
  /**
   * The version that is current now.
   */
  version: number;
  /**
   * The place of the version's fact.
   */
  seq: Seq;
  /**
   * Whether it was so already, so that nothing was changed.
   */
  duplicate: boolean;
}
/**
 * Why a command was refused.
 */
export interface CommandRejected {
  type: "command_result";
  command_id: Id;
  ok: false;
  rejection: Rejection;
}
/**
 * What the request names does not exist.
 */
export interface NotFoundRejection {
  type: "not_found";
  message: string;
}
/**
 * What the request names is in no state for it.
 */
export interface InvalidStateRejection {
  type: "invalid_state";
  message: string;
}
/**
 * The request, or something in it, is not what it has to be; `errors` has one text for each problem.
 */
export interface ValidationFailedRejection {
  type: "validation_failed";
  message: string;
  errors: string[];
}
/**
 * The actor may not do this.
 */
export interface ForbiddenRejection {
  type: "forbidden";
  message: string;
}
/**
 * The event would be `depth` deep in its causal chain, past the workspace's `limit`.
 */
export interface DepthExceededRejection {
  type: "depth_exceeded";
  message: string;
  depth: number;
  limit: number;
}
/**
 * The client speaks a protocol that the server does not.
 */
export interface UnsupportedProtocolRejection {
  type: "unsupported_protocol";
  message: string;
}
/**
 * Why a frame could not be read; the connection stays.
 */
export interface ErrorFrame {
  type: "error";
  rejection: Rejection;
}
