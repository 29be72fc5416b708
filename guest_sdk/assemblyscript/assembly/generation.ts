// A decoding loop for programs that need no other, alone or many at once.

import { Errno, Outcome, Result } from "./errno";
import { success } from "./failure";
import { KvFile } from "./kv";
import { tryDetokenizeBytes } from "./model";
import { Choice } from "./pred";
import { Sampling } from "./sampling";
import { TokenStream } from "./stream";
import { Task, Ticket } from "./tickets";
import { Utf8Decoder } from "./utf8";

/** Why a generation ended. */
export enum Finish {
  /** It has not ended. */
  NOT = 0,
  /** As many tokens as asked for, or as the context has room for. */
  LENGTH = 1,
  /** A stop token or a stop text. */
  STOP = 2,
  /** A call failed: see `tryText`. */
  FAILED = 3,
  /** `cancel`. */
  CANCELLED = 4,
}

/**
 * The text behind a prompt (`KvFile.generate`). As a `Task` it runs next to others under `runTasks`;
 * alone, `next` gives its text piece by piece and `text` all of it. Neither a token that ended it nor
 * the last token is appended to the file. The server looks ahead while the program reads, so until it
 * has ended other calls on its file answer EBUSY.
 */
export class Generation extends Task {
  /** What was generated, without the token that ended it. */
  readonly tokens: Array<u32> = [];
  /** The log-probability of each. */
  readonly logprobs: Array<f32> = [];
  /** Why it has ended. */
  finish: Finish = Finish.NOT;

  private failed: Outcome = new Outcome();
  private readonly maxTokens: i32;
  private readonly endTokens: Array<u32>;
  private readonly stop: Array<string>; // with them the text is looked at after each token
  private stream: TokenStream | null = null;
  private before: i32 = 0; // the file's length, where a stop text may leave something to roll back
  private decoder: Utf8Decoder = new Utf8Decoder();
  private decoded: i32 = 0; // tokens that are in `content`
  private content: string = "";
  private given: i32 = 0; // units of `content` that `next` has given

  constructor(
    /** The file that the tokens are appended to. */
    readonly file: KvFile,
    private readonly prompt: Array<u32>,
    private readonly sampling: Sampling,
  ) {
    super();
    this.maxTokens = sampling.maxTokens;
    this.endTokens = sampling.endTokens();
    this.stop = sampling.exact ? [] : sampling.stop;
    if (sampling.maxTokens == 0) this.finish = Finish.LENGTH;
  }

  /** Whether it has given the server work that it has not cancelled. */
  get begun(): bool {
    return this.stream !== null;
  }

  /** Takes the token that has come; waits for it, outside `runTasks`. */
  step(): Ticket | null {
    if (this.finish != Finish.NOT) return null;
    const stream = this.stream;
    if (stream === null) return this.begin();
    const next = stream.tryNext();
    if (next !== null) {
      this.accept(next);
      if (this.finish == Finish.NOT) return stream;
    } else if (stream.errno != Errno.OK) {
      this.fail(stream.tryFinish());
    } else {
      this.finish = Finish.LENGTH; // the context's
    }
    return null;
  }

  /** The text since the last `next`, never empty and never half a character; null at the end. */
  next(): string | null {
    const piece = this.tryNext();
    if (piece === null) this.failed.demand();
    return piece;
  }

  /** `next`, which is null at a failure, too: see `tryText`. */
  tryNext(): string | null {
    while (true) {
      const text = this.released();
      if (text.length) return text;
      if (this.finish != Finish.NOT) return null;
      this.step(); // waits for the last token, and has the next one computed while this one is read
    }
  }

  /** All of the text: runs to the end. */
  text(): string {
    return this.tryText().value;
  }

  tryText(): Result<string> {
    while (this.step() !== null) continue;
    this.decode();
    const failed = this.failed;
    if (failed.ok) return success(this.content);
    return new Result<string>("", failed.errno, failed.call, failed.detail);
  }

  /** Ends it now. What has come stays; what the server computed behind it is in the file, too. */
  cancel(): void {
    if (this.finish != Finish.NOT) return;
    const stream = this.stream;
    if (stream !== null) stream.cancel();
    this.waiting = null;
    this.finish = Finish.CANCELLED;
  }

  /** The log-probability of all tokens. */
  get logprob(): f64 {
    let sum: f64 = 0;
    for (let i = 0; i < this.logprobs.length; i++) sum += this.logprobs[i];
    return sum;
  }

  private begin(): Ticket | null {
    if (this.stop.length) {
      const before = this.file.tryLength();
      if (!before.ok) return this.fail(before);
      this.before = before.value;
    }
    this.stream = this.file.stream(this.prompt, this.sampling);
    return this.stream;
  }

  /** Ends at a stop text, which the server does not know of: what it computed behind is taken back. */
  private rollBack(stream: TokenStream): void {
    stream.cancel();
    const kept = this.before + this.prompt.length + this.tokens.length - 1;
    const done = this.file.tryTruncate(kept);
    if (!done.ok) this.fail(done);
  }

  private fail(why: Outcome): Ticket | null {
    this.failed = why;
    this.finish = Finish.FAILED;
    return null;
  }

  private accept(choice: Choice): void {
    if (this.endTokens.includes(choice.token)) {
      this.finish = Finish.STOP;
      return;
    }
    this.tokens.push(choice.token);
    this.logprobs.push(choice.logprob);
    if (this.tokens.length == this.maxTokens) this.finish = Finish.LENGTH;
    if (!this.stop.length) return;
    this.decode();
    const stream = this.stream;
    if (this.finish == Finish.STOP && stream !== null) this.rollBack(stream);
  }

  /** Brings `content` up to the tokens, and cuts it at a stop text. */
  private decode(): void {
    if (this.decoded < this.tokens.length) {
      const bytes = tryDetokenizeBytes(this.tokens.slice(this.decoded));
      if (!bytes.ok) {
        this.fail(bytes);
        return;
      }
      this.decoded = this.tokens.length;
      this.content += this.decoder.push(bytes.value);
    }
    if (this.finish != Finish.NOT) this.content += this.decoder.end();
    this.cut();
  }

  private cut(): void {
    let first = this.content.length;
    for (let i = 0; i < this.stop.length; i++) {
      const at = this.content.indexOf(this.stop[i], this.given);
      if (at >= 0 && at < first) first = at;
    }
    if (first == this.content.length) return;
    this.content = this.content.substring(0, first);
    if (this.finish == Finish.NOT || this.finish == Finish.LENGTH) this.finish = Finish.STOP;
  }

  /** What `next` may give: all but an end that may become a stop text. */
  private released(): string {
    this.decode();
    const keep = this.finish == Finish.NOT ? this.heldBack() : 0;
    const text = this.content.substring(this.given, this.content.length - keep);
    this.given += text.length;
    return text;
  }

  private heldBack(): i32 {
    let most = 0;
    for (let i = 0; i < this.stop.length; i++) {
      const stop = this.stop[i];
      for (let n = min(stop.length - 1, this.content.length - this.given); n > most; n--) {
        if (this.content.endsWith(stop.substring(0, n))) most = n;
      }
    }
    return most;
  }
}
