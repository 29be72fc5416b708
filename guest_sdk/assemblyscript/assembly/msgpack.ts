// MessagePack, as far as the ABI needs it: all of the format but extension types and timestamps.

import { Json, JsonKind } from "./json";
import { decodeUtf8Range, encodeUtf8 } from "./utf8";

/** Writes one MessagePack value after the other; each method returns the encoder. */
export class Encoder {
  private buffer: ArrayBuffer = new ArrayBuffer(64);
  private used: i32 = 0;

  /** What was written so far. */
  bytes(): ArrayBuffer {
    return this.buffer.slice(0, this.used);
  }

  /** Begins a map: `pairs` keys and values follow. */
  map(pairs: i32): Encoder {
    return this.sized(pairs, 0x80, 16, 0, 0xde);
  }

  /** Begins an array: `items` values follow. */
  array(items: i32): Encoder {
    return this.sized(items, 0x90, 16, 0, 0xdc);
  }

  /** A string. */
  text(value: string): Encoder {
    const bytes = encodeUtf8(value);
    this.sized(bytes.byteLength, 0xa0, 32, 0xd9, 0xda);
    return this.raw(changetype<usize>(bytes), bytes.byteLength);
  }

  /** Binary data. */
  binary(value: ArrayBuffer): Encoder {
    this.sized(value.byteLength, 0, 0, 0xc4, 0xc5);
    return this.raw(changetype<usize>(value), value.byteLength);
  }

  /** A signed integer. */
  integer(value: i64): Encoder {
    if (value >= 0) return this.unsigned(value);
    if (value >= -32) {
      store<u8>(this.room(1), value as u8);
    } else if (value >= i8.MIN_VALUE) {
      store<u8>(this.tagged(0xd0, 1), value as u8);
    } else if (value >= i16.MIN_VALUE) {
      store<u16>(this.tagged(0xd1, 2), bswap<u16>(value as u16));
    } else if (value >= i32.MIN_VALUE) {
      store<u32>(this.tagged(0xd2, 4), bswap<u32>(value as u32));
    } else {
      store<u64>(this.tagged(0xd3, 8), bswap<u64>(value as u64));
    }
    return this;
  }

  /** An unsigned integer. */
  unsigned(value: u64): Encoder {
    if (value < 0x80) {
      store<u8>(this.room(1), value as u8);
    } else if (value <= 0xff) {
      store<u8>(this.tagged(0xcc, 1), value as u8);
    } else if (value <= 0xffff) {
      store<u16>(this.tagged(0xcd, 2), bswap<u16>(value as u16));
    } else if (value <= 0xffffffff) {
      store<u32>(this.tagged(0xce, 4), bswap<u32>(value as u32));
    } else {
      store<u64>(this.tagged(0xcf, 8), bswap<u64>(value));
    }
    return this;
  }

  /** A number with a fraction, in double precision. */
  float(value: f64): Encoder {
    store<u64>(this.tagged(0xcb, 8), bswap<u64>(reinterpret<u64>(value)));
    return this;
  }

  /** True or false. */
  boolean(value: bool): Encoder {
    store<u8>(this.room(1), value ? 0xc3 : 0xc2);
    return this;
  }

  /** No value. */
  nil(): Encoder {
    store<u8>(this.room(1), 0xc0);
    return this;
  }

  /** A value that is MessagePack already. */
  encoded(value: ArrayBuffer): Encoder {
    return this.raw(changetype<usize>(value), value.byteLength);
  }

  /** A length: in the first byte below `tiny`, else after a tag (`tag8` 0: there is no such form). */
  private sized(length: i32, fix: u8, tiny: i32, tag8: u8, tag16: u8): Encoder {
    if (length < tiny) {
      store<u8>(this.room(1), fix | (length as u8));
    } else if (tag8 != 0 && length <= 0xff) {
      store<u8>(this.tagged(tag8, 1), length as u8);
    } else if (length <= 0xffff) {
      store<u16>(this.tagged(tag16, 2), bswap<u16>(length as u16));
    } else {
      store<u32>(this.tagged(tag16 + 1, 4), bswap<u32>(length));
    }
    return this;
  }

