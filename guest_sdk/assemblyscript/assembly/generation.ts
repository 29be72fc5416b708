// A decoding loop for programs that need no other, alone or many side by side.

import { Errno, Result, failure, success } from "./errno";
import { KvFile } from "./kv";
import { detokenizeBytes, modelInfo } from "./model";
import { Choice, PredOptions } from "./pred";
import { TokenStream } from "./stream";
import { Task, Ticket } from "./tickets";
import { Utf8Decoder } from "./utf8";

/** Why a generation ended. */
export enum Finish {
  /** It goes on. */
  NOT = 0,
  /** As many tokens as asked for. */
  LENGTH = 1,
  /** A stop token or a stop text. */
  STOP = 2,
  /** A call failed: see `errno`. */
  FAILED = 3,
}

/**
 * Tokens after a prompt. As a `Task` it runs beside others under `runTasks`; alone, `read` gives its
 * text piece by piece and `finish` runs it to its end. Stop tokens are the model's own unless others
 * are set; neither they nor the last token are appended to the file. The server runs ahead while the
 * program looks at what came, so until it has ended other calls on its file answer EBUSY.
 */
export class Generation extends Task {
  /** What was generated, without stop tokens. */
  readonly tokens: Array<u32> = [];
  /** The log-probability of each. */
  readonly logprobs: Array<f32> = [];
  /** Why it has ended. */
  reason: Finish = Finish.NOT;
  /** What failed, when something did. */
  errno: Errno = Errno.OK;
  /** Tokens that end it. */
  stopTokens: Array<u32> = modelInfo().eos;
  /** Texts that end it; they are cut off. With them the text is looked at after each token. */
  stopTexts: Array<string> = [];
  /** How many tokens the server may compute before they are looked at; -1: its default, 8. */
  ahead: i32 = -1;

  private stream: TokenStream | null = null;
  private before: i32 = 0; // the file's length, where a stop text may leave something to roll back
  private decoder: Utf8Decoder = new Utf8Decoder();
  private decoded: i32 = 0; // tokens that are in `content`
  private content: string = "";
  private given: i32 = 0; // units of `content` that `read` has given

  constructor(
    /** The file that the tokens are appended to. */
    readonly file: KvFile,
    private readonly prompt: Array<u32>,
    /** How many tokens at most. */
    readonly maxTokens: i32,
    private readonly options: PredOptions = new PredOptions(),
  ) {
    super();
    if (maxTokens < 1) this.reason = Finish.LENGTH;
  }

  /** Takes the token that has come; waits for it, outside `runTasks`. */
  step(): Ticket | null {
    if (this.reason != Finish.NOT) return null;
    const stream = this.stream;
    if (stream === null) return this.begin();
    const next = stream.next();
    if (next !== null) {
      this.accept(next);
      if (this.reason == Finish.NOT) return stream;
    } else if (stream.errno != Errno.OK) {
      this.failed(stream.errno);
    } else {
      this.reason = Finish.LENGTH; // the context's
    }
    return null;
  }

  /** The text since the last `read`, never empty and never half a character; null at the end. */
  read(): string | null {
    while (true) {
      const text = this.released();
      if (text.length) return text;
      if (this.reason != Finish.NOT) return null;
      this.step(); // waits for the last token, and has the next one computed while this one is read
    }
  }

  /** Runs to the end; whether it went well. */
  finish(): Errno {
    while (this.step() !== null) continue;
    return this.errno;
  }

  /** All text so far. */
  text(): Result<string> {
    this.decode();
    return this.errno == Errno.OK ? success(this.content) : failure<string>(this.errno, "generation");
  }

  /** The mean log-probability of the tokens; 0 without any. */
  get meanLogprob(): f64 {
    let sum: f64 = 0;
    for (let i = 0; i < this.logprobs.length; i++) sum += this.logprobs[i];
    return this.logprobs.length ? sum / this.logprobs.length : 0;
  }

  private begin(): Ticket | null {
    if (this.stopTexts.length) {
      const before = this.file.length();
      if (!before.ok) return this.failed(before.errno);
      this.before = before.unwrap();
    }
    const stops = this.stopTokens;
    this.stream = this.file.generate(this.prompt, this.maxTokens, stops, this.options, this.ahead);
    return this.stream;
  }

  /** Ends at a stop text, which the server does not know of: what it computed behind goes. */
  private rollBack(stream: TokenStream): void {
    stream.cancel();
    const kept = this.before + this.prompt.length + this.tokens.length - 1;
    const errno = this.file.truncate(kept);
    if (errno != Errno.OK) this.failed(errno);
  }

  private failed(errno: Errno): Ticket | null {
    this.errno = errno;
    this.reason = Finish.FAILED;
    return null;
  }

  private accept(choice: Choice): void {
    if (this.stopTokens.includes(choice.token)) {
      this.reason = Finish.STOP;
      return;
    }
    this.tokens.push(choice.token);
    this.logprobs.push(choice.logprob);
    if (this.tokens.length >= this.maxTokens) this.reason = Finish.LENGTH;
    if (!this.stopTexts.length) return;
    this.decode();
    const stream = this.stream;
    if (this.reason == Finish.STOP && stream !== null) this.rollBack(stream);
  }

  /** Brings `content` up to the tokens, and cuts it at a stop text. */
  private decode(): void {
    if (this.decoded < this.tokens.length) {
      const bytes = detokenizeBytes(this.tokens.slice(this.decoded));
      if (!bytes.ok) {
        this.failed(bytes.errno);
        return;
      }
      this.decoded = this.tokens.length;
      this.content += this.decoder.push(bytes.unwrap());
    }
    if (this.reason != Finish.NOT) this.content += this.decoder.end();
    this.cut();
  }

  private cut(): void {
    let first = this.content.length;
    for (let i = 0; i < this.stopTexts.length; i++) {
      const at = this.content.indexOf(this.stopTexts[i], this.given);
      if (at >= 0 && at < first) first = at;
    }
    if (first == this.content.length) return;
    this.content = this.content.substring(0, first);
    if (this.reason == Finish.NOT || this.reason == Finish.LENGTH) this.reason = Finish.STOP;
  }

  /** What `read` may give: all but an end that may become a stop text. */
  private released(): string {
    this.decode();
    const keep = this.reason == Finish.NOT ? this.heldBack() : 0;
    const text = this.content.substring(this.given, this.content.length - keep);
    this.given += text.length;
    return text;
  }

  private heldBack(): i32 {
    let most = 0;
    for (let i = 0; i < this.stopTexts.length; i++) {
      const stop = this.stopTexts[i];
      for (let n = min(stop.length - 1, this.content.length - this.given); n > most; n--) {
        if (this.content.endsWith(stop.substring(0, n))) most = n;
      }
    }
    return most;
  }
}
