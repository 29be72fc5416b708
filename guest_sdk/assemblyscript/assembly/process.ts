// The run itself: its input, its user, its clock, its children and its tenant's channels.

import { Errno, Outcome, Result } from "./errno";
import { demand, failure, named, outcome, success } from "./failure";
import { KvFile } from "./kv";
import { Decoder, Encoder } from "./msgpack";
import * as raw from "./raw";
import { Ticket } from "./tickets";
import { decodeUtf8, encodeUtf8 } from "./utf8";

/** The run's input bytes. */
export function input(): ArrayBuffer {
  const bytes = new ArrayBuffer(max(raw.input_read(0, 0), 0));
  demand(raw.input_read(changetype<usize>(bytes), bytes.byteLength), "input");
  return bytes;
}

/** The run's input as text. */
export function inputText(): string {
  return decodeUtf8(input());
}

/** Sends one message to the user of the run; waits while a connected reader is slow. */
export function send(text: string): void {
  sendBytes(encodeUtf8(text));
}

export function trySend(text: string): Outcome {
  return trySendBytes(encodeUtf8(text));
}

/** Sends one message of any bytes. */
export function sendBytes(bytes: ArrayBuffer): void {
  const length = bytes.byteLength;
  const done = raw.send(changetype<usize>(bytes), length);
  if (done < 0) demand(done, `send(${length} bytes)`);
}

export function trySendBytes(bytes: ArrayBuffer): Outcome {
  const length = bytes.byteLength;
  return outcome(raw.send(changetype<usize>(bytes), length), `send(${length} bytes)`);
}

/** An item of a channel that comes. */
export class Item extends Ticket {
  /** Suspends until it is there. */
  text(): string {
    return decodeUtf8(this.bytes());
  }
}

/** A message from the user that comes. */
export class Incoming extends Ticket {
  /** Suspends until it is there; null when the user has closed. */
  text(): string | null {
    const bytes = this.tryBytes();
    return bytes.errno == Errno.EPIPE ? null : decodeUtf8(bytes.value);
  }
}

/** The next message from the user. */
export function recv(): Incoming {
  return new Incoming(raw.recv(), "recv");
}

/** How much a log line matters. */
export enum LogLevel {
  DEBUG = 0,
  INFO = 1,
  WARNING = 2,
  ERROR = 3,
}

/** A line that is kept with the run. */
export function log(text: string, level: LogLevel = LogLevel.INFO): void {
  const bytes = encodeUtf8(text);
  demand(raw.log(level, changetype<usize>(bytes), bytes.byteLength), "log");
}

/** Ends the program with this exit code. */
export function exit(code: i32): void {
  raw.exit(code);
}

/** Ends the program because of something that its user should know: a line in the log, then `exit`. */
export function fail(text: string, code: i32 = 1): void {
  log(text, LogLevel.ERROR);
  raw.exit(code);
}

/** Milliseconds since the program started. */
export function clockMs(): i64 {
  return raw.clock_ms();
}

/** Milliseconds since 1970. */
export function unixMs(): i64 {
  return raw.unix_ms();
}

/** Random bytes, at most 64 KiB at once. */
export function randomBytes(count: i32): ArrayBuffer {
  const bytes = new ArrayBuffer(count);
  demand(raw.random(changetype<usize>(bytes), count), `randomBytes(${count})`);
  return bytes;
}

/** A random number, for a seed. */
export function randomU64(): u64 {
  return load<u64>(changetype<usize>(randomBytes(8)));
}

/** Done after this many milliseconds. */
export function sleep(ms: i64): Ticket {
  return new Ticket(raw.sleep(ms), "sleep");
}

/** What a child is to be; `spawn` starts it. */
export class Child {
  /** A program of the tenant; "" is this one. */
  program: string = "";
  /** The exported function to start at; "" is the program's ordinary entry. */
  entry: string = "";
  /** What the child reads with `input`. */
  input: ArrayBuffer = new ArrayBuffer(0);
  private grants: Encoder = new Encoder();
  private granted: i32 = 0;

