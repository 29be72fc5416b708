// KV files: lists of entries, each a token, its position and its keys and values in every layer.

import { Errno, Outcome, Result } from "./errno";
import { demand, errnoOf, failure, named, outcome, success, tokenCount } from "./failure";
import { Generation } from "./generation";
import { Decoder } from "./msgpack";
import { Pred, PredOptions } from "./pred";
import * as raw from "./raw";
import { Sampling } from "./sampling";
import { TokenStream } from "./stream";
import { encodeUtf8 } from "./utf8";

/** What a handle allows; combine with `|`. */
export namespace Rights {
  export const READ: u32 = 1;
  export const APPEND: u32 = 2;
  export const TRUNCATE: u32 = 4;
  export const SAVE: u32 = 8;
  export const GRANT: u32 = 16;
  export const ALL: u32 = 31;
}

/** How a file is saved; combine with `|`. */
export namespace SaveFlags {
  export const REPLACE: u32 = 1;
  export const DURABLE: u32 = 2;
  export const PUBLIC: u32 = 4;
}

/** A wish about where a file's pages live. */
export enum Advice {
  NORMAL = 0,
  KEEP = 1,
  WILL_NEED = 2,
  DO_NOT_NEED = 3,
  PRIORITY = 4,
}

/** What `stat` and `list` tell of a file. */
export class KvStat {
  path: string = "";
  length: i32 = 0;
  pages: i32 = 0;
  /** Pages that it shares with others (`stat`). */
  shared: i32 = 0;
  tier: string = "";
  /** The handle's rights (`stat`). */
  rights: u32 = 0;
  /** When it goes, in milliseconds since 1970; 0 or less: never. */
  expiresMs: i64 = -1;
  /** Entries that came from the prefix cache, by `matching` or by the option `share` (`stat`). */
  cached: i32 = 0;
  /** Whether it outlives a restart (`list`). */
  durable: bool = false;
  /** Whether other tenants may read it, as `public/<tenant>/<path>` (`list`). */
  isPublic: bool = false;
}

/**
 * A handle on a KV file. `create`, `fork` and `extract` do not wait, and neither does what follows
 * them: calls take effect in the order made, and where making it failed later, the first call that
 * needs the content says so.
 */
export class KvFile {
  constructor(
    /** The handle's number. */
    readonly handle: i32,
  ) {}

  /** An empty file. */
  static create(): KvFile {
    return KvFile.tryCreate().value;
  }

  static tryCreate(): Result<KvFile> {
    return made(raw.kv_create(), "KvFile.create");
  }

  /** A private view of a named file, as it is now. */
  static open(path: string, rights: u32 = Rights.ALL): KvFile {
    return KvFile.tryOpen(path, rights).value;
  }

  static tryOpen(path: string, rights: u32 = Rights.ALL): Result<KvFile> {
    const name = encodeUtf8(path);
    const handle = raw.kv_open(changetype<usize>(name), name.byteLength, rights);
    return made(handle, named("KvFile.open", path), NO_FILE);
  }

  /** The file that was granted to this program under a name. */
  static granted(name: string): KvFile {
    return KvFile.tryGranted(name).value;
  }

  static tryGranted(name: string): Result<KvFile> {
    const bytes = encodeUtf8(name);
    const handle = raw.kv_granted(changetype<usize>(bytes), bytes.byteLength);
    return made(handle, named("KvFile.granted", name));
  }

  /**
   * A file that shares the longest prefix of the tokens that one of the tenant's runs has offered;
   * null when there is none. At least one token is left to compute.
   */
  static matching(tokens: Array<u32>): KvFile | null {
    const handle = raw.kv_match(tokens.dataStart, tokens.length);
    if (handle == -Errno.ENOENT) return null;
    return made(handle, `KvFile.matching(${tokenCount(tokens.length)})`).value;
  }

  /** Takes a name away; open handles stay valid. */
  static remove(path: string): void {
    KvFile.tryRemove(path).demand();
  }

  static tryRemove(path: string): Outcome {
    const name = encodeUtf8(path);
    const done = raw.kv_remove(changetype<usize>(name), name.byteLength);
    const detail = done == -Errno.ENOENT ? NO_FILE : "";
    return new Outcome(errnoOf(done), named("KvFile.remove", path), detail);
  }

