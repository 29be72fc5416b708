// A text that grows: a KV file, its tokens, what the program appends and what the model replies.

import { Outcome, Result } from "./errno";
import { success } from "./failure";
import { Finish, Generation } from "./generation";
import { KvFile } from "./kv";
import { Chat, detokenize, tokenize } from "./model";
import { Sampling } from "./sampling";
import { Task, Ticket } from "./tickets";

/** How many tokens a session and its forks had computed. */
export class Usage {
  /** Tokens that the program gave. */
  prefilled: i32 = 0;
  /** Tokens that the model chose, those of cancelled replies included. */
  generated: i32 = 0;
}

/**
 * What the model says: it is computed by `text`, `next` or `runTasks`, and at the latest when its
 * session is used again. Replies of several sessions are tasks, which come in one batch.
 */
export class Reply extends Task {
  /** Its tokens, when it has ended: what the session holds of it. */
  tokens: Array<u32> = [];
  /** Whether it has ended. */
  ended: bool = false;
  private readonly generation: Generation;
  private whole: string = "";

  constructor(
    private readonly session: Session,
    sampling: Sampling,
  ) {
    super();
    this.generation = session.generation(sampling);
  }

  /** Why it ended. */
  get finish(): Finish {
    return this.generation.finish;
  }

  /** The log-probability of its tokens. */
  get logprob(): f64 {
    return this.generation.logprob;
  }

  step(): Ticket | null {
    if (this.ended) return null;
    const waiting = this.generation.step();
    if (waiting !== null) return waiting;
    this.ended = true;
    const text = this.generation.tryText();
    if (!text.ok) return null;
    this.whole = text.value;
    this.tokens = this.session.replied(this.generation, this.whole);
    return null;
  }

  /** The text since the last `next`, as it comes; null at the end. */
  next(): string | null {
    const piece = this.generation.next();
    if (piece === null) this.step();
    return piece;
  }

  /** All of the text, without what ended it: runs to the end. */
  text(): string {
    return this.tryText().value;
  }

  tryText(): Result<string> {
    while (this.step() !== null) continue;
    const text = this.generation.tryText();
    return text.ok ? success(this.whole) : text;
  }

  /** Ends it now: the session has what came, and what was computed counts into its `Usage`. */
  cancel(): void {
    if (this.ended) return;
    this.ended = true;
    this.waiting = null;
    this.generation.cancel();
    this.whole = this.generation.text();
    this.tokens = this.session.cancelled(this.generation, this.whole);
  }
}

/**
 * A text that grows at the end of a KV file: the program appends something, the model replies. What is
 * appended is computed with the reply that follows it, so that appending costs no pass. A fork shares
 * what is computed; forks and their origin count into one `Usage`. A session of `chat` is a
 * conversation, of which each reply is a turn.
 */
export class Session {
  private held: Array<u32> = [];
  private computed: i32 = 0; // of these tokens the file has the first
  private open: Reply | null = null; // the last reply
  private turns: Chat | null = null;
  private rendered: bool = true; // `held` has all turns

  /** A new file, and the beginning of its text. */
  constructor(
    text: string = "",
    /** The file. It may lack the last tokens of the text: see `flush`. */
    readonly file: KvFile = KvFile.create(),
    readonly usage: Usage = new Usage(),
  ) {
    if (text.length) this.append(text);
  }

  /** A session that continues a file, such as one opened by name. */
  static of(file: KvFile): Session {
    const session = new Session("", file);
    session.computed = file.length();
    session.held = file.tokens(0, session.computed);
    return session;
  }

  /** A conversation through the model's own chat template: `system`, `user` and `reply` are its turns. */
  static chat(): Session {
    const session = new Session();
    session.turns = new Chat();
    return session;
  }

  /** Adds instructions for the model to a conversation. */
  system(text: string): Session {
    return this.turn("system", text);
  }

  /** Adds a user's message to a conversation. */
  user(text: string): Session {
    return this.turn("user", text);
  }

  /** Adds a message of any role to a conversation, such as an assistant's or a tool's. */
  turn(role: string, text: string): Session {
    this.complete();
    const turns = this.turns;
    if (turns === null) throw new Error("Session.turn: only Session.chat() has turns: use append");
    turns.add(role, text);
    this.rendered = false;
    return this;
  }

  /** The tokens of the whole text. */
  get tokens(): Array<u32> {
    this.complete();
    return this.held;
  }

  /** Adds to the text. */
  append(text: string): void {
    this.appendTokens(tokenize(text));
  }

