// JSON for a program's input and output: a strict reader (RFC 8259) and a quoter. There are larger
// libraries; this one exists because a run's input comes from strangers, and it tells them what is
// wrong where others would read 1.5 as an integer or a missing list as an empty one.

import { decimal } from "./decimal";
import { Errno, Result } from "./errno";
import { failure, success } from "./failure";
import { decodeUtf8 } from "./utf8";

const DEPTH_MAX: i32 = 64;

/** What a JSON value is. */
export enum JsonKind {
  NULL,
  BOOLEAN,
  NUMBER,
  STRING,
  ARRAY,
  OBJECT,
}

/** A JSON value. A method that asks for another kind than there is ends the program with words. */
export class Json {
  /** The items of an array or the values of an object. */
  readonly items: Array<Json> = [];
  /** The keys of an object, in order. */
  readonly keys: Array<string> = [];
  private word: string = "";
  private amount: f64 = 0;

  constructor(
    /** What it is. */
    readonly kind: JsonKind,
  ) {}

  /** Reads a text; a text that is no JSON ends the program with the place and the reason. */
  static parse(text: string): Json {
    return Json.tryParse(text).value;
  }

  /** Reads UTF-8 bytes, as `parse` does. */
  static parseBytes(bytes: ArrayBuffer): Json {
    return Json.parse(decodeUtf8(bytes));
  }

  static tryParse(text: string): Result<Json> {
    const reader = new JsonReader(text);
    const value = reader.read();
    if (reader.error.length) return failure<Json>(Errno.EINVAL, "JSON", reader.error);
    return success(value);
  }

  static ofString(value: string): Json {
    const json = new Json(JsonKind.STRING);
    json.word = value;
    return json;
  }

  static ofNumber(value: f64): Json {
    const json = new Json(JsonKind.NUMBER);
    json.amount = value;
    return json;
  }

  static ofBoolean(value: bool): Json {
    const json = new Json(JsonKind.BOOLEAN);
    json.amount = value ? 1 : 0;
    return json;
  }

  /** The string. */
  string(): string {
    this.expect(JsonKind.STRING);
    return this.word;
  }

  /** The number. */
  number(): f64 {
    this.expect(JsonKind.NUMBER);
    return this.amount;
  }

  /** The number, which must be whole and exact (up to 2^53). */
  integer(): i64 {
    this.expect(JsonKind.NUMBER);
    if (this.amount != Math.floor(this.amount) || Math.abs(this.amount) > 9007199254740992.0) {
      throw new Error("JSON: expected a whole number, found " + this.amount.toString());
    }
    return this.amount as i64;
  }

  /** True or false. */
  boolean(): bool {
    this.expect(JsonKind.BOOLEAN);
    return this.amount != 0;
  }

  /** The items of an array. */
  array(): Array<Json> {
    this.expect(JsonKind.ARRAY);
    return this.items;
  }

  /** The items of an array of strings. */
  strings(): Array<string> {
    const items = this.array();
    const all = new Array<string>(items.length);
    for (let i = 0; i < items.length; i++) all[i] = items[i].string();
    return all;
  }

  /** An object's value under `key` (the last one, when it stands there twice), or null. */
  get(key: string): Json | null {
    this.expect(JsonKind.OBJECT);
    for (let i = this.keys.length - 1; i >= 0; i--) {
      if (this.keys[i] == key) return this.items[i];
    }
    return null;
  }

  /** An object's value under `key`, which must be there. */
  at(key: string): Json {
    const found = this.get(key);
    if (found === null) throw new Error('JSON: there is no "' + key + '"');
    return found;
  }

  /** The string under `key`, or `other` when there is none. */
  stringOr(key: string, other: string): string {
    const found = this.get(key);
    return found === null ? other : found.string();
  }

  /** The number under `key`, or `other` when there is none. */
  numberOr(key: string, other: f64): f64 {
    const found = this.get(key);
    return found === null ? other : found.number();
  }

  /** The whole number under `key`, or `other` when there is none. */
  integerOr(key: string, other: i64): i64 {
    const found = this.get(key);
    return found === null ? other : found.integer();
  }

  /** What is true or false under `key`, or `other` when there is nothing. */
  booleanOr(key: string, other: bool): bool {
    const found = this.get(key);
    return found === null ? other : found.boolean();
  }

  /** The strings of the array under `key`, or `other` when there is none. */
  stringsOr(key: string, other: Array<string>): Array<string> {
    const found = this.get(key);
    return found === null ? other : found.strings();
  }

  private expect(kind: JsonKind): void {
    if (this.kind != kind) {
      throw new Error("JSON: expected " + kindName(kind) + ", found " + kindName(this.kind));
    }
  }
}

/** A string as JSON, quotes included. */
export function quote(text: string): string {
  let out = '"';
  let plain = 0; // the beginning of what needs no escape
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit >= 0x20 && unit != 0x22 && unit != 0x5c) continue;
    out += text.substring(plain, i) + escaped(unit);
    plain = i + 1;
  }
  return out + text.substring(plain) + '"';
}

function escaped(unit: i32): string {
  switch (unit) {
    case 0x22: return '\\"';
    case 0x5c: return "\\\\";
    case 0x0a: return "\\n";
    case 0x0d: return "\\r";
    case 0x09: return "\\t";
    default: return "\\u00" + (unit < 16 ? "0" : "") + unit.toString(16);
  }
}