  private raw(from: usize, length: i32): Encoder {
    memory.copy(this.room(length), from, length);
    return this;
  }

  private tagged(tag: u8, bytes: i32): usize {
    const at = this.room(bytes + 1);
    store<u8>(at, tag);
    return at + 1;
  }

  private room(bytes: i32): usize {
    const at = this.used;
    this.used = at + bytes;
    if (this.used > this.buffer.byteLength) {
      const larger = new ArrayBuffer(max(this.used, this.buffer.byteLength << 1));
      memory.copy(changetype<usize>(larger), changetype<usize>(this.buffer), at);
      this.buffer = larger;
    }
    return changetype<usize>(this.buffer) + at;
  }
}

/**
 * Reads MessagePack values in order. A value of another type than asked for, or an end too soon,
 * sets `failed`; from then on every read gives zero, nothing or "" and reads no further.
 */
export class Decoder {
  /** Whether something was not as asked for. */
  failed: bool = false;
  private at: usize;
  private readonly end: usize;

  constructor(private readonly buffer: ArrayBuffer) {
    this.at = changetype<usize>(buffer);
    this.end = this.at + buffer.byteLength;
  }

  /** Whether all was read and nothing failed. */
  get finished(): bool {
    return !this.failed && this.at == this.end;
  }

  /** The number of pairs of a map. */
  map(): i32 {
    return this.count(0x80, 0xde);
  }

  /** The number of items of an array. */
  array(): i32 {
    return this.count(0x90, 0xdc);
  }

  /** A string. */
  text(): string {
    const length = this.length(true);
    const from = this.taken(length);
    return this.failed ? "" : decodeUtf8Range(from, length);
  }

  /** Binary data, or the bytes of a string. */
  binary(): ArrayBuffer {
    const string = (this.peek() & 0xe0) == 0xa0 || (this.peek() >= 0xd9 && this.peek() <= 0xdb);
    const length = this.length(string);
    const from = this.taken(length);
    const value = new ArrayBuffer(this.failed ? 0 : length);
    memory.copy(changetype<usize>(value), from, value.byteLength);
    return value;
  }

  /** An integer; one past the range of i64 fails. */
  integer(): i64 {
    const tag = this.byte();
    if (tag < 0x80) return tag;
    if (tag >= 0xe0) return tag as i8;
    if (tag >= 0xcc && tag <= 0xcf) {
      const value = this.big(1 << (tag - 0xcc));
      return (value as i64) < 0 ? <i64>this.fail() : (value as i64);
    }
    if (tag < 0xd0 || tag > 0xd3) return this.fail();
    const bytes: i32 = 1 << (tag - 0xd0);
    const spare: i64 = 64 - (bytes << 3);
    return ((this.big(bytes) as i64) << spare) >> spare;
  }

  /** An integer that is not negative. */
  unsigned(): u64 {
    if (this.peek() == 0xcf) {
      this.byte();
      return this.big(8);
    }
    const value = this.integer();
    return value < 0 ? <u64>this.fail() : (value as u64);
  }

  /** A number of any kind. */
  float(): f64 {
    const tag = this.peek();
    if (tag == 0xca) {
      this.byte();
      return reinterpret<f32>(this.big(4) as u32);
    }
    if (tag == 0xcb) {
      this.byte();
      return reinterpret<f64>(this.big(8));
    }
    return tag == 0xcf ? (this.unsigned() as f64) : (this.integer() as f64);
  }

  /** True or false. */
  boolean(): bool {
    const tag = this.byte();
    if (tag != 0xc2 && tag != 0xc3) this.fail();
    return tag == 0xc3;
  }

