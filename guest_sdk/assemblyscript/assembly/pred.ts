// One forward pass: what is asked of it, and what it answers.

import { Constraint } from "./constraint";
import { Errno, Result, failure, success } from "./errno";
import { Encoder } from "./msgpack";
import { Ticket } from "./tickets";

/** How a token is drawn. What is not set keeps the host's default. */
export class Sampling {
  private encoder: Encoder = new Encoder();
  private count: i32 = 0;

  /** 0 is greedy, 1 (the default) the model's own distribution. */
  withTemperature(value: f64): Sampling {
    this.key("temperature").float(value);
    return this;
  }

  /** Only the `count` most probable tokens. */
  withTopK(count: i32): Sampling {
    this.key("top_k").integer(count);
    return this;
  }

  /** Only the most probable tokens that together reach `share`. */
  withTopP(share: f64): Sampling {
    this.key("top_p").float(share);
    return this;
  }

  /** Only tokens at least `share` as probable as the most probable one. */
  withMinP(share: f64): Sampling {
    this.key("min_p").float(share);
    return this;
  }

  /** The same seed gives the same tokens, whatever else the server computes. */
  withSeed(seed: u64): Sampling {
    this.key("seed").unsigned(seed);
    return this;
  }

  /** The MessagePack map. */
  encoded(): ArrayBuffer {
    return new Encoder().map(this.count).encoded(this.encoder.bytes()).bytes();
  }

  private key(name: string): Encoder {
    this.count++;
    return this.encoder.text(name);
  }
}

/**
 * The options of a `pred`: where a distribution is wanted (`at`), what is to be had of it (`get`) and
 * what changes it. Each may be set once. One object may serve many calls, and is encoded once.
 */
export class PredOptions {
  private encoder: Encoder = new Encoder();
  private count: i32 = 0;
  private ready: ArrayBuffer | null = null;
  private biases: Encoder = new Encoder();
  private biased: i32 = 0;
  private beside: i32 = 0;

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

  /** A token drawn as `sampling` says. */
  sample(sampling: Sampling): PredOptions {
    this.key("get").map(1).text("sample").encoded(sampling.encoded());
    return this;
  }

  /** With `argmax` and `sample`: the `count` most probable tokens, at most 20, in `Choice.best`. */
  logprobs(count: i32): PredOptions {
    this.key("logprobs").integer(count);
    this.beside = count;
    return this;
  }

  /** Bytes of a chosen token and the best ones beside it. */
  get recordBytes(): i32 {
    return 8 * (1 + max(this.beside, 0));
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

  /** Adds `value` to a token's logit. */
  bias(token: u32, value: f32): PredOptions {
    this.ready = null;
    this.biases.unsigned(token).float(value);
    this.biased++;
    return this;
  }

  /** Adds `value` to the logits of all tokens whose bit is set: bit t % 8 of byte t / 8. */
  biasMask(mask: ArrayBuffer, value: f32): PredOptions {
    this.key("bias_mask").map(2).text("mask").binary(mask).text("value").float(value);
    return this;
  }

  /** Allows these tokens of a vocabulary and no others. */
  allow(tokens: Array<u32>, vocabSize: i32): PredOptions {
    const mask = new ArrayBuffer((vocabSize + 7) >> 3);
    const start = changetype<usize>(mask);
    for (let i = 0; i < tokens.length; i++) {
      if (tokens[i] >= (vocabSize as u32)) throw new Error("allow: a token past the vocabulary");
      const at = start + (tokens[i] >> 3);
      const bit: u32 = 1 << (tokens[i] & 7);
      store<u8>(at, load<u8>(at) | (bit as u8));
    }
    return this.allowMask(mask);
  }

  /** Allows the tokens whose bit is set: bit t % 8 of byte t / 8. */
  allowMask(mask: ArrayBuffer): PredOptions {
    this.key("allow").binary(mask);
    return this;
  }

  /**
   * Allows only tokens that go on with a text of the constraint's. The text begins behind the first
   * call on the file that has the constraint; a generation ends with it.
   */
  constraint(constraint: Constraint): PredOptions {
    this.key("constraint").integer(constraint.handle);
    return this;
  }

  /** With a constraint: its text begins with this entry of the file, from now on. */
  since(entry: i32): PredOptions {
    this.key("since").integer(entry);
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

  /** The MessagePack map. */
  bytes(): ArrayBuffer {
    let bytes = this.ready;
    if (bytes === null) {
      const biased = this.biased;
      const all = new Encoder().map(this.count + (biased ? 1 : 0)).encoded(this.encoder.bytes());
      if (biased) all.text("bias").map(biased).encoded(this.biases.bytes());
      bytes = all.bytes();
      this.ready = bytes;
    }
    return bytes;
  }

  /** The map with the options that only a generation has: see `KvFile.generate`. */
  bytesOfGeneration(max: i32, stop: Array<u32>, ahead: i32, lot: i32 = 1): ArrayBuffer {
    const own = new Encoder();
    let count = this.count + (this.biased ? 1 : 0);
    if (max >= 0) {
      own.text("max").integer(max);
      count++;
    }
    if (stop.length) {
      own.text("stop").array(stop.length);
      for (let i = 0; i < stop.length; i++) own.unsigned(stop[i]);
      count++;
    }
    if (ahead >= 0) {
      own.text("ahead").integer(ahead);
      count++;
    }
    if (lot != 1) {
      own.text("lot").integer(lot);
      count++;
    }
    const all = new Encoder().map(count).encoded(this.encoder.bytes()).encoded(own.bytes());
    if (this.biased) all.text("bias").map(this.biased).encoded(this.biases.bytes());
    return all.bytes();
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
    /** The most probable tokens beside it, best first, as many as `logprobs` asked for. */
    readonly best: Array<Choice> = NONE_BESIDE,
  ) {}
}

const NONE_BESIDE: Array<Choice> = [];

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
  /** Bytes of a place's token and of those beside it. */
  recordBytes: i32 = 8;

  /** A pass that is done: the result's bytes, or why there are none. */
  static done(payload: ArrayBuffer, why: Errno): Pred {
    const pred = new Pred(0, "pred");
    pred.settle(payload, why);
    return pred;
  }

  /** The last place's token: of argmax and sample, where one place was asked for. */
  choice(): Result<Choice> {
    if (this.status() != Errno.OK) return this.error<Choice>();
    const bytes = this.payload.byteLength;
    const size = this.recordBytes;
    if (bytes < size) return failure<Choice>(Errno.EINVAL, "pred: no token was asked for");
    return success(choiceAt(changetype<usize>(this.payload) + (bytes - size), size));
  }

  /** A token for each place (argmax, sample), or the places' best ones after each other (top). */
  choices(): Result<Array<Choice>> {
    if (this.status() != Errno.OK) return this.error<Array<Choice>>();
    const size = this.recordBytes;
    const all = new Array<Choice>(0);
    for (let i = 0; i + size <= this.payload.byteLength; i += size) {
      all.push(choiceAt(changetype<usize>(this.payload) + i, size));
    }
    return success(all);
  }

  /** The numbers of `of` and of `logits`, place after place. */
  scores(): Result<Float32Array> {
    if (this.status() != Errno.OK) return this.error<Float32Array>();
    return success(Float32Array.wrap(this.payload));
  }
}
