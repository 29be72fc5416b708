// Green lists keyed by a secret, and the test for a text that was steered towards them
// (Kirchenbauer et al., "A Watermark for Large Language Models", arXiv 2301.10226).

import { encodeUtf8 } from "symphony-lip";

/**
 * How many tokens before a place choose its green list. One would let the few commonest pairs of a
 * language, green by accident, mark everybody's texts.
 */
export const WIDTH: i32 = 2;

/** How many of a text's places were looked at, and how many of those hold a green token. */
export class Evidence {
  counted: i32 = 0;
  green: i32 = 0;

  /** By how many standard deviations there are more green tokens than without the secret. */
  get z(): f64 {
    return (this.green - this.counted / 2.0) / Math.sqrt(max(this.counted, 1) / 4.0);
  }

  /**
   * How likely a text that knows nothing of the secret has as many green tokens or more: the
   * binomial distribution's tail, exactly, where z has only its normal approximation.
   */
  get p(): f64 {
    if (this.green == 0) return 1;
    if (2 * this.green >= this.counted) return tail(this.counted, this.green);
    return 1 - tail(this.counted, this.counted - this.green + 1);
  }
}

/** Who has the secret can mark texts, and tell that they are marked. */
export class Secret {
  private first: u64;
  private second: u64;

  constructor(text: string) {
    const bytes = encodeUtf8(text);
    const words = new Array<u64>(1 + ((bytes.byteLength + 7) >> 3));
    words[0] = bytes.byteLength;
    memory.copy(words.dataStart + 8, changetype<usize>(bytes), bytes.byteLength);
    this.first = sipHash(0, 0, words);
    this.second = sipHash(0, 1, words);
  }

  /**
   * Half of the vocabulary: each token is green by the toss of a coin that only `context` (the last
   * `WIDTH` tokens) and the secret decide. A bit for each token.
   */
  greenAfter(context: u32[], vocabSize: i32): ArrayBuffer {
    const list = this.list(context);
    const coins = new Uint64Array((vocabSize + 63) >> 6);
    for (let block = 0; block < coins.length; block++) coins[block] = this.coins(list, block);
    return coins.buffer.slice(0, (vocabSize + 7) >> 3);
  }

  /** Whether a token is green behind others. */
  isGreen(context: u32[], token: u32): bool {
    return ((this.coins(this.list(context), token / 64) >> (token % 64)) & 1) == 1;
  }

  /**
   * What a text says for its being marked. The same few tokens in a row count once: their colours
   * are one toss, however often a text repeats them.
   */
  lookAt(tokens: u32[]): Evidence {
    const found = new Evidence();
    const seen = new Set<string>();
    for (let i = WIDTH; i < tokens.length; i++) {
      const gram = tokens.slice(i - WIDTH, i + 1).join(" ");
      if (seen.has(gram)) continue;
      seen.add(gram);
      found.counted++;
      if (this.isGreen(tokens.slice(i - WIDTH, i), tokens[i])) found.green++;
    }
    return found;
  }

  private list(context: u32[]): u64 {
    const words: u64[] = [];
    for (let i = 0; i < context.length; i++) words.push(context[i]);
    return sipHash(this.first, this.second, words);
  }

  /** The colours of 64 tokens. */
  private coins(list: u64, block: u64): u64 {
    return sipHash(this.first, this.second, [list, block]);
  }
}

/** The chance of `green` or more heads in `n` tosses, for more heads than tails. */
function tail(n: i32, green: i32): f64 {
  let first: f64 = -n * Math.LN2;
  for (let i = 1; i <= green; i++) first += Math.log(((n - green + i) as f64) / i);
  let term: f64 = 1;
  let sum: f64 = 0;
  for (let heads = green; heads <= n; heads++) {
    sum += term;
    term *= ((n - heads) as f64) / (heads + 1);
  }
  return min(Math.exp(first + Math.log(sum)), 1);
}

let v0: u64, v1: u64, v2: u64, v3: u64;

/**
 * SipHash-2-4 of whole words (Aumasson and Bernstein, 2012): without the key nothing can be told of
 * a list from others.
 */
function sipHash(first: u64, second: u64, words: u64[]): u64 {
  v0 = first ^ 0x736f6d6570736575;
  v1 = second ^ 0x646f72616e646f6d;
  v2 = first ^ 0x6c7967656e657261;
  v3 = second ^ 0x7465646279746573;
  for (let i = 0; i < words.length; i++) absorb(words[i]);
  absorb((words.length as u64) << 59);
  v2 ^= 0xff;
  for (let i = 0; i < 4; i++) mix();
  return v0 ^ v1 ^ v2 ^ v3;
}

function absorb(word: u64): void {
  v3 ^= word;
  mix();
  mix();
  v0 ^= word;
}

function mix(): void {
  v0 += v1;
  v2 += v3;
  v1 = rotl(v1, 13) ^ v0;
  v3 = rotl(v3, 16) ^ v2;
  v0 = rotl(v0, 32) + v3;
  v2 += v1;
  v3 = rotl(v3, 21) ^ v0;
  v1 = rotl(v1, 17) ^ v2;
  v2 = rotl(v2, 32);
}
