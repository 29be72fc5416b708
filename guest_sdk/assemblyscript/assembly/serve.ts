// A program as a model of the OpenAI routes: what its client gets. Each thing that is written is sent at
// once, as a record; the records are described in the server's docs (reference/http.md).

import { Finish } from "./generation";
import { Encoder } from "./msgpack";
import { detokenizeBytes } from "./model";
import { Choice } from "./pred";
import { LogLevel, exit, log, sendBytes } from "./process";
import { encodeUtf8 } from "./utf8";

const PART_CHARACTERS: i32 = 16 << 10; // a record has 64 KiB at most, a character up to 3 bytes
const GOING: u8 = 255;

/** Why an answer has ended. */
export enum FinishReason {
  /** It is complete. */
  STOP = 0,
  /** It has as many tokens as wanted. */
  LENGTH = 1,
  /** The client has to call tools. */
  TOOL_CALLS = 2,
  /** The rest was left out. */
  CONTENT_FILTER = 3,
}

/**
 * One choice of the answer to a request. Unless `finish` says why it has ended, it ends with the program:
 * for tool calls if it has some, else because it is complete. A program with such an answer sends nothing
 * by `send`.
 */
export class ModelAnswer {
  private calls: i32 = 0;
  private opened: bool = false;

  constructor(
    /** Its number, from 0 on. */
    readonly choice: i32 = 0,
  ) {}

  /** So many choices: `ModelRequest.n` of them to each prompt, in this order. */
  static several(count: i32): Array<ModelAnswer> {
    const answers = new Array<ModelAnswer>(0);
    for (let choice = 0; choice < count; choice++) answers.push(new ModelAnswer(choice));
    return answers;
  }

  /** The next text. */
  text(text: string): void {
    for (let at = 0; at < text.length; ) {
      const part = partAt(text, at);
      at += part.length;
      this.write(0x70, new Bytes().byte(GOING).text(part)); // p
    }
  }

  /** The next text, with its tokens' log-probabilities: of a few, since a record has an end. */
  textWith(text: string, choices: Array<Choice>): void {
    const entries = new Encoder().array(choices.length);
    for (let i = 0; i < choices.length; i++) {
      const best = choices[i].best;
      entries.array(3);
      writeToken(choices[i], entries);
      entries.array(best.length);
      for (let k = 0; k < best.length; k++) writeToken(best[k], entries.array(2));
    }
    const bytes = encodeUtf8(text);
    const told = new Bytes().byte(GOING).u32(bytes.byteLength).raw(bytes);
    this.write(0x6c, told.raw(entries.bytes())); // l
  }

  /** The next text of the reasoning, which is no part of the answer. */
  reasoning(text: string): void {
    for (let at = 0; at < text.length; ) {
      const part = partAt(text, at);
      at += part.length;
      this.write(0x72, new Bytes().text(part)); // r
    }
  }

  /** Begins a call of one of the client's tools. Its name has letters, digits, _ and -. */
  call(name: string): AnswerCall {
    this.write(0x63, new Bytes().u16(this.calls).text(name)); // c
    return new AnswerCall(this, this.calls++);
  }

  /** Ends it. */
  finish(reason: FinishReason): void {
    this.write(0x70, new Bytes().byte(reason as u8));
  }

  /** Ends it for the reason of a reply or a generation. */
  finishAs(finish: Finish): void {
    this.finish(finish == Finish.LENGTH ? FinishReason.LENGTH : FinishReason.STOP);
  }

  /** Writes a record of this choice (for `AnswerCall`). */
  write(kind: u8, rest: Bytes): void {
    sendRecord(!this.opened, kind, new Bytes().u16(this.choice).raw(rest.bytes()));
    this.opened = true;
  }
}

/** A call of a tool that is being written. */
export class AnswerCall {
  constructor(
    private readonly answer: ModelAnswer,
    private readonly number: i32,
  ) {}

  /** The next text of its arguments: in all they have to be a JSON object. */
  arguments(json: string): void {
    for (let at = 0; at < json.length; ) {
      const part = partAt(json, at);
      at += part.length;
      this.answer.write(0x61, new Bytes().u16(this.number).text(part)); // a
    }
  }
}

/**
 * Says how many tokens the request took, instead of what the server has counted of the program's own
 * passes. The answer is complete with it: the client gets it while the program goes on.
 */
export function answerUsage(prompt: i32, cached: i32, completion: i32): void {
  sendRecord(true, 0x75, new Bytes().u32(prompt).u32(cached).u32(completion)); // u
}

/**
 * Ends the program with an error that the client gets: 400 is a mistake of the client's, as all from 400
 * to 499; one from 500 to 599 is the program's, and clients try again, as after 429.
 */
export function refuse(
  message: string, param: string = "", status: i32 = 400, code: string = "invalid_request",
): void {
  const shown = message.substring(0, 2_000);
  const told = new Encoder().map(4).text("status").integer(status).text("code").text(code);
  told.text("param").text(param.substring(0, 200)).text("message").text(shown);
  if (status >= 500) log(message, LogLevel.ERROR);
  sendRecord(true, 0x65, new Bytes().raw(told.bytes())); // e
  exit(status >= 500 ? 1 : 0);
}

function writeToken(choice: Choice, out: Encoder): void {
  out.binary(detokenizeBytes([choice.token])).float(choice.logprob);
}

/** A part of a text that fits into a record and breaks no character. */
function partAt(text: string, at: i32): string {
  let end = min(at + PART_CHARACTERS, text.length);
  if (end < text.length && (text.charCodeAt(end) & 0xfc00) == 0xdc00) end++;
  return text.substring(at, end);
}

function sendRecord(begins: bool, kind: u8, rest: Bytes): void {
  const record = new Bytes();
  // What the messages begin with; the last byte is the version of the records.
  if (begins) record.u32(0xffff_ffff).byte(0x4c).byte(0x49).byte(0x50).byte(1);
  const bytes = rest.bytes();
  sendBytes(record.u32(1 + bytes.byteLength).byte(kind).raw(bytes).bytes());
}

/** Bytes one after the other, little-endian; each method returns the same. */
class Bytes {
  private buffer: ArrayBuffer = new ArrayBuffer(64);
  private used: i32 = 0;

  bytes(): ArrayBuffer {
    return this.buffer.slice(0, this.used);
  }

  byte(value: u8): Bytes {
    store<u8>(this.room(1), value);
    return this;
  }

  u16(value: i32): Bytes {
    store<u16>(this.room(2), value as u16);
    return this;
  }

  u32(value: u32): Bytes {
    store<u32>(this.room(4), value);
    return this;
  }

  text(value: string): Bytes {
    return this.raw(encodeUtf8(value));
  }

  raw(value: ArrayBuffer): Bytes {
    memory.copy(this.room(value.byteLength), changetype<usize>(value), value.byteLength);
    return this;
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