  /** Adds tokens to the text. */
  appendTokens(tokens: Array<u32>): void {
    if (this.turns !== null) throw new Error("Session.append: Session.chat() has turns: use user");
    this.complete();
    this.held = this.held.concat(tokens);
  }

  /**
   * Makes the text these tokens. What both begin with is not computed again; returns how many tokens
   * that are.
   */
  rewrite(tokens: Array<u32>): i32 {
    this.complete();
    return this.replace(tokens);
  }

  /** Computes the text up to its last token: forks begin with that one. */
  prefill(): void {
    this.tryPrefill().demand();
  }

  tryPrefill(): Outcome {
    this.complete();
    return this.compute(this.held.length - 1);
  }

  /** Computes all of the text, for programs that use the file itself. */
  flush(): void {
    this.tryFlush().demand();
  }

  tryFlush(): Outcome {
    this.complete();
    return this.compute(this.held.length);
  }

  /** A session of its own with the same text. It shares what is computed, so `prefill` first. */
  fork(): Session {
    this.complete();
    const session = new Session("", this.file.fork(), this.usage);
    session.held = this.held.slice();
    session.computed = this.computed;
    const turns = this.turns;
    if (turns !== null) session.turns = turns.copy();
    return session;
  }

  /** So many forks of a text that is computed once. */
  fanOut(count: i32): Array<Session> {
    this.prefill();
    const forks = new Array<Session>(0);
    for (let i = 0; i < count; i++) forks.push(this.fork());
    return forks;
  }

  /** What the model says next. */
  reply(sampling: Sampling = new Sampling()): Reply {
    this.complete();
    const reply = new Reply(this, sampling);
    this.open = reply;
    return reply;
  }

  /** Closes the file. */
  close(): void {
    this.file.close();
  }

  /** The loop behind the text (for `Reply`). */
  generation(sampling: Sampling): Generation {
    this.cut(max(this.held.length - 1, 0)); // a pass needs a token to begin with
    return this.file.generate(this.held.slice(this.computed), sampling);
  }

  /** Takes what was generated into the text; its tokens (for `Reply`). */
  replied(generation: Generation, text: string): Array<u32> {
    const before = this.held.length;
    this.usage.prefilled += before - this.computed;
    this.usage.generated += generation.tokens.length;
    this.held = this.held.concat(generation.tokens);
    this.computed = this.file.length();
    if (generation.finish == Finish.STOP) this.endWith(before, text);
    const turns = this.turns;
    if (turns !== null) turns.add("assistant", text);
    return this.held.slice(before);
  }

  /** Takes what came of a cancelled reply into the text, and counts all of it (for `Reply`). */
  cancelled(generation: Generation, text: string): Array<u32> {
    if (!generation.begun) return [];
    const length = this.file.length();
    const before = this.held.length;
    this.usage.prefilled += min(length, before) - this.computed;
    this.usage.generated += max(length - before, generation.tokens.length);
    this.held = this.held.concat(generation.tokens);
    this.computed = length;
    this.cut(this.held.length);
    const turns = this.turns;
    if (turns !== null) turns.add("assistant", text);
    return generation.tokens;
  }

  /** Ends the last reply, and renders the turns that the text lacks. */
  private complete(): void {
    const open = this.open;
    if (open !== null && !open.ended) open.text();
    this.open = null;
    const turns = this.turns;
    if (turns === null || this.rendered) return;
    this.rendered = true;
    this.replace(turns.tokens());
  }

  private replace(tokens: Array<u32>): i32 {
    let known = 0;
    const most = min(this.computed, tokens.length - 1); // a pass needs a token to look at
    while (known < most && this.held[known] == tokens[known]) known++;
    this.cut(known);
    this.held = tokens.slice();
    return known;
  }

  /** Cuts the tokens from `begin` on to those of a text, whose end may be inside of one. */
  private endWith(begin: i32, text: string): void {
    let end = this.held.length;
    let said = detokenize(this.held.slice(begin));
    while (!text.startsWith(said)) said = detokenize(this.held.slice(begin, --end));
    this.cut(end);
    this.held = this.held.slice(0, end);
    if (text.length > said.length) this.held = this.held.concat(tokenize(text.substring(said.length)));
  }

  private cut(computed: i32): void {
    if (computed >= this.computed) return;
    this.file.truncate(computed);
    this.computed = computed;
  }

  private compute(end: i32): Outcome {
    if (this.computed >= end) return new Outcome();
    const done = this.file.prefill(this.held.slice(this.computed, end)).tryFinish();
    if (!done.ok) return done;
    this.usage.prefilled += end - this.computed;
    this.computed = end;
    return done;
  }
}
