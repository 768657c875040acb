// A stream of `reflexr.v1` that comes back by itself: every event once, in order, whatever happens to the connection.

const PROTOCOL = "reflexr.v1";

/** With these the server says that the same hello would be refused again: no hello, not authenticated, may not. */
const REFUSALS = new Set([4400, 4401, 4403]);

const SHORTEST_WAIT = 250;
const LONGEST_WAIT = 30_000;

export class Stream {
  #url;
  #hear;
  #lastSeq = 0;
  #attempts = 0;
  #commands = new Map();
  #socket;
  #welcome = false;
  #timer;
  #ended = false;

  /**
   * @param server The URL under which the router is, such as `https://example.com/api`.
   * @param workspace The workspace's id.
   * @param token Says who connects. It is in the URL, as a browser's WebSocket can send no header.
   * @param hear What to do: `event(envelope)`, `live(seq)`, `reset()`, `away(code, reason)`, `refused(code, reason)`.
   */
  constructor(server, workspace, token, hear) {
    this.#url = new URL(`${server}/workspaces/${encodeURIComponent(workspace)}/stream`);
    this.#url.protocol = this.#url.protocol.replace("http", "ws");
    this.#url.searchParams.set("token", token);
    this.#hear = hear;
    this.#connect();
  }

  /** Carries out a command, and returns its result; it is asked for again after a disconnect, by the same id. */
  execute(command) {
    const frame = { type: "command", command_id: crypto.randomUUID(), command };
    return new Promise((resolve, reject) => {
      if (this.#ended) {
        reject(new Error("the stream has ended"));
        return;
      }
      this.#commands.set(frame.command_id, { frame, resolve, reject });
      if (this.#welcome) {
        this.#send(frame);
      }
    });
  }

  /** Ends it; of commands that were not answered it is not known whether they were carried out. */
  close() {
    this.#ended = true;
    clearTimeout(this.#timer);
    this.#socket.close();
    for (const { reject } of this.#commands.values()) {
      reject(new Error("the stream ended before the command was answered"));
    }
    this.#commands.clear();
  }

  #connect() {
    this.#socket = new WebSocket(this.#url, PROTOCOL);
    this.#socket.onopen = () => this.#send({ type: "hello", protocol: PROTOCOL, resume_after_seq: this.#lastSeq });
    this.#socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    this.#socket.onclose = ({ code, reason }) => this.#closed(code, reason);
  }

  #receive(frame) {
    switch (frame.type) {
      case "welcome":
        if (frame.reset) {
          this.#lastSeq = 0;
          this.#hear.reset();
        }
        this.#attempts = 0;
        this.#welcome = true;
        for (const { frame } of this.#commands.values()) {
          this.#send(frame);
        }
        break;
      case "event":
        this.#lastSeq = frame.envelope.seq;
        this.#hear.event(frame.envelope);
        break;
      case "replay_complete":
        // With `types` in the hello, more was looked at than was sent.
        this.#lastSeq = Math.max(this.#lastSeq, frame.up_to_seq);
        this.#hear.live(frame.up_to_seq);
        break;
      case "command_result":
        this.#commands.get(frame.command_id)?.resolve(frame);
        this.#commands.delete(frame.command_id);
        break;
      case "error":
        console.error("the server could not read a frame", frame.rejection);
        break;
    }
  }

  #closed(code, reason) {
    this.#welcome = false;
    console.info(`closed with ${code}: ${reason}`);
    if (this.#ended) {
      return;
    }
    if (REFUSALS.has(code)) {
      this.close();
      this.#hear.refused(code, reason);
      return;
    }
    this.#hear.away(code, reason);
    // Not all clients of a server that went away are to come back at the same moment.
    const wait = Math.min(LONGEST_WAIT, SHORTEST_WAIT * 2 ** this.#attempts) * (0.5 + Math.random() / 2);
    this.#attempts += 1;
    this.#timer = setTimeout(() => this.#connect(), wait);
  }

  #send(frame) {
    this.#socket.send(JSON.stringify(frame));
  }
}
