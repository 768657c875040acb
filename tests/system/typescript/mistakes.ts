// What the types of the frames do not let a client write: each line that is marked is refused, and no other.

import type { Command, CommandResult, Hello, Rule, ServerFrame } from "../../../packages/reflexr-core/schemas/frames.js";

export const misspelt: Command = { type: "retry_run", run: "fir_0123456789abcdef" }; // refused
export const unknown_field: Command = { type: "retry_run", run_id: "fir_0123456789abcdef", reason: "again" }; // refused
export const missing_field: Command = { type: "replay_rule", rule: "ops:error-spike", from_seq: 0 }; // refused
export const unknown_mode: Command = { type: "replay_rule", rule: "ops:a", from_seq: 0, mode: "again" }; // refused
export const unknown_command: Command = { type: "delete_run", run_id: "fir_0123456789abcdef" }; // refused
export const event_without_type: Command = { type: "publish", event: { service: "auth" } }; // refused
export const no_types: Hello = { type: "hello", protocol: "reflexr.v1", types: [] }; // refused
export const no_action: Rule = { name: "ops:a", when: { filter: { kind: "on", types: ["ops:b"] } } }; // refused

export function outcomeOfAny(result: CommandResult): string {
  return result.outcome.type; // refused
}

export function envelopeOfAny(frame: ServerFrame): number {
  return frame.envelope.seq; // refused
}

export function misread(frame: ServerFrame): number {
  return frame.type === "event" ? frame.envelope.sequence : 0; // refused
}

export function forgetful(result: CommandResult): string {
  if (result.ok) {
    return result.outcome.type;
  }
  const forgotten: never = result; // refused
  return forgotten;
}

export function right(frame: ServerFrame): number {
  return frame.type === "event" ? frame.envelope.seq : 0;
}
