// KV files: lists of entries, each a token, its position and its keys and values in every layer.

import { Errno, Result, errnoOf, failure, success } from "./errno";
import { Decoder } from "./msgpack";
import { Pred, PredOptions } from "./pred";
import * as raw from "./raw";
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
  /** Whether it outlives a restart (`list`). */
  durable: bool = false;
  /** Whether other tenants may read it, as `public/<tenant>/<path>` (`list`). */
  isPublic: bool = false;
}

/**
 * A handle on a KV file. `create`, `fork` and `extract` do not wait, and neither does what follows
 * them: calls take effect in the order made, and a file that could not be made answers every call
 * with the reason.
 */
export class KvFile {
  constructor(
    /** The handle's number, or minus an errno when there is no file. */
    readonly handle: i32,
  ) {}

  /** An empty file. */
  static create(): KvFile {
    return new KvFile(raw.kv_create());
  }

  /** A private view of a named file, as it is now. */
  static open(path: string, rights: u32 = Rights.ALL): Result<KvFile> {
    const name = encodeUtf8(path);
    const handle = raw.kv_open(changetype<usize>(name), name.byteLength, rights);
    return handle < 0 ? failure<KvFile>(-handle, "kv_open " + path) : success(new KvFile(handle));
  }

  /** The file that was granted to this program under a name. */
  static granted(name: string): Result<KvFile> {
    const bytes = encodeUtf8(name);
    const handle = raw.kv_granted(changetype<usize>(bytes), bytes.byteLength);
    return handle < 0 ? failure<KvFile>(-handle, "kv_granted " + name) : success(new KvFile(handle));
  }

  /**
   * A file that shares the longest prefix of the tokens that one of the tenant's runs has offered;
   * ENOENT when there is none. At least one token is left to compute.
   */
  static matching(tokens: Array<u32>): Result<KvFile> {
    const handle = raw.kv_match(tokens.dataStart, tokens.length);
    return handle < 0 ? failure<KvFile>(-handle, "kv_match") : success(new KvFile(handle));
  }

  /** Takes a name away; open handles stay valid. */
  static remove(path: string): Errno {
    const name = encodeUtf8(path);
    return errnoOf(raw.kv_remove(changetype<usize>(name), name.byteLength));
  }

  /**
   * The tenant's files whose names begin with `prefix`; EFBIG where there are too many for one
   * listing (`listAfter`). Below `public/<tenant>/` they are what that tenant publishes.
   */
  static list(prefix: string = ""): Result<Array<KvStat>> {
    const name = encodeUtf8(prefix);
    const from = changetype<usize>(name);
    let bytes = new ArrayBuffer(1024);
    let length = raw.kv_list(from, name.byteLength, changetype<usize>(bytes), bytes.byteLength);
    while (length > bytes.byteLength) {
      bytes = new ArrayBuffer(length);
      length = raw.kv_list(from, name.byteLength, changetype<usize>(bytes), bytes.byteLength);
    }
    return readListing(bytes, length, "kv_list");
  }

  /** At most `max` of these files, in order, from the first one behind the path `after`. */
  static listAfter(prefix: string, after: string, max: u32): Result<Array<KvStat>> {
    const name = encodeUtf8(prefix);
    const last = encodeUtf8(after);
    let bytes = new ArrayBuffer(1024);
    let length = listAfter(name, last, max, bytes);
    while (length > bytes.byteLength) {
      bytes = new ArrayBuffer(length);
      length = listAfter(name, last, max, bytes);
    }
    return readListing(bytes, length, "kv_list_after");
  }

  /** Whether there is a file. Another failure of making it still shows at the first use. */
  get ok(): bool {
    return this.handle >= 0;
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
    const places: usize = positions === null ? 0 : positions.dataStart;
    if (positions !== null && positions.length != tokens.length) return this.refused("pred");
    return this.forward(tokens.dataStart, tokens.length, places, options);
  }

  /** `pred` of one token, as a loop makes it. */
  decode(token: u32, options: PredOptions | null = null): Pred {
    store<u32>(ONE_TOKEN, token);
    return this.forward(ONE_TOKEN, 1, 0, options);
  }

  /** `pred`, done when this returns: one call of the host's, for who waits for it at once. */
  predNow(
    tokens: Array<u32>,
    options: PredOptions | null = null,
    positions: Array<u32> | null = null,
  ): Pred {
    const places: usize = positions === null ? 0 : positions.dataStart;
    if (positions !== null && positions.length != tokens.length) return this.refused("pred");
    return this.forwardNow(tokens.dataStart, tokens.length, places, options);
  }

  /** `decode`, done when this returns: the loop that decodes a token at a time. */
  decodeNow(token: u32, options: PredOptions | null = null): Pred {
    store<u32>(ONE_TOKEN, token);
    return this.forwardNow(ONE_TOKEN, 1, 0, options);
  }

  /** Appends tokens and asks for nothing. What follows need not wait for it. */
  prefill(tokens: Array<u32>): Pred {
    return this.forward(tokens.dataStart, tokens.length, 0, NOTHING_WANTED);
  }

  /**
   * Samples, appends and goes on by itself: at most `max` tokens behind `tokens` (-1: as many as the
   * context has room for), until one of `stop`, which is given and not appended. The server may
   * append up to `ahead` tokens that were not taken yet (-1: its default, 8). A program that has no
   * use for each token as it comes is woken once `lot` of them are there (at most `ahead` + 1), or
   * the last one. `options` are a pred's:
   * `argmax` or `sample`, `logprobs`, `bias`, `allow`.
   */
  generate(
    tokens: Array<u32>,
    max: i32 = -1,
    stop: Array<u32> = [],
    options: PredOptions | null = null,
    ahead: i32 = -1,
    lot: i32 = 1,
  ): TokenStream {
    if (!this.ok) return new TokenStream(this.handle, "generate");
    const asked = options === null ? new PredOptions() : options;
    const bytes = asked.bytesOfGeneration(max, stop, ahead, lot);
    const from = changetype<usize>(bytes);
    const stream = new TokenStream(
      raw.generate(this.handle, tokens.dataStart, tokens.length, from, bytes.byteLength),
      "generate");
    stream.recordBytes = asked.recordBytes;
    return stream;
  }