  /** Whether the next value is nil, which is then read. */
  nil(): bool {
    if (this.peek() != 0xc0) return false;
    this.at += 1;
    return true;
  }

  /** Any value that JSON has; others fail. */
  json(): Json {
    const tag = this.peek();
    if (this.nil()) return new Json(JsonKind.NULL);
    if (tag == 0xc2 || tag == 0xc3) return Json.ofBoolean(this.boolean());
    if ((tag & 0xe0) == 0xa0 || (tag >= 0xd9 && tag <= 0xdb)) return Json.ofString(this.text());
    if ((tag & 0xf0) == 0x80 || tag == 0xde || tag == 0xdf) {
      const value = new Json(JsonKind.OBJECT);
      for (let pairs = this.map(); pairs > 0 && !this.failed; pairs--) {
        value.keys.push(this.text());
        value.items.push(this.json());
      }
      return value;
    }
    if ((tag & 0xf0) == 0x90 || tag == 0xdc || tag == 0xdd) {
      const value = new Json(JsonKind.ARRAY);
      for (let items = this.array(); items > 0 && !this.failed; items--) value.items.push(this.json());
      return value;
    }
    return Json.ofNumber(this.float());
  }

  /** Passes over one value, whatever is in it. */
  skip(): void {
    let left: i64 = 1;
    for (; left > 0 && !this.failed; left--) {
      const tag = this.peek();
      if (tag < 0x80 || tag >= 0xe0 || tag == 0xc0 || tag == 0xc2 || tag == 0xc3) this.byte();
      else if (tag < 0x90 || tag == 0xde || tag == 0xdf) left += 2 * (this.map() as i64);
      else if (tag < 0xa0 || tag == 0xdc || tag == 0xdd) left += this.array();
      else if (tag == 0xca || tag == 0xcb) this.float();
      else if (tag >= 0xcc && tag <= 0xcf) this.unsigned();
      else if (tag >= 0xd0 && tag <= 0xd3) this.integer();
      else this.skipBytes();
    }
  }

  private skipBytes(): void {
    const tag = this.peek();
    const binary = tag >= 0xc4 && tag <= 0xc6;
    this.taken(this.length(!binary));
  }

  private count(fix: u8, tag16: u8): i32 {
    const tag = this.byte();
    if ((tag & 0xf0) == fix) return tag & 0x0f;
    if (tag != tag16 && tag != tag16 + 1) return this.fail();
    const items = this.big(tag == tag16 ? 2 : 4);
    // Each item takes a byte at least, so a larger number is wrong and would only waste time.
    return items > ((this.end - this.at) as u64) ? this.fail() : (items as i32);
  }

  private length(text: bool): i32 {
    const tag = this.byte();
    if (text && (tag & 0xe0) == 0xa0) return tag & 0x1f;
    const first: u8 = text ? 0xd9 : 0xc4;
    if (tag < first || tag > first + 2) return this.fail();
    const bytes = this.big(1 << (tag - first));
    return bytes > ((this.end - this.at) as u64) ? this.fail() : (bytes as i32);
  }

  private big(bytes: i32): u64 {
    const from = this.taken(bytes);
    if (this.failed) return 0;
    let value: u64 = 0;
    for (let i = 0; i < bytes; i++) value = (value << 8) | load<u8>(from + i);
    return value;
  }

  private peek(): u8 {
    // 0xc1 is never used: no value begins with it.
    return this.failed || this.at >= this.end ? 0xc1 : load<u8>(this.at);
  }

  private byte(): u8 {
    const from = this.taken(1);
    return this.failed ? 0xc1 : load<u8>(from);
  }

  private taken(bytes: i32): usize {
    if (this.failed || ((this.end - this.at) as i32) < bytes) {
      this.fail();
      return this.at;
    }
    this.at += bytes;
    return this.at - bytes;
  }

  private fail(): i32 {
    this.failed = true;
    return 0;
  }
}
