// Tools: what the servers that the operator attached can do for a program.

import { Errno, Result } from "./errno";
import { errnoOf, failure, named, success } from "./failure";
import { Json } from "./json";
import { Decoder, Encoder } from "./msgpack";
import * as raw from "./raw";
import { Ticket } from "./tickets";

/** What a tool is given, by name. */
export class Arguments {
  private written: Encoder = new Encoder();
  private count: i32 = 0;

  /** A text. */
  text(name: string, value: string): Arguments {
    this.named(name).text(value);
    return this;
  }

  /** A whole number. */
  integer(name: string, value: i64): Arguments {
    this.named(name).integer(value);
    return this;
  }

  /** True or false. */
  boolean(name: string, value: bool): Arguments {
    this.named(name).boolean(value);
    return this;
  }

  /** Any value that is MessagePack already. */
  encoded(name: string, value: ArrayBuffer): Arguments {
    this.named(name).encoded(value);
    return this;
  }

  /** All of it, as the ABI has it. */
  writeTo(out: Encoder): void {
    out.map(this.count).encoded(this.written.bytes());
  }

  private named(name: string): Encoder {
    this.count++;
    return this.written.text(name);
  }
}

/** What a tool answered. */
export class ToolAnswer {
  constructor(
    /** Whether it did what it was asked for; else `content` says why not. */
    readonly ok: bool,
    /** Its answer as text. */
    readonly content: string,
  ) {}
}

/** A call of a tool. */
export class ToolCall extends Ticket {
  /** Suspends until the tool has answered. ENOENT: there is no such tool; ETIMEDOUT; EFBIG. */
  answer(): ToolAnswer {
    return this.tryAnswer().value;
  }

  tryAnswer(): Result<ToolAnswer> {
    const bytes = this.tryBytes();
    if (!bytes.ok) return this.error<ToolAnswer>();
    const decoder = new Decoder(this.payload);
    let ok = false;
    let content = "";
    for (let pairs = decoder.map(); pairs > 0; pairs--) {
      const key = decoder.text();
      if (key == "ok") ok = decoder.boolean();
      else if (key == "content") content = decoder.text();
      else decoder.skip();
    }
    if (!decoder.finished) return failure<ToolAnswer>(Errno.EIO, this.call);
    return success(new ToolAnswer(ok, content));
  }
}

/** Calls a tool, which has to answer within `timeoutMs` (0: the operator's time). */
export function callTool(
  name: string, given: Arguments = new Arguments(), timeoutMs: i64 = 0,
): ToolCall {
  const request = new Encoder().map(timeoutMs > 0 ? 3 : 2).text("name").text(name);
  given.writeTo(request.text("arguments"));
  if (timeoutMs > 0) request.text("timeout_ms").integer(timeoutMs);
  const bytes = request.bytes();
  return new ToolCall(raw.tool(changetype<usize>(bytes), bytes.byteLength), named("callTool", name));
}

/** A tool that the program may call. */
export class Tool {
  /** Its server's name, a dot, its own. */
  name: string = "";
  /** What it does, for a model to read. */
  description: string = "";
  /** The JSON schema of its arguments. */
  schema: Json = Json.ofBoolean(true);
}

/** The tools that the program may call. */
export function listTools(): Array<Tool> {
  return tryListTools().value;
}

export function tryListTools(): Result<Array<Tool>> {
  let bytes = new ArrayBuffer(4096);
  let length = raw.tools(changetype<usize>(bytes), bytes.byteLength);
  while (length > bytes.byteLength) {
    bytes = new ArrayBuffer(length);
    length = raw.tools(changetype<usize>(bytes), length);
  }
  if (length < 0) return failure<Array<Tool>>(errnoOf(length), "listTools");
  const decoder = new Decoder(bytes.slice(0, length));
  const listed = new Array<Tool>(0);
  for (let items = decoder.array(); items > 0; items--) listed.push(toolOf(decoder));
  return decoder.finished ? success(listed) : failure<Array<Tool>>(Errno.EIO, "listTools");
}

function toolOf(decoder: Decoder): Tool {
  const tool = new Tool();
  for (let pairs = decoder.map(); pairs > 0; pairs--) {
    const key = decoder.text();
    if (key == "name") tool.name = decoder.text();
    else if (key == "description") tool.description = decoder.text();
    else if (key == "schema") tool.schema = decoder.json();
    else decoder.skip();
  }
  return tool;
}
