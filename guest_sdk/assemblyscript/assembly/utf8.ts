// Strings are UTF-16 in AssemblyScript and UTF-8 at every call. Nothing here fails: what is malformed
// becomes U+FFFD, one for each maximal part of a sequence, as browsers and Python do it.

const REPLACEMENT: u32 = 0xfffd;

/** The UTF-8 bytes of a string; a lone surrogate becomes U+FFFD. */
export function encodeUtf8(text: string): ArrayBuffer {
  return String.UTF8.encode(text, false, String.UTF8.ErrorMode.REPLACE);
}

/** The text of UTF-8 bytes. */
export function decodeUtf8(bytes: ArrayBuffer): string {
  return decodeUtf8Range(changetype<usize>(bytes), bytes.byteLength);
}

/** The text of `length` UTF-8 bytes at `start`; the caller keeps what they belong to alive. */
export function decodeUtf8Range(start: usize, length: i32): string {
  // A byte becomes at most one UTF-16 unit.
  const out = new ArrayBuffer(length << 1);
  const from = changetype<usize>(out);
  let to = from;
  let at: i32 = 0;
  while (at < length) {
    const lead: u32 = load<u8>(start + at);
    if (lead < 0x80) {
      store<u16>(to, lead as u16);
      to += 2;
      at += 1;
      continue;
    }
    const good = goodBytes(start + at, length - at);
    const whole = good > 0 && good == sequenceBytes(lead);
    to = put(to, whole ? character(start + at, good) : REPLACEMENT);
    at += max(good, 1);
  }
  return String.UTF16.decodeUnsafe(from, to - from);
}

/** How many bytes at the end are the beginning of a character that more bytes could complete. */
export function incompleteTail(start: usize, length: i32): i32 {
  const most = min(length, 3);
  for (let back = 1; back <= most; back++) {
    const lead: u32 = load<u8>(start + length - back);
    if ((lead & 0xc0) == 0x80) continue;
    const open = sequenceBytes(lead) > back && goodBytes(start + length - back, back) == back;
    return open ? back : 0;
  }
  return 0;
}

/** Turns bytes that come in pieces into text, and never cuts a character. */
export class Utf8Decoder {
  private rest: ArrayBuffer = new ArrayBuffer(0);

  /** The text that is complete after these bytes; the beginning of a character waits for more. */
  push(bytes: ArrayBuffer): string {
    const all = joined(this.rest, bytes);
    const start = changetype<usize>(all);
    const keep = incompleteTail(start, all.byteLength);
    const ready = all.byteLength - keep;
    this.rest = all.slice(ready);
    return decodeUtf8Range(start, ready);
  }

  /** The text of what still waits: U+FFFD when a character was never completed. */
  end(): string {
    const text = decodeUtf8(this.rest);
    this.rest = new ArrayBuffer(0);
    return text;
  }
}

function joined(head: ArrayBuffer, tail: ArrayBuffer): ArrayBuffer {
  if (head.byteLength == 0) return tail;
  const all = new ArrayBuffer(head.byteLength + tail.byteLength);
  const to = changetype<usize>(all);
  memory.copy(to, changetype<usize>(head), head.byteLength);
  memory.copy(to + head.byteLength, changetype<usize>(tail), tail.byteLength);
  return all;
}

/** The length that a first byte announces; 0 for a byte that begins nothing. */
function sequenceBytes(lead: u32): i32 {
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0; // a continuation, or an overlong form
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) return 3;
  return lead < 0xf5 ? 4 : 0; // past U+10FFFF
}

/** How many of the bytes at `at` (of `left`) belong to one well-formed, perhaps unfinished sequence. */
function goodBytes(at: usize, left: i32): i32 {
  const lead: u32 = load<u8>(at);
  const wanted = min(sequenceBytes(lead), left);
  if (wanted < 2) return wanted;
  // The second byte rules out overlong forms, surrogates and what lies past U+10FFFF.
  const second: u32 = load<u8>(at, 1);
  const low: u32 = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const high: u32 = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (second < low || second > high) return 1;
  let good = 2;
  while (good < wanted && (load<u8>(at + good) & 0xc0) == 0x80) good++;
  return good;
}

function character(at: usize, bytes: i32): u32 {
  let point: u32 = load<u8>(at) & (0x7f >> bytes);
  for (let i = 1; i < bytes; i++) point = (point << 6) | (load<u8>(at + i) & 0x3f);
  return point;
}

function put(to: usize, point: u32): usize {
  if (point < 0x10000) {
    store<u16>(to, point as u16);
    return to + 2;
  }
  const above = point - 0x10000;
  store<u16>(to, (0xd800 | (above >> 10)) as u16);
  store<u16>(to, (0xdc00 | (above & 0x3ff)) as u16, 2);
  return to + 4;
}