  /** The child gets a handle of its own on `file` under `name`, with at most these rights. */
  grant(file: KvFile, rights: u32, name: string): Child {
    this.grants.map(3).text("handle").integer(file.handle);
    this.grants.text("rights").unsigned(rights).text("name").text(name);
    this.granted++;
    return this;
  }

  /** Starts it. */
  spawn(): Spawned {
    const named = (this.program.length ? 1 : 0) + (this.entry.length ? 1 : 0);
    const what = new Encoder().map(2 + named);
    if (this.program.length) what.text("program").text(this.program);
    if (this.entry.length) what.text("entry").text(this.entry);
    what.text("input").binary(this.input);
    what.text("grants").array(this.granted).encoded(this.grants.bytes());
    const bytes = what.bytes();
    return new Spawned(raw.spawn(changetype<usize>(bytes), bytes.byteLength), "Child.spawn");
  }
}

/** A child that is being started. */
export class Spawned extends Ticket {
  /** Suspends until the child runs; its number. */
  pid(): i32 {
    return this.tryPid().value;
  }

  tryPid(): Result<i32> {
    const bytes = this.tryBytes();
    if (!bytes.ok) return this.error<i32>();
    if (this.payload.byteLength != 4) return failure<i32>(Errno.EIO, this.call);
    return success(load<i32>(changetype<usize>(this.payload)));
  }
}

/** How a child ended. */
export class Ended {
  constructor(
    /** Its exit code. */
    readonly code: i32,
    /** What it sent, one after the other. */
    readonly output: ArrayBuffer,
  ) {}

  /** What it sent, as text. */
  get text(): string {
    return decodeUtf8(this.output);
  }
}

/** A child whose end is waited for. */
export class Joined extends Ticket {
  /** Suspends until the child has ended. */
  ended(): Ended {
    return this.tryEnded().value;
  }

  tryEnded(): Result<Ended> {
    const bytes = this.tryBytes();
    if (!bytes.ok) return this.error<Ended>();
    const decoder = new Decoder(this.payload);
    let code: i32 = 0;
    let output = new ArrayBuffer(0);
    for (let pairs = decoder.map(); pairs > 0; pairs--) {
      const key = decoder.text();
      if (key == "code") code = decoder.integer() as i32;
      else if (key == "output") output = decoder.binary();
      else decoder.skip();
    }
    if (!decoder.finished) return failure<Ended>(Errno.EIO, this.call);
    return success(new Ended(code, output));
  }
}

/** Waits for a child's end. */
export function join(pid: i32): Joined {
  return new Joined(raw.join(pid), `join(${pid})`);
}

/** A named queue of the tenant, which all its runs share. */
export class Channel {
  constructor(
    /** Its name. */
    readonly name: string,
  ) {}

  /** Puts a text into the queue; EAGAIN when it stayed full. */
  send(text: string): void {
    this.trySend(text).demand();
  }

  trySend(text: string): Outcome {
    return this.trySendBytes(encodeUtf8(text));
  }

  /** Puts bytes into the queue. */
  sendBytes(bytes: ArrayBuffer): void {
    this.trySendBytes(bytes).demand();
  }

  trySendBytes(bytes: ArrayBuffer): Outcome {
    const name = encodeUtf8(this.name);
    const from = changetype<usize>(bytes);
    const length = bytes.byteLength;
    const done = raw.channel_send(changetype<usize>(name), name.byteLength, from, length);
    return outcome(done, named("Channel.send", this.name));
  }

  /** The next item. */
  recv(): Item {
    const name = encodeUtf8(this.name);
    const item = raw.channel_recv(changetype<usize>(name), name.byteLength);
    return new Item(item, named("Channel.recv", this.name));
  }
}