  /**
   * The tenant's files whose names begin with `prefix`; EFBIG where there are too many for one
   * listing (`listAfter`). Below `public/<tenant>/` they are what that tenant publishes.
   */
  static list(prefix: string = ""): Array<KvStat> {
    return KvFile.tryList(prefix).value;
  }

  static tryList(prefix: string = ""): Result<Array<KvStat>> {
    const name = encodeUtf8(prefix);
    const from = changetype<usize>(name);
    let bytes = new ArrayBuffer(1024);
    let length = raw.kv_list(from, name.byteLength, changetype<usize>(bytes), bytes.byteLength);
    while (length > bytes.byteLength) {
      bytes = new ArrayBuffer(length);
      length = raw.kv_list(from, name.byteLength, changetype<usize>(bytes), bytes.byteLength);
    }
    return readListing(bytes, length, named("KvFile.list", prefix));
  }

  /** At most `max` of these files, in order, from the first one behind the path `after`. */
  static listAfter(prefix: string, after: string, max: u32): Array<KvStat> {
    const name = encodeUtf8(prefix);
    const last = encodeUtf8(after);
    let bytes = new ArrayBuffer(1024);
    let length = listAfter(name, last, max, bytes);
    while (length > bytes.byteLength) {
      bytes = new ArrayBuffer(length);
      length = listAfter(name, last, max, bytes);
    }
    return readListing(bytes, length, named("KvFile.listAfter", prefix)).value;
  }

  /**
   * One forward pass: appends the tokens and computes the distributions that `options` ask for
   * (the default: the most probable next token). Positions continue at the file's end unless given.
   */
  pred(
    tokens: Array<u32>,
    options: PredOptions | null = null,
    positions: Array<u32> | null = null,
  ): Pred {
    const places = placesOf(tokens, positions);
    return this.forward(tokens.dataStart, tokens.length, places, options);
  }

  /** `pred` of one token, as a loop makes it. */
  decode(token: u32, options: PredOptions | null = null): Pred {
    store<u32>(ONE_TOKEN, token);
    return this.forward(ONE_TOKEN, 1, 0, options);
  }

  /** `pred`, done when this returns: one call of the host's, for a program that waits at once. */
  predBlocking(
    tokens: Array<u32>,
    options: PredOptions | null = null,
    positions: Array<u32> | null = null,
  ): Pred {
    const places = placesOf(tokens, positions);
    return this.forwardBlocking(tokens.dataStart, tokens.length, places, options);
  }

  /** `decode`, done when this returns: the loop that decodes a token at a time. */
  decodeBlocking(token: u32, options: PredOptions | null = null): Pred {
    store<u32>(ONE_TOKEN, token);
    return this.forwardBlocking(ONE_TOKEN, 1, 0, options);
  }

  /** Appends tokens and asks for nothing. What follows need not wait for it. */
  prefill(tokens: Array<u32>): Pred {
    return this.forward(tokens.dataStart, tokens.length, 0, NOTHING_WANTED);
  }

  /** The text that the model writes behind a prompt: a task, or piece by piece with `next`. */
  generate(prompt: Array<u32>, sampling: Sampling = new Sampling()): Generation {
    return new Generation(this, prompt, sampling);
  }

  /**
   * The tokens that the model writes behind a prompt, without the stop texts of `generate`. The server
   * samples, appends and continues by itself. A token that ends the text is given and not appended.
   */
  stream(prompt: Array<u32>, sampling: Sampling = new Sampling()): TokenStream {
    const options = sampling.encoded();
    const from = changetype<usize>(options);
    const stream = new TokenStream(
      raw.generate(this.handle, prompt.dataStart, prompt.length, from, options.byteLength),
      "KvFile.stream");
    stream.recordBytes = 8 * (1 + max(sampling.logprobs, 0));
    stream.given = prompt.length;
    return stream;
  }

  /** A copy that shares pages until either side writes. */
  fork(): KvFile {
    return this.tryFork().value;
  }

  tryFork(): Result<KvFile> {
    return made(raw.kv_fork(this.handle), "KvFile.fork");
  }

  /** A new file of the entries in these (start, end) pairs, positions kept. */
  extract(ranges: Array<u32>): KvFile {
    return this.tryExtract(ranges).value;
  }

