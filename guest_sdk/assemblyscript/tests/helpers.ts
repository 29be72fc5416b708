// What the SDK does without a server, for tests/guest_sdk/test_assemblyscript_sdk.py to call: each
// function reads bytes at `from`, leaves its answer where `answer` says and returns its length, or -1
// where the SDK refuses.

import {
  Decoder, Encoder, Json, JsonKind, JsonObject, Utf8Decoder, decodeUtf8, encodeUtf8, fill, quote,
} from "symphony-lip";

let result = new ArrayBuffer(0);

export function room(bytes: i32): usize {
  return heap.alloc(bytes);
}

export function release(at: usize): void {
  heap.free(at);
}

export function answer(): usize {
  return changetype<usize>(result);
}

function give(bytes: ArrayBuffer): i32 {
  result = bytes;
  return bytes.byteLength;
}

function copied(from: usize, length: i32): ArrayBuffer {
  const bytes = new ArrayBuffer(length);
  memory.copy(changetype<usize>(bytes), from, length);
  return bytes;
}

/** UTF-8 to UTF-16. */
export function utf8_decode(from: usize, length: i32): i32 {
  return give(String.UTF16.encode(decodeUtf8(copied(from, length))));
}

/** The same, in pieces of `step` bytes. */
export function utf8_pieces(from: usize, length: i32, step: i32): i32 {
  const decoder = new Utf8Decoder();
  let text = "";
  for (let at = 0; at < length; at += step) {
    text += decoder.push(copied(from + at, min(step, length - at)));
  }
  return give(String.UTF16.encode(text + decoder.end()));
}

/** UTF-16 to UTF-8. */
export function utf8_encode(from: usize, length: i32): i32 {
  return give(encodeUtf8(String.UTF16.decode(copied(from, length))));
}

/** A JSON string of a text in UTF-8. */
export function json_quote(from: usize, length: i32): i32 {
  return give(encodeUtf8(quote(decodeUtf8(copied(from, length)))));
}

/** JSON, read and written again. */
export function json_again(from: usize, length: i32): i32 {
  const value = Json.tryParse(decodeUtf8(copied(from, length)));
  return value.ok ? give(encodeUtf8(written(value.value))) : -1;
}

/** JSON of an object {text, whole, list}, by the typed readers, which end the program at a mistake. */
export function json_typed(from: usize, length: i32): i32 {
  const value = Json.parseBytes(copied(from, length));
  const text = value.at("text").string();
  const whole = value.integerOr("whole", 7);
  return give(encodeUtf8(`${text}|${whole}|${value.at("list").strings().join(",")}`));
}

function written(value: Json): string {
  switch (value.kind) {
    case JsonKind.NULL: return "null";
    case JsonKind.BOOLEAN: return value.boolean() ? "true" : "false";
    case JsonKind.NUMBER: return value.number().toString();
    case JsonKind.STRING: return quote(value.string());
  }
  const object = value.kind == JsonKind.OBJECT;
  let out = object ? "{" : "[";
  for (let i = 0; i < value.items.length; i++) {
    if (i) out += ",";
    if (object) out += quote(value.keys[i]) + ":";
    out += written(value.items[i]);
  }
  return out + (object ? "}" : "]");
}

/** A MessagePack value of the kind that `kind` names, read and written again. */
export function msgpack_again(from: usize, length: i32, kind: i32): i32 {
  const decoder = new Decoder(copied(from, length));
  const encoder = new Encoder();
  if (kind == 0) encoder.integer(decoder.integer());
  else if (kind == 1) encoder.unsigned(decoder.unsigned());
  else if (kind == 2) encoder.float(decoder.float());
  else if (kind == 3) encoder.text(decoder.text());
  else if (kind == 4) encoder.binary(decoder.binary());
  else if (kind == 5) encoder.boolean(decoder.boolean());
  else if (kind == 6) integers(decoder, encoder);
  else if (kind == 7) counts(decoder, encoder);
  else if (decoder.nil()) encoder.nil();
  else return -1;
  return decoder.finished ? give(encoder.bytes()) : -1;
}

/** How many values stand one after the other, all passed over. */
export function msgpack_skip(from: usize, length: i32): i32 {
  const decoder = new Decoder(copied(from, length));
  let values = 0;
  for (; !decoder.finished; values++) {
    decoder.skip();
    if (decoder.failed) return -1;
  }
  return values;
}

function integers(decoder: Decoder, encoder: Encoder): void {
  const items = decoder.array();
  encoder.array(items);
  for (let i = 0; i < items; i++) encoder.integer(decoder.integer());
}

function counts(decoder: Decoder, encoder: Encoder): void {
  const pairs = decoder.map();
  encoder.map(pairs);
  for (let i = 0; i < pairs; i++) encoder.text(decoder.text()).integer(decoder.integer());
}

/** A template filled: JSON {template, names, texts}. */
export function filled(from: usize, length: i32): i32 {
  const given = Json.parseBytes(copied(from, length));
  const names = given.at("names").strings();
  return give(encodeUtf8(fill(given.at("template").string(), names, given.at("texts").strings())));
}

/** JSON {text, whole, number, flag}, read and written as an object. */
export function object_again(from: usize, length: i32): i32 {
  const given = Json.parseBytes(copied(from, length));
  const object = new JsonObject().text("text", given.at("text").string());
  object.whole("whole", given.at("whole").integer()).number("number", given.at("number").number());
  object.number("none", f64.NaN).flag("flag", given.booleanOr("flag", false));
  return give(encodeUtf8(object.raw("list", `[${given.stringsOr("list", ["none"]).join(",")}]`).finish()));
}