  /** A copy that shares pages until either side writes. */
  fork(): KvFile {
    return new KvFile(this.ok ? raw.kv_fork(this.handle) : this.handle);
  }

  /** A new file of the entries in these (start, end) pairs, positions kept. */
  extract(ranges: Array<u32>): KvFile {
    if (!this.ok) return new KvFile(this.handle);
    if (ranges.length & 1) return new KvFile(-Errno.EINVAL);
    return new KvFile(raw.kv_extract(this.handle, ranges.dataStart, ranges.length >> 1));
  }

  /** Appends the entries from `start` to `end` of another file. */
  append(source: KvFile, start: u32, end: u32): Errno {
    if (!this.ok || !source.ok) return errnoOf(this.ok ? source.handle : this.handle);
    return errnoOf(raw.kv_append(this.handle, source.handle, start, end));
  }

  /** Rolls back to `length` entries. */
  truncate(length: u32): Errno {
    return errnoOf(this.ok ? raw.kv_truncate(this.handle, length) : this.handle);
  }

  /** The number of entries; suspends until what was asked before has been done. */
  length(): Result<i32> {
    const length = this.ok ? raw.kv_len(this.handle) : this.handle;
    return length < 0 ? failure<i32>(-length, "kv_len") : success(length);
  }

  /** What there is to tell of the file. */
  stat(): Result<KvStat> {
    if (!this.ok) return failure<KvStat>(-this.handle, "kv_stat");
    let bytes = new ArrayBuffer(512);
    let length = raw.kv_stat(this.handle, changetype<usize>(bytes), bytes.byteLength);
    while (length > bytes.byteLength) {
      bytes = new ArrayBuffer(length);
      length = raw.kv_stat(this.handle, changetype<usize>(bytes), bytes.byteLength);
    }
    if (length < 0) return failure<KvStat>(-length, "kv_stat");
    const decoder = new Decoder(bytes.slice(0, length));
    const stat = readStat(decoder);
    return decoder.failed ? failure<KvStat>(Errno.EIO, "kv_stat") : success(stat);
  }

  /** `count` tokens from entry `start`. */
  tokens(start: u32, count: i32): Result<Array<u32>> {
    const tokens = new Array<u32>(count);
    const done = this.ok ? raw.kv_tokens(this.handle, start, count, tokens.dataStart) : this.handle;
    if (done < 0) return failure<Array<u32>>(-done, "kv_tokens");
    tokens.length = done;
    return success(tokens);
  }

  /** Names what the file holds now, for the tenant's other runs; what it gets later is not the name's. */
  save(path: string, flags: u32 = 0): Errno {
    if (!this.ok) return errnoOf(this.handle);
    const name = encodeUtf8(path);
    return errnoOf(raw.kv_save(this.handle, changetype<usize>(name), name.byteLength, flags));
  }

  /**
   * Offers what the file holds now, in whole pages, to the tenant's other runs, which find it with
   * `matching`; returns how many entries they can find. The server keeps it as long as it has room.
   * Only for files whose entries were each computed from exactly those before (EINVAL).
   */
  offer(): Result<i32> {
    const taken = this.ok ? raw.kv_offer(this.handle) : this.handle;
    return taken < 0 ? failure<i32>(-taken, "kv_offer") : success(taken);
  }

  /** Says what is planned with the file. */
  advise(advice: Advice, argument: i64 = 0): Errno {
    return errnoOf(this.ok ? raw.kv_advise(this.handle, advice, argument) : this.handle);
  }

  /** Gives a child (or the parent, 0) a handle of its own with at most these rights. */
  grant(pid: i32, rights: u32, name: string): Errno {
    if (!this.ok) return errnoOf(this.handle);
    const bytes = encodeUtf8(name);
    const from = changetype<usize>(bytes);
    return errnoOf(raw.kv_grant(this.handle, pid, rights, from, bytes.byteLength));
  }

  /** Closes the handle; pages that nobody else holds are free again. */
  close(): Errno {
    return errnoOf(this.ok ? raw.kv_close(this.handle) : this.handle);
  }

  private forward(tokens: usize, count: i32, places: usize, options: PredOptions | null): Pred {
    if (!this.ok) return new Pred(this.handle, "pred");
    if (options === null) return new Pred(raw.pred(this.handle, tokens, count, places, 0, 0), "pred");
    const bytes = options.bytes();
    const from = changetype<usize>(bytes);
    const pred = new Pred(
      raw.pred(this.handle, tokens, count, places, from, bytes.byteLength), "pred");
    pred.recordBytes = options.recordBytes;
    return pred;
  }

  private forwardNow(tokens: usize, count: i32, places: usize, options: PredOptions | null): Pred {
    if (!this.ok) return new Pred(this.handle, "pred");
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
    if (options !== null) pred.recordBytes = options.recordBytes;
    return pred;
  }

  private refused(what: string): Pred {
    return new Pred(-Errno.EINVAL, what + ": as many positions as tokens");
  }
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
    else if (key == "durable") stat.durable = decoder.boolean();
    else if (key == "public") stat.isPublic = decoder.boolean();
    else decoder.skip();
  }
  return stat;
}