  tryExtract(ranges: Array<u32>): Result<KvFile> {
    const even = (ranges.length & 1) == 0;
    const pairs = ranges.length >> 1;
    const handle = even ? raw.kv_extract(this.handle, ranges.dataStart, pairs) : -Errno.EINVAL;
    return made(handle, `KvFile.extract(${ranges.join(", ")})`);
  }

  /** Appends the entries from `start` to `end` of another file. */
  append(source: KvFile, start: u32, end: u32): void {
    demand(raw.kv_append(this.handle, source.handle, start, end), "KvFile.append");
  }

  tryAppend(source: KvFile, start: u32, end: u32): Outcome {
    return outcome(raw.kv_append(this.handle, source.handle, start, end), "KvFile.append");
  }

  /** Rolls back to `length` entries. */
  truncate(length: u32): void {
    const done = raw.kv_truncate(this.handle, length);
    if (done < 0) demand(done, `KvFile.truncate(${length})`);
  }

  tryTruncate(length: u32): Outcome {
    return outcome(raw.kv_truncate(this.handle, length), `KvFile.truncate(${length})`);
  }

  /** The number of entries; suspends until what was asked before has been done. */
  length(): i32 {
    const length = raw.kv_len(this.handle);
    demand(length, "KvFile.length");
    return length;
  }

  tryLength(): Result<i32> {
    const length = raw.kv_len(this.handle);
    return length < 0 ? failure<i32>(-length, "KvFile.length") : success(length);
  }

  /** What there is to tell of the file. */
  stat(): KvStat {
    return this.tryStat().value;
  }

  tryStat(): Result<KvStat> {
    let bytes = new ArrayBuffer(512);
    let length = raw.kv_stat(this.handle, changetype<usize>(bytes), bytes.byteLength);
    while (length > bytes.byteLength) {
      bytes = new ArrayBuffer(length);
      length = raw.kv_stat(this.handle, changetype<usize>(bytes), bytes.byteLength);
    }
    if (length < 0) return failure<KvStat>(-length, "KvFile.stat");
    const decoder = new Decoder(bytes.slice(0, length));
    const stat = readStat(decoder);
    return decoder.failed ? failure<KvStat>(Errno.EIO, "KvFile.stat") : success(stat);
  }

  /** `count` tokens from entry `start`. */
  tokens(start: u32, count: i32): Array<u32> {
    return this.tryTokens(start, count).value;
  }

  tryTokens(start: u32, count: i32): Result<Array<u32>> {
    const tokens = new Array<u32>(count);
    const done = raw.kv_tokens(this.handle, start, count, tokens.dataStart);
    if (done < 0) return failure<Array<u32>>(-done, `KvFile.tokens(${start}, ${count})`);
    tokens.length = done;
    return success(tokens);
  }

  /** Names what the file holds now, for the tenant's other runs; what it gets later is not the name's. */
  save(path: string, flags: u32 = 0): void {
    this.trySave(path, flags).demand();
  }

  trySave(path: string, flags: u32 = 0): Outcome {
    const name = encodeUtf8(path);
    const done = raw.kv_save(this.handle, changetype<usize>(name), name.byteLength, flags);
    return outcome(done, named("KvFile.save", path));
  }

  /**
   * Offers what the file holds now, in whole pages, to the tenant's other runs, which find it with
   * `matching`; returns how many entries they can find. The server keeps it as long as it has room.
   * Only for files whose entries were each computed from exactly those before (EINVAL).
   */
  offer(): i32 {
    return this.tryOffer().value;
  }

  tryOffer(): Result<i32> {
    const taken = raw.kv_offer(this.handle);
    return taken < 0 ? failure<i32>(-taken, "KvFile.offer") : success(taken);
  }

  /** Says what is planned with the file. */
  advise(advice: Advice, argument: i64 = 0): void {
    this.tryAdvise(advice, argument).demand();
  }

  tryAdvise(advice: Advice, argument: i64 = 0): Outcome {
    return outcome(raw.kv_advise(this.handle, advice, argument), "KvFile.advise");
  }

  /** Gives a child (or the parent, 0) a handle of its own with at most these rights. */
  grant(pid: i32, rights: u32, name: string): void {
    this.tryGrant(pid, rights, name).demand();
  }

  tryGrant(pid: i32, rights: u32, name: string): Outcome {
    const bytes = encodeUtf8(name);
    const from = changetype<usize>(bytes);
    const done = raw.kv_grant(this.handle, pid, rights, from, bytes.byteLength);
    return outcome(done, named("KvFile.grant", name));
  }

