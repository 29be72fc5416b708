// One forward pass: what is asked of it, and what it answers.

import { Errno, Result } from "./errno";
import { failure, success, tokenCount } from "./failure";
import { modelInfo } from "./model";
import { Encoder } from "./msgpack";
import { Sampling } from "./sampling";
import { Ticket } from "./tickets";

/**
 * The options of a `pred`: where a distribution is wanted (`at`), what is wanted of it, and what
 * changes it. Each may be set once. One object may serve many calls, and is encoded once.
 */
export class PredOptions {
  private encoder: Encoder = new Encoder();
  private count: i32 = 0;
  private ready: ArrayBuffer | null = null;
  private logprobs: i32 = 0;

  /** A distribution at each token; without it, at the last. */
  atAll(): PredOptions {
    this.key("at").text("all");
    return this;
  }

  /** Distributions at these indices into the call's tokens, in this order. */
  at(indices: Array<i32>): PredOptions {
    const list = this.key("at").array(indices.length);
    for (let i = 0; i < indices.length; i++) list.integer(indices[i]);
    return this;
  }

  /** Nothing: the tokens are only appended. */
  none(): PredOptions {
    this.key("get").text("none");
    return this;
  }

  /** The most probable token; this is the default. */
  argmax(): PredOptions {
    this.key("get").text("argmax");
    return this;
  }

  /** A token that is chosen as `sampling` says; of that, what ends a text does not matter here. */
  sample(sampling: Sampling): PredOptions {
    this.ready = null;
    this.count += sampling.writeChoice(this.encoder);
    this.logprobs = max(sampling.logprobs, 0);
    return this;
  }

  /** With `top`, `of` and `logits`: the biases, penalty, allowed tokens and constraint of `sampling`. */
  limits(sampling: Sampling): PredOptions {
    this.ready = null;
    this.count += sampling.writeLimits(this.encoder);
    return this;
  }

  /** Bytes of a chosen token and the best ones next to it. */
  get recordBytes(): i32 {
    return 8 * (1 + this.logprobs);
  }

  /** The `count` most probable tokens, best first. */
  top(count: i32): PredOptions {
    this.key("get").map(1).text("top").integer(count);
    return this;
  }

  /** The log-probabilities of these tokens. */
  of(tokens: Array<u32>): PredOptions {
    const list = this.key("get").map(1).text("of").array(tokens.length);
    for (let i = 0; i < tokens.length; i++) list.unsigned(tokens[i]);
    return this;
  }

  /** All logits of the vocabulary. */
  logits(): PredOptions {
    this.key("get").text("logits");
    return this;
  }

  /**
   * The last hidden state after the final norm, `modelInfo().hiddenSize` numbers. It has no
   * distribution: with `limits` it is EINVAL.
   */
  hidden(): PredOptions {
    this.key("get").text("hidden");
    return this;
  }

  /** The tokens are a tree: each one's parent among them, -1 for the file's end. */
  parents(indices: Array<i32>): PredOptions {
    const list = this.key("parents").array(indices.length);
    for (let i = 0; i < indices.length; i++) list.integer(indices[i]);
    return this;
  }

  /** Computes without appending to the file. */
  dropped(): PredOptions {
    this.key("keep").boolean(false);
    return this;
  }

  /** Computes once what several passes of the tenant begin with, also when they come together. */
  shared(): PredOptions {
    this.key("share").boolean(true);
    return this;
  }

  /** Computes with one of the tenant's LoRA adapters, by its name; ENOENT: there is none. */
  adapter(name: string): PredOptions {
    this.key("adapter").text(name);
    return this;
  }

  /** The MessagePack map. */
  bytes(): ArrayBuffer {
    let bytes = this.ready;
    if (bytes === null) {
      bytes = new Encoder().map(this.count).encoded(this.encoder.bytes()).bytes();
      this.ready = bytes;
    }
    return bytes;
  }

  private key(name: string): Encoder {
    this.ready = null;
    this.count++;
    return this.encoder.text(name);
  }
}

/** A token and its log-probability. */
export class Choice {
  constructor(
    readonly token: u32,
    readonly logprob: f32,
    /** The most probable tokens, best first, as many as `logprobs` asked for. */
    readonly best: Array<Choice> = NO_CHOICES,
  ) {}
}

const NO_CHOICES: Array<Choice> = [];

/** The choice in a record of so many bytes. */
export function choiceAt(record: usize, bytes: i32): Choice {
  const token = load<u32>(record);
  const logprob = load<f32>(record, 4);
  if (bytes <= 8) return new Choice(token, logprob);
  const best = new Array<Choice>(0);
  for (let i = 8; i < bytes; i += 8) best.push(choiceAt(record + i, 8));
  return new Choice(token, logprob, best);
}

/** A forward pass in flight; each reader suspends until it is done. */
export class Pred extends Ticket {
  /** Bytes of a place's token and of those next to it. */
  recordBytes: i32 = 8;
  /** How many tokens it was given. */
  given: i32 = 0;

  /** A pass that is done: the result's bytes, or why there are none. */
  static done(payload: ArrayBuffer, why: Errno): Pred {
    const pred = new Pred(0, "KvFile.pred");
    pred.settle(payload, why);
    return pred;
  }

  /** The last place's token: of argmax and sample. */
  choice(): Choice {
    return this.tryChoice().value;
  }

  tryChoice(): Result<Choice> {
    this.wait();
    if (this.errno != Errno.OK) return this.error<Choice>();
    const bytes = this.payload.byteLength;
    const size = this.recordBytes;
    if (bytes < size) return failure<Choice>(Errno.EINVAL, this.call, "the pass asked for no token");
    return success(choiceAt(changetype<usize>(this.payload) + (bytes - size), size));
  }

  /** A token for each place (argmax, sample), or the places' best ones after each other (top). */
  choices(): Array<Choice> {
    return this.tryChoices().value;
  }

  tryChoices(): Result<Array<Choice>> {
    this.wait();
    if (this.errno != Errno.OK) return this.error<Array<Choice>>();
    const size = this.recordBytes;
    const all = new Array<Choice>(0);
    for (let i = 0; i + size <= this.payload.byteLength; i += size) {
      all.push(choiceAt(changetype<usize>(this.payload) + i, size));
    }
    return success(all);
  }

  /** The numbers of `of`, `logits` and `hidden`, place after place. */
  scores(): Float32Array {
    return this.tryScores().value;
  }

  tryScores(): Result<Float32Array> {
    this.wait();
    if (this.errno != Errno.OK) return this.error<Float32Array>();
    return success(Float32Array.wrap(this.payload));
  }

  get call(): string {
    return `${this.name}(${tokenCount(this.given)})`;
  }

  protected get detail(): string {
    return passDetail(this.errno, this.given);
  }
}

/** What is known of a failed pass or generation beyond its errno; "" when nothing is. */
export function passDetail(errno: Errno, given: i32): string {
  if (errno == Errno.EINVAL && given == 0) return "EINVAL, no tokens: give at least one";
  if (errno != Errno.EFBIG) return "";
  return `EFBIG, the text is too long: the model's context is ${modelInfo().maxContext} tokens`;
}
