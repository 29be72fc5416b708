// A text that grows: a KV file, its tokens, what is said to it and what the model replies.

import { Errno, check } from "./errno";
import { Finish, Generation } from "./generation";
import { KvFile } from "./kv";
import { detokenize, tokenize } from "./model";
import { Plan } from "./plan";
import { Task, Ticket } from "./tickets";

/** How many tokens a session and its forks had computed. */
export class Usage {
  /** Tokens that the program gave. */
  prefilled: i32 = 0;
  /** Tokens that the model chose. */
  generated: i32 = 0;
}

/** What the model says. A task: replies of several sessions come side by side under `runTasks`. */
export class Reply extends Task {
  /** The text, when it is there: without one that ended it. */
  text: string = "";
  /** Its tokens. */
  tokens: Array<u32> = [];
  private readonly generation: Generation;
  private ended: bool = false;

  constructor(
    private readonly session: Session,
    plan: Plan,
  ) {
    super();
    const generation = session.generation(plan);
    this.generation = generation;
    if (plan.exact) generation.stopTokens = [];
    else generation.stopTexts = plan.stops;
  }

  /** Why it ended. */
  get reason(): Finish {
    return this.generation.reason;
  }

  /** What failed, when something did. */
  get errno(): Errno {
    return this.generation.errno;
  }

  /** The mean log-probability of its tokens; 0 without any. */
  get meanLogprob(): f64 {
    return this.generation.meanLogprob;
  }

  step(): Ticket | null {
    if (this.ended) return null;
    const waiting = this.generation.step();
    if (waiting !== null) return waiting;
    this.ended = true;
    const text = this.generation.text();
    if (!text.ok) return null;
    this.text = text.unwrap();
    this.tokens = this.session.replied(this.generation, this.text);
    return null;
  }

  /** The text so far of a reply that goes on: see `Generation.read`; null at the end. */
  read(): string | null {
    const piece = this.generation.read();
    if (piece === null) this.step();
    return piece;
  }

  /** Runs to the end; whether it went well. */
  finish(): Errno {
    while (this.step() !== null) continue;
    return this.errno;
  }
}

/**
 * A text that grows at the end of a KV file: the program says something, the model replies. What is
 * said is computed with the reply that follows it, so that saying costs no pass. A fork shares what
 * is computed; forks and their origin count into one `Usage`.
 */
export class Session {
  private held: Array<u32> = [];
  private computed: i32 = 0; // of these tokens the file has the first

  /** A new file, and the beginning of its text. A text that cannot be cut into tokens ends the program. */
  constructor(
    text: string = "",
    /** The file. It may lack the last tokens of the text: see `settle`. */
    public file: KvFile = KvFile.create(),
    readonly usage: Usage = new Usage(),
  ) {
    if (text.length) this.say(text);
  }

  /** Goes on after a file that is there, such as one opened by name. */
  static of(file: KvFile): Session {
    const session = new Session("", file);
    session.computed = file.length().unwrap();
    session.held = file.tokens(0, session.computed).unwrap();
    return session;
  }

  /** The tokens of the whole text. */
  get tokens(): Array<u32> {
    return this.held;
  }

  /** Adds to the text. */
  say(text: string): void {
    this.push(tokenize(text).unwrap());
  }

  /** Adds tokens to the text. */
  push(tokens: Array<u32>): void {
    this.held = this.held.concat(tokens);
  }

  /**
   * Makes the text these tokens, as when a conversation is rendered anew. What both begin with is not
   * computed again; how many tokens that are.
   */
  rewrite(tokens: Array<u32>): i32 {
    let known = 0;
    const most = min(this.computed, tokens.length - 1); // a pass needs a token to look at
    while (known < most && this.held[known] == tokens[known]) known++;
    this.cut(known);
    this.held = tokens.slice();
    return known;
  }

  /** Computes what was said, up to the last token: forks begin with that one. */
  settle(): Errno {
    return this.compute(this.held.length - 1);
  }

  /** Computes what was said, all of it. */
  finish(): Errno {
    return this.compute(this.held.length);
  }

  /** A session of its own with the same text. It shares what is computed, so `settle` first. */
  fork(): Session {
    const session = new Session("", this.file.fork(), this.usage);
    session.held = this.held.slice();
    session.computed = this.computed;
    return session;
  }

  /** The reply to what was said, which `runTasks` has come, or `Reply.read` and `finish`. */
  begin(plan: Plan): Reply {
    return new Reply(this, plan);
  }

  /** The whole reply; a failure ends the program with words. */
  reply(plan: Plan): string {
    const reply = this.begin(plan);
    check(reply.finish(), "reply");
    return reply.text;
  }

  /** Closes the file. */
  close(): Errno {
    return this.file.close();
  }

  /** The loop behind what is held (for `Reply`). */
  generation(plan: Plan): Generation {
    this.cut(max(this.held.length - 1, 0)); // a pass needs a token to begin with
    const pending = this.held.slice(this.computed);
    return new Generation(this.file, pending, plan.maxTokens, plan.options());
  }

  /** Takes what was generated into the text; its tokens (for `Reply`). */
  replied(generation: Generation, text: string): Array<u32> {
    const before = this.held.length;
    this.usage.prefilled += before - this.computed;
    this.usage.generated += generation.tokens.length;
    this.held = this.held.concat(generation.tokens);
    this.computed = this.file.length().unwrap();
    if (generation.reason == Finish.STOP) this.endWith(before, text);
    return this.held.slice(before);
  }

  /** Cuts the tokens from `begin` on to those of a text, whose end may be inside of one. */
  private endWith(begin: i32, text: string): void {
    let end = this.held.length;
    let said = detokenize(this.held.slice(begin)).unwrap();
    while (!text.startsWith(said)) said = detokenize(this.held.slice(begin, --end)).unwrap();
    this.cut(end);
    this.held = this.held.slice(0, end);
    if (text.length > said.length) this.say(text.substring(said.length));
  }

  private cut(computed: i32): void {
    if (computed >= this.computed) return;
    check(this.file.truncate(computed), "truncate");
    this.computed = computed;
  }

  private compute(end: i32): Errno {
    if (this.computed >= end) return Errno.OK;
    const errno = this.file.prefill(this.held.slice(this.computed, end)).status();
    if (errno != Errno.OK) return errno;
    this.usage.prefilled += end - this.computed;
    this.computed = end;
    return Errno.OK;
  }
}
