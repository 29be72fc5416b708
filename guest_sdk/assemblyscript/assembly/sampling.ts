// How a text is generated: how its tokens are chosen and where it ends.

import { Constraint } from "./constraint";
import { Json } from "./json";
import { modelInfo } from "./model";
import { Encoder } from "./msgpack";

/**
 * The options of a generation, for `Session.reply`, `KvFile.generate`, `KvFile.stream` and
 * `PredOptions.sample` alike. An object literal does: `{ maxTokens: 64, temperature: 0.8 }`. The
 * defaults choose the best token each time, until the model ends the text.
 */
export class Sampling {
  /** At most so many tokens; -1: as many as the model's context has room for. */
  maxTokens: i32 = -1;
  /** 0 or less: the best token each time; 1: the model's own distribution. */
  temperature: f64 = 0;
  /** Only the most probable tokens that together reach this share. */
  topP: f64 = 1;
  /** Only so many of the most probable tokens; 0: all. */
  topK: i32 = 0;
  /** Only tokens at least this share as probable as the most probable one. */
  minP: f64 = 0;
  /** The same seed gives the same tokens in any batch; -1: the server draws one. */
  seed: i64 = -1;
  /** Texts that end it, and are no part of it. */
  stop: Array<string> = [];
  /** Tokens that end it besides the model's own. */
  stopTokenIds: Array<u32> = [];
  /** Nothing but `maxTokens` ends it. For measurements, where lengths have to be equal. */
  exact: bool = false;
  /** So many of the most probable tokens, at most 20, in each `Choice.best`. */
  logprobs: i32 = 0;
  /** What is added to the logits of single tokens. */
  logitBias: Array<TokenBias> = [];
  /** What is added to the logits of a set of tokens. */
  biasMask: BiasMask | null = null;
  /** A penalty for a set of tokens, such as those of the text so far. */
  repetitionPenalty: RepetitionPenalty | null = null;
  /** No other token is chosen. */
  allowedTokens: TokenSet | null = null;
  /** The text is an instance of a schema, or matches a regular expression or a grammar. */
  constraint: Constraint | null = null;
  /** The constraint's text begins with this entry of the file; -1: behind its first use. */
  constraintSince: i32 = -1;
  /** What the prompts of several generations of the tenant begin with is computed once. */
  share: bool = false;
  /** One of the tenant's LoRA adapters, by its name; "": none. */
  adapter: string = "";
  /** How many tokens the server may compute before the program has taken them; -1: its default, 8. */
  lookahead: i32 = -1;
  /** A waiting program is woken once so many tokens are there, or the last one. */
  chunk: i32 = 1;

  /**
   * What a run's input asks for: `temperature`, `top_p`, `top_k`, `min_p`, `seed`, `stop` (texts) and
   * `ignore_eos` (`exact`); and under the name `tokens` how many tokens at most, or `count` of them.
   */
  static from(input: Json, tokens: string, count: i32): Sampling {
    const sampling = new Sampling();
    sampling.maxTokens = input.integerOr(tokens, count) as i32;
    sampling.temperature = input.numberOr("temperature", 0);
    sampling.topP = input.numberOr("top_p", 1);
    sampling.topK = input.integerOr("top_k", 0) as i32;
    sampling.minP = input.numberOr("min_p", 0);
    sampling.seed = input.integerOr("seed", -1);
    sampling.stop = input.stringsOr("stop", []);
    sampling.exact = input.booleanOr("ignore_eos", false);
    return sampling;
  }

  /** A copy, for options that differ in a member or two. */
  copy(): Sampling {
    const copy = new Sampling();
    copy.maxTokens = this.maxTokens;
    copy.temperature = this.temperature;
    copy.topP = this.topP;
    copy.topK = this.topK;
    copy.minP = this.minP;
    copy.seed = this.seed;
    copy.stop = this.stop.slice();
    copy.stopTokenIds = this.stopTokenIds.slice();
    copy.exact = this.exact;
    copy.logprobs = this.logprobs;
    copy.logitBias = this.logitBias;
    copy.biasMask = this.biasMask;
    copy.repetitionPenalty = this.repetitionPenalty;
    copy.allowedTokens = this.allowedTokens;
    copy.constraint = this.constraint;
    copy.constraintSince = this.constraintSince;
    copy.share = this.share;
    copy.adapter = this.adapter;
    copy.lookahead = this.lookahead;
    copy.chunk = this.chunk;
    return copy;
  }

  /** The same for one of several branches: where there is a seed, each number gives another. */
  branch(number: i32): Sampling {
    const branch = this.copy();
    // The golden ratio's odd multiple keeps neighbours' seeds far apart.
    if (this.seed != -1) branch.seed += (number + 1) * (0x9e3779b97f4a7c15 as i64);
    return branch;
  }

  /** All tokens that end it. */
  endTokens(): Array<u32> {
    return this.exact ? [] : modelInfo().eos.concat(this.stopTokenIds);
  }