  /** Closes the handle; pages that no other file holds are free again. */
  close(): void {
    this.tryClose().demand();
  }

  tryClose(): Outcome {
    return outcome(raw.kv_close(this.handle), "KvFile.close");
  }

  private forward(tokens: usize, count: i32, places: usize, options: PredOptions | null): Pred {
    const opts = options === null ? EMPTY : options.bytes();
    const from = changetype<usize>(opts);
    const pred = new Pred(
      raw.pred(this.handle, tokens, count, places, from, opts.byteLength), "KvFile.pred");
    pred.given = count;
    if (options !== null) pred.recordBytes = options.recordBytes;
    return pred;
  }

  private forwardBlocking(
    tokens: usize, count: i32, places: usize, options: PredOptions | null,
  ): Pred {
    const opts = options === null ? EMPTY : options.bytes();
    const from = changetype<usize>(opts);
    let room = new ArrayBuffer(RESULT_ROOM);
    let length = raw.pred_claim(
      this.handle, tokens, count, places, from, opts.byteLength,
      changetype<usize>(room), room.byteLength);
    if (length > room.byteLength) {  // it has not begun
      room = new ArrayBuffer(length);
      length = raw.pred_claim(
        this.handle, tokens, count, places, from, opts.byteLength,
        changetype<usize>(room), room.byteLength);
    }
    const payload = length < 0 ? EMPTY : length < room.byteLength ? room.slice(0, length) : room;
    const pred = Pred.done(payload, errnoOf(length));
    pred.given = count;
    if (options !== null) pred.recordBytes = options.recordBytes;
    return pred;
  }
}

const NO_FILE = "ENOENT, there is no file of that name: KvFile.list() tells which there are";

function made(handle: i32, call: string, noFile: string = ""): Result<KvFile> {
  if (handle >= 0) return success(new KvFile(handle));
  return failure<KvFile>(-handle, call, handle == -Errno.ENOENT ? noFile : "");
}

function placesOf(tokens: Array<u32>, positions: Array<u32> | null): usize {
  if (positions === null) return 0;
  if (positions.length != tokens.length) {
    throw new Error(`KvFile.pred: ${tokenCount(tokens.length)} need as many positions, not ${positions.length}`);
  }
  return positions.dataStart;
}

const ONE_TOKEN: usize = memory.data(4);
const RESULT_ROOM: i32 = 8; // a token's; what is longer takes a second call
const EMPTY = new ArrayBuffer(0);
const NOTHING_WANTED = new PredOptions().none();

function listAfter(prefix: ArrayBuffer, after: ArrayBuffer, max: u32, out: ArrayBuffer): i32 {
  return raw.kv_list_after(
    changetype<usize>(prefix), prefix.byteLength, changetype<usize>(after), after.byteLength, max,
    changetype<usize>(out), out.byteLength);
}

function readListing(bytes: ArrayBuffer, length: i32, call: string): Result<Array<KvStat>> {
  if (length < 0) return failure<Array<KvStat>>(-length, call);
  const decoder = new Decoder(bytes.slice(0, length));
  const all = new Array<KvStat>();
  for (let n = decoder.array(); n > 0; n--) all.push(readStat(decoder));
  return decoder.failed ? failure<Array<KvStat>>(Errno.EIO, call) : success(all);
}

function readStat(decoder: Decoder): KvStat {
  const stat = new KvStat();
  for (let pairs = decoder.map(); pairs > 0; pairs--) {
    const key = decoder.text();
    if (decoder.nil()) continue; // a name or an expiry that there is not
    if (key == "path") stat.path = decoder.text();
    else if (key == "len") stat.length = decoder.integer() as i32;
    else if (key == "pages") stat.pages = decoder.integer() as i32;
    else if (key == "shared") stat.shared = decoder.integer() as i32;
    else if (key == "tier") stat.tier = decoder.text();
    else if (key == "rights") stat.rights = decoder.unsigned() as u32;
    else if (key == "expires_ms") stat.expiresMs = decoder.integer();
    else if (key == "cached") stat.cached = decoder.integer() as i32;
    else if (key == "durable") stat.durable = decoder.boolean();
    else if (key == "public") stat.isPublic = decoder.boolean();
    else decoder.skip();
  }
  return stat;
}