function kindName(kind: JsonKind): string {
  switch (kind) {
    case JsonKind.NULL: return "null";
    case JsonKind.BOOLEAN: return "true or false";
    case JsonKind.NUMBER: return "a number";
    case JsonKind.STRING: return "a string";
    case JsonKind.ARRAY: return "an array";
    default: return "an object";
  }
}

class JsonReader {
  error: string = "";
  private at: i32 = 0;

  constructor(private readonly text: string) {}

  read(): Json {
    const value = this.value(0);
    if (this.peek() >= 0) this.fail("the end");
    return value;
  }

  /** The next unit that is no white space, or -1 at the end and after an error. */
  private peek(): i32 {
    if (this.error.length) return -1;
    const text = this.text;
    for (; this.at < text.length; this.at++) {
      const unit = text.charCodeAt(this.at);
      if (unit != 0x20 && unit != 0x0a && unit != 0x0d && unit != 0x09) return unit;
    }
    return -1;
  }

  private fail(wanted: string): Json {
    if (!this.error.length) {
      this.error = "expected " + wanted + " at character " + this.at.toString();
    }
    return new Json(JsonKind.NULL);
  }

  /** Passes over one unit when it comes next. */
  private next(unit: i32): bool {
    if (this.peek() != unit) return false;
    this.at++;
    return true;
  }

  private value(depth: i32): Json {
    const unit = this.peek();
    if (depth > DEPTH_MAX) return this.fail("less nesting");
    if (unit == 0x7b) return this.object(depth);
    if (unit == 0x5b) return this.array(depth);
    if (unit == 0x22) return Json.ofString(this.string());
    if (unit == 0x2d || isDigit(unit)) return this.number();
    if (this.word("true")) return Json.ofBoolean(true);
    if (this.word("false")) return Json.ofBoolean(false);
    return this.word("null") ? new Json(JsonKind.NULL) : this.fail("a value");
  }

  private word(word: string): bool {
    if (this.error.length || !this.text.startsWith(word, this.at)) return false;
    this.at += word.length;
    return true;
  }

  private array(depth: i32): Json {
    const value = new Json(JsonKind.ARRAY);
    this.at++;
    if (this.next(0x5d)) return value;
    do value.items.push(this.value(depth + 1)); while (this.next(0x2c));
    return this.next(0x5d) ? value : this.fail("',' or ']'");
  }

  private object(depth: i32): Json {
    const value = new Json(JsonKind.OBJECT);
    this.at++;
    if (this.next(0x7d)) return value;
    do {
      if (this.peek() != 0x22) return this.fail("a key");
      value.keys.push(this.string());
      if (!this.next(0x3a)) return this.fail("':'");
      value.items.push(this.value(depth + 1));
    } while (this.next(0x2c));
    return this.next(0x7d) ? value : this.fail("',' or '}'");
  }

  private string(): string {
    const text = this.text;
    let out = "";
    let plain = ++this.at;
    for (; this.at < text.length; this.at++) {
      const unit = text.charCodeAt(this.at);
      if (unit == 0x22) return out + text.substring(plain, this.at++);
      if (unit < 0x20) break;
      if (unit != 0x5c) continue;
      out += text.substring(plain, this.at) + this.escape();
      if (this.error.length) return "";
      plain = this.at + 1;
    }
    this.fail(this.at < text.length ? "no control character" : "the end of a string");
    return "";
  }

  /** What an escape stands for; the reader is left at its last unit. */
  private escape(): string {
    this.at++;
    const unit = this.at < this.text.length ? this.text.charCodeAt(this.at) : 0;
    switch (unit) {
      case 0x22: case 0x2f: case 0x5c: return String.fromCharCode(unit);
      case 0x62: return "\b";
      case 0x66: return "\f";
      case 0x6e: return "\n";
      case 0x72: return "\r";
      case 0x74: return "\t";
      case 0x75: return this.hexUnit();
    }
    this.fail("an escape");
    return "";
  }

  private hexUnit(): string {
    let unit: i32 = 0;
    for (let i = 0; i < 4; i++) {
      this.at++;
      const digit = this.at < this.text.length ? hexDigit(this.text.charCodeAt(this.at)) : -1;
      if (digit < 0) {
        this.fail("four hexadecimal digits");
        return "";
      }
      unit = (unit << 4) | digit;
    }
    return String.fromCharCode(unit);
  }

  private number(): Json {
    const from = this.at;
    if (this.here() == 0x2d) this.at++;
    if (this.here() == 0x30) this.at++; // nothing follows a leading zero
    else if (!this.digits()) return this.fail("a digit");
    if (this.here() == 0x2e) {
      this.at++;
      if (!this.digits()) return this.fail("a digit");
    }
    if ((this.here() | 0x20) == 0x65) {
      this.at++;
      if (this.here() == 0x2b || this.here() == 0x2d) this.at++;
      if (!this.digits()) return this.fail("a digit");
    }
    return Json.ofNumber(decimal(this.text.substring(from, this.at)));
  }

  private here(): i32 {
    return this.at < this.text.length ? this.text.charCodeAt(this.at) : -1;
  }

  private digits(): bool {
    const from = this.at;
    while (isDigit(this.here())) this.at++;
    return this.at > from;
  }
}

function isDigit(unit: i32): bool {
  return unit >= 0x30 && unit <= 0x39;
}

function hexDigit(unit: i32): i32 {
  if (isDigit(unit)) return unit - 0x30;
  const letter = unit | 0x20;
  return letter >= 0x61 && letter <= 0x66 ? letter - 0x57 : -1;
}