  /** Writes how a token is chosen, as a pass has it; how many pairs that were. */
  writeChoice(out: Encoder): i32 {
    out.text("get");
    if (this.temperature <= 0) {
      out.text("argmax");
    } else {
      const seeded = this.seed != -1;
      out.map(1).text("sample").map(seeded ? 5 : 4).text("temperature").float(this.temperature);
      out.text("top_p").float(this.topP).text("top_k").integer(this.topK);
      out.text("min_p").float(this.minP);
      if (seeded) out.text("seed").unsigned(this.seed as u64);
    }
    if (this.logprobs > 0) out.text("logprobs").integer(this.logprobs);
    return (this.logprobs > 0 ? 2 : 1) + this.writeLimits(out);
  }

  /** Writes what changes the distribution before a token is chosen; how many pairs that were. */
  writeLimits(out: Encoder): i32 {
    let pairs = 0;
    const bias = this.logitBias;
    if (bias.length) {
      out.text("bias").map(bias.length);
      for (let i = 0; i < bias.length; i++) out.unsigned(bias[i].token).float(bias[i].bias);
      pairs++;
    }
    const mask = this.biasMask;
    if (mask !== null) {
      out.text("bias_mask").map(2).text("mask").binary(mask.tokens.bits);
      out.text("value").float(mask.bias);
      pairs++;
    }
    const repeated = this.repetitionPenalty;
    if (repeated !== null) {
      out.text("repetition").map(2).text("mask").binary(repeated.tokens.bits);
      out.text("penalty").float(repeated.penalty);
      pairs++;
    }
    const allowed = this.allowedTokens;
    if (allowed !== null) {
      out.text("allow").binary(allowed.bits);
      pairs++;
    }
    const constraint = this.constraint;
    if (constraint !== null) {
      out.text("constraint").integer(constraint.handle);
      pairs++;
    }
    if (this.constraintSince >= 0) {
      out.text("since").integer(this.constraintSince);
      pairs++;
    }
    return pairs;
  }

  /** The MessagePack map of a generation. */
  encoded(): ArrayBuffer {
    const members = new Encoder();
    let pairs = this.writeChoice(members);
    if (this.maxTokens >= 0) {
      members.text("max").integer(this.maxTokens);
      pairs++;
    }
    const ends = this.endTokens();
    if (ends.length) {
      members.text("stop").array(ends.length);
      for (let i = 0; i < ends.length; i++) members.unsigned(ends[i]);
      pairs++;
    }
    if (this.share) {
      members.text("share").boolean(true);
      pairs++;
    }
    if (this.adapter.length) {
      members.text("adapter").text(this.adapter);
      pairs++;
    }
    if (this.lookahead >= 0) {
      members.text("ahead").integer(this.lookahead);
      pairs++;
    }
    if (this.chunk != 1) {
      members.text("lot").integer(this.chunk);
      pairs++;
    }
    return new Encoder().map(pairs).encoded(members.bytes()).bytes();
  }
}

/** A number for the logit of one token. */
export class TokenBias {
  token: u32 = 0;
  bias: f64 = 0;
}

/** A set of the model's tokens. */
export class TokenSet {
  /** Bit t % 8 of byte t / 8 is token t's. */
  bits: ArrayBuffer = new ArrayBuffer(0);

  /** The set of these tokens. */
  static of(tokens: Array<u32>): TokenSet {
    const made = TokenSet.fromBits(new ArrayBuffer((modelInfo().vocabSize + 7) >> 3));
    for (let i = 0; i < tokens.length; i++) made.insert(tokens[i]);
    return made;
  }

  /** The set of the tokens whose bits are set. */
  static fromBits(bits: ArrayBuffer): TokenSet {
    const made = new TokenSet();
    made.bits = bits;
    return made;
  }

  /** Puts a token in; one outside the vocabulary ends the run. */
  insert(token: u32): void {
    if (token >> 3 >= (this.bits.byteLength as u32)) {
      throw new Error(`TokenSet.insert(${token}): the vocabulary has ${modelInfo().vocabSize} tokens`);
    }
    const at = changetype<usize>(this.bits) + (token >> 3);
    const bit: u32 = 1 << (token & 7);
    store<u8>(at, load<u8>(at) | (bit as u8));
  }

  /** Whether a token is in it. */
  contains(token: u32): bool {
    const byte = token >> 3;
    if (byte >= (this.bits.byteLength as u32)) return false;
    return ((load<u8>(changetype<usize>(this.bits) + byte) >> (token & 7)) & 1) == 1;
  }
}

/** A number for the logits of all tokens of a set. */
export class BiasMask {
  tokens: TokenSet = new TokenSet();
  bias: f64 = 0;
}

/**
 * A penalty for all tokens of a set, from 0.001 to 1000. Positive logits are divided by it, others
 * multiplied, before anything is added: above 1 the tokens become less likely. The server does not
 * put the tokens of the text into the set.
 */
export class RepetitionPenalty {
  tokens: TokenSet = new TokenSet();
  penalty: f64 = 1;
}
