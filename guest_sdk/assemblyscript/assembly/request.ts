// A program as a model of the OpenAI routes: what its client asks, on any of them.

import { Constraint } from "./constraint";
import { Json, JsonKind, quote } from "./json";
import { chatWith, detokenize, tokenize } from "./model";
import { Encoder } from "./msgpack";
import { inputText } from "./process";
import { Sampling } from "./sampling";
import { refuse } from "./serve";
import { Session } from "./session";

const CHOICES_MAX: i64 = 128;
const ANY = '{"type": "object"}';
// A custom tool takes a text: as a function it has that as `input`.
const CUSTOM = '{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}';

/** A call of a tool in a conversation. */
export class PastCall {
  constructor(
    /** Its id, which the answer to it repeats. */
    readonly id: string,
    /** The tool's name. */
    readonly name: string,
    /** Its arguments: the text of a JSON object. */
    readonly arguments: string,
  ) {}
}

/** A message of a conversation. */
export class RequestMessage {
  /** The reasoning before an assistant's text. */
  reasoning: string = "";
  /** The calls that an assistant has made. */
  calls: Array<PastCall> = [];
  /** Of the role tool: the id of the call that it answers. */
  answers: string = "";

  constructor(
    /** "system", "developer", "user", "assistant" or "tool". */
    readonly role: string,
    /** Its text. */
    public content: string = "",
  ) {}
}

/** A function that the client offers. */
export class RequestTool {
  constructor(
    /** Its name. */
    readonly name: string,
    /** What it does, for a model to read. */
    readonly description: string,
    /** The JSON schema of its arguments. */
    readonly parameters: Json,
  ) {}
}

/**
 * What a client asks of a program that it calls as a model. Requests of `/v1/chat/completions`,
 * `/v1/responses` and `/v1/messages` have `messages`, those of `/v1/completions` have `prompts`.
 */
export class ModelRequest {
  /** The conversation, oldest first; instructions are its first message, of the role system. */
  messages: Array<RequestMessage> = [];
  /** The texts to continue. */
  prompts: Array<string> = [];
  /** The functions that the answer may call. */
  tools: Array<RequestTool> = [];
  /** Which of them it has to call: "none", "auto", "required", or "function", which `toolName` names. */
  toolChoice: string = "auto";
  toolName: string = "";
  /** How many answers it has to give to each prompt: `ModelAnswer.several`. */
  n: i32 = 1;
  /** Whether the client reads the answer as it comes; a program need not know. */
  stream: bool = false;
  /** How many tokens an answer may have, where the client says it; else -1. */
  maxTokens: i32 = -1;
  /** How many likeliest tokens the client wants with each token; -1: no log-probabilities. */
  logprobs: i32 = -1;
  /** How to generate: the client's `temperature` (1 where it gives none), `seed`, `stop` and the like. */
  sampling: Sampling = new Sampling();

  private constructor(
    /** All fields as they came, the client's own among them. */
    readonly body: Json,
  ) {}

  /** This run's. A request that is wrong is refused with status 400 and words. */
  static read(): ModelRequest {
    const text = inputText();
    if (!text.startsWith("{")) {
      const plain = new ModelRequest(new Json(JsonKind.OBJECT));
      plain.prompts = [text];
      return plain;
    }
    const parsed = Json.tryParse(text);
    if (!parsed.ok) refuse(parsed.reason);
    const request = new ModelRequest(parsed.value);
    request.readOptions();
    request.readMessages();
    request.readPrompts();
    request.readTools();
    request.readChoice();
    return request;
  }

  /** The conversation's or the first prompt's tokens, ready for the answer. */
  tokens(): Array<u32> {
    return this.prompts.length ? tokenize(this.prompts[0]) : chatWith(this.conversation());
  }

  /** A session with these tokens, whose next reply is the answer. */
  session(): Session {
    const session = new Session("");
    session.rewrite(this.tokens());
    return session;
  }

  /** What `response_format` holds the answer to; null for text. */
  constraint(): Constraint | null {
    let format = field(this.body, "response_format");
    const text = field(this.body, "text");
    if (format === null && text !== null) format = field(text, "format");
    if (format === null) return null;
    const kind = stringOf(format, "type", "response_format");
    if (kind == "text") return null;
    let schema = '{"type": "object"}';
    if (kind == "json_schema") {
      const inner = field(format, "json_schema");
      const given = field(inner === null ? format : inner, "schema");
      if (given === null) refuse("`response_format` needs a schema", "response_format");
      schema = jsonText(given!);
    } else if (kind != "json_object") {
      refuse("`response_format` is of type text, json_object or json_schema", "response_format");
    }
    const made = Constraint.tryJsonSchema(schema);
    if (!made.ok) refuse(made.reason, "response_format");
    return made.value;
  }

  private readOptions(): void {
    const body = this.body;
    const names = ["max_completion_tokens", "max_output_tokens", "max_tokens"];
    for (let i = 0; i < names.length && this.maxTokens < 0; i++) {
      this.maxTokens = wholeOf(body, names[i], -1, 1, i32.MAX_VALUE) as i32;
    }
    this.n = wholeOf(body, "n", 1, 1, CHOICES_MAX) as i32;
    this.stream = flagOf(body, "stream");
    const logprobs = field(body, "logprobs");
    if (logprobs !== null) {
      if (logprobs.kind != JsonKind.BOOLEAN) this.logprobs = wholeOf(body, "logprobs", -1, 0, 20) as i32;
      else if (logprobs.boolean()) this.logprobs = wholeOf(body, "top_logprobs", 0, 0, 20) as i32;
    }
    const sampling = this.sampling;
    sampling.maxTokens = this.maxTokens;
    sampling.temperature = numberOf(body, "temperature", 1);
    sampling.topP = numberOf(body, "top_p", 1);
    sampling.topK = wholeOf(body, "top_k", 0, 0, i32.MAX_VALUE) as i32;
    sampling.minP = numberOf(body, "min_p", 0);
    sampling.seed = wholeOf(body, "seed", -1, i64.MIN_VALUE, i64.MAX_VALUE);
    sampling.exact = flagOf(body, "ignore_eos");
    const stops = ["stop", "stop_sequences"];
    for (let i = 0; i < stops.length; i++) {
      const stop = field(body, stops[i]);
      if (stop === null) continue;
      if (stop.kind == JsonKind.STRING) sampling.stop.push(stop.string());
      else sampling.stop = sampling.stop.concat(textsOf(stop, stops[i]));
    }
  }

  private readPrompts(): void {
    const prompt = field(this.body, "prompt");
    if (prompt === null) return;
    const listed = prompt.kind == JsonKind.ARRAY && prompt.items.length > 0
      && prompt.items[0].kind != JsonKind.NUMBER;
    if (!listed) this.prompts.push(promptOf(prompt));
    else for (let i = 0; i < prompt.items.length; i++) this.prompts.push(promptOf(prompt.items[i]));
  }

  private readMessages(): void {
    const told = ["system", "instructions"];
    for (let i = 0; i < told.length; i++) {
      const value = field(this.body, told[i]);
      if (value !== null) this.messages.push(new RequestMessage("system", contentOf(value, told[i])));
    }
    const name = field(this.body, "messages") === null ? "input" : "messages";
    const items = field(this.body, name);
    if (items === null) return;
    if (name == "input" && items.kind == JsonKind.STRING) {
      this.messages.push(new RequestMessage("user", items.string()));
      return;
    }
    if (items.kind != JsonKind.ARRAY) refuse(`\`${name}\` has to be a list`, name);
    for (let i = 0; i < items.items.length; i++) this.readItem(items.items[i], name);
  }

  private readItem(item: Json, param: string): void {
    const kind = item.kind == JsonKind.OBJECT ? textOr(item, "type", "message", param) : "";
    if (kind == "message") {
      this.readMessage(item, param);
    } else if (kind == "function_call" || kind == "custom_tool_call") {
      const space = textOr(item, "namespace", "", param);
      const name = (space.length ? space + "__" : "") + stringOf(item, "name", param);
      let json = textOr(item, "arguments", "{}", param);
      if (kind != "function_call") json = `{"input":${quote(textOr(item, "input", "", param))}}`;
      const called = new PastCall(stringOf(item, "call_id", param), name, json);
      this.assistant().calls.push(called);
    } else if (kind == "function_call_output" || kind == "custom_tool_call_output") {
      this.answered(stringOf(item, "call_id", param), field(item, "output"), param);
    } else if (kind == "reasoning") {
      const texts = ["content", "summary"];
      for (let i = 0; i < texts.length; i++) {
        const parts = field(item, texts[i]);
        if (parts !== null) this.assistant().reasoning += contentOf(parts, param);
      }
    } else {
      refuse(`an item of \`${param}\` is of the type "${kind}", which is not known`, param);
    }
  }

  private readMessage(item: Json, param: string): void {
    const message = new RequestMessage(stringOf(item, "role", param));
    message.answers = textOr(item, "tool_call_id", "", param);
    message.reasoning = textOr(item, "reasoning_content", textOr(item, "reasoning", "", param), param);
    const content = field(item, "content");
    let results = false;
    if (content !== null && content.kind == JsonKind.ARRAY) {
      for (let i = 0; i < content.items.length; i++) {
        results = this.readPart(content.items[i], message, param) || results;
      }
    } else if (content !== null) {
      message.content = contentOf(content, param);
    }
    const calls = field(item, "tool_calls");
    if (calls !== null) {
      if (calls.kind != JsonKind.ARRAY) refuse("`tool_calls` has to be a list", param);
      for (let i = 0; i < calls.items.length; i++) message.calls.push(callOf(calls.items[i], param));
    }
    if (results && !message.content.length) return; // all of it was answers to calls
    const last = this.messages.length - 1;
    if (message.role == "assistant" && last >= 0 && opensOnly(this.messages[last])) {
      message.reasoning = this.messages[last].reasoning + message.reasoning;
      this.messages.pop();
    }
    this.messages.push(message);
  }

  /** Reads a part of a message; whether it is the answer to a call, which is a message of its own. */
  private readPart(part: Json, message: RequestMessage, param: string): bool {
    const kind = part.kind == JsonKind.OBJECT ? stringOf(part, "type", param) : "";
    if (kind == "text" || kind == "input_text" || kind == "output_text") {
      message.content += stringOf(part, "text", param);
    } else if (kind == "thinking") {
      message.reasoning += stringOf(part, "thinking", param);
    } else if (kind == "tool_use") {
      const given = field(part, "input");
      const json = given === null ? "{}" : jsonText(given);
      message.calls.push(new PastCall(stringOf(part, "id", param), stringOf(part, "name", param), json));
    } else if (kind == "tool_result") {
      this.answered(stringOf(part, "tool_use_id", param), field(part, "content"), param);
      return true;
    } else if (kind != "redacted_thinking") {
      refuse(`a message has a part of the type "${kind}": text only`, param);
    }
    return false;
  }

  private answered(call: string, content: Json | null, param: string): void {
    const message = new RequestMessage("tool", content === null ? "" : contentOf(content, param));
    message.answers = call;
    this.messages.push(message);
  }

  /** The assistant's message that items belong to which follow each other. */
  private assistant(): RequestMessage {
    const last = this.messages.length - 1;
    if (last >= 0 && this.messages[last].role == "assistant") return this.messages[last];
    const message = new RequestMessage("assistant");
    this.messages.push(message);
    return message;
  }

  /** The tools that the client runs, as functions; what a server would do, such as search, is left out. */
  private readTools(): void {
    const tools = field(this.body, "tools");
    if (tools !== null) this.addTools(tools, "");
  }

  /** Those of a namespace have its name before their own. */
  private addTools(tools: Json, before: string): void {
    if (tools.kind != JsonKind.ARRAY) refuse("`tools` has to be a list", "tools");
    for (let i = 0; i < tools.items.length; i++) {
      const tool = tools.items[i];
      const kind = textOr(tool, "type", "function", "tools");
      const inside = field(tool, "tools");
      if (kind == "namespace" && inside !== null) {
        this.addTools(inside, stringOf(tool, "name", "tools") + "__");
        continue;
      }
      let schema = field(tool, "input_schema");
      if (schema === null && kind != "function" && kind != "custom") continue;
      const inner = field(tool, "function");
      const told = inner === null ? tool : inner;
      if (schema === null) schema = field(told, "parameters");
      const description = textOr(told, "description", "", "tools");
      const parameters = schema === null ? Json.parse(kind == "custom" ? CUSTOM : ANY) : schema;
      this.tools.push(new RequestTool(before + stringOf(told, "name", "tools"), description, parameters));
    }
  }

  private readChoice(): void {
    const choice = field(this.body, "tool_choice");
    if (choice === null) return;
    const plain = choice.kind == JsonKind.STRING;
    const kind = plain ? choice.string() : stringOf(choice, "type", "tool_choice");
    if (kind == "none" || kind == "auto") {
      this.toolChoice = kind;
    } else if (kind == "required" || kind == "any") {
      this.toolChoice = "required";
    } else if (!plain && (kind == "function" || kind == "tool")) {
      const inner = field(choice, "function");
      this.toolChoice = "function";
      this.toolName = stringOf(inner === null ? choice : inner, "name", "tool_choice");
    } else {
      refuse("`tool_choice` has to be none, auto, required, or the name of a function", "tool_choice");
    }
  }

  /** The conversation as `chatWith` takes it. */
  private conversation(): ArrayBuffer {
    const offered = this.tools.length > 0 && this.toolChoice != "none";
    const out = new Encoder().map(offered ? 2 : 1).text("messages").array(this.messages.length);
    for (let i = 0; i < this.messages.length; i++) writeMessage(this.messages[i], out);
    if (!offered) return out.bytes();
    out.text("tools").array(this.tools.length);
    for (let i = 0; i < this.tools.length; i++) {
      const tool = this.tools[i];
      out.map(2).text("type").text("function").text("function").map(3).text("name").text(tool.name);
      out.text("description").text(tool.description).text("parameters");
      writeJson(tool.parameters, out);
    }
    return out.bytes();
  }
}

function opensOnly(message: RequestMessage): bool {
  return message.role == "assistant" && !message.content.length && !message.calls.length;
}

function writeMessage(message: RequestMessage, out: Encoder): void {
  const reasons = message.reasoning.length > 0;
  const calls = message.calls;
  const answers = message.answers.length > 0;
  out.map(2 + (reasons ? 1 : 0) + (calls.length ? 1 : 0) + (answers ? 1 : 0));
  out.text("role").text(message.role).text("content").text(message.content);
  if (reasons) out.text("reasoning_content").text(message.reasoning);
  if (answers) out.text("tool_call_id").text(message.answers);
  if (!calls.length) return;
  out.text("tool_calls").array(calls.length);
  for (let i = 0; i < calls.length; i++) {
    out.map(3).text("id").text(calls[i].id).text("type").text("function").text("function").map(2);
    out.text("name").text(calls[i].name).text("arguments");
    const read = Json.tryParse(calls[i].arguments);
    if (read.ok) writeJson(read.value, out);
    else out.text(calls[i].arguments);
  }
}

/** Writes a JSON value as MessagePack. */
function writeJson(value: Json, out: Encoder): void {
  switch (value.kind) {
    case JsonKind.NULL: out.nil(); break;
    case JsonKind.BOOLEAN: out.boolean(value.boolean()); break;
    case JsonKind.STRING: out.text(value.string()); break;
    case JsonKind.NUMBER: {
      const number = value.number();
      if (isWhole(number)) out.integer(number as i64);
      else out.float(number);
      break;
    }
    case JsonKind.ARRAY: {
      out.array(value.items.length);
      for (let i = 0; i < value.items.length; i++) writeJson(value.items[i], out);
      break;
    }
    default: {
      out.map(value.items.length);
      for (let i = 0; i < value.items.length; i++) writeJson(value.items[i], out.text(value.keys[i]));
    }
  }
}

/** A JSON value's text. */
export function jsonText(value: Json): string {
  if (value.kind == JsonKind.STRING) return quote(value.string());
  if (value.kind == JsonKind.BOOLEAN) return value.boolean() ? "true" : "false";
  if (value.kind == JsonKind.NULL) return "null";
  if (value.kind == JsonKind.NUMBER) {
    const number = value.number();
    return isWhole(number) ? (number as i64).toString() : number.toString();
  }
  const object = value.kind == JsonKind.OBJECT;
  let text = object ? "{" : "[";
  for (let i = 0; i < value.items.length; i++) {
    if (i) text += ",";
    if (object) text += quote(value.keys[i]) + ":";
    text += jsonText(value.items[i]);
  }
  return text + (object ? "}" : "]");
}

function isWhole(number: f64): bool {
  return number == Math.floor(number) && Math.abs(number) <= 9007199254740992.0;
}

// --- Fields: what is wrong is a refusal that names the parameter ------------------------------------

/** A member, unless there is none or it is null. */
function field(value: Json, name: string): Json | null {
  if (value.kind != JsonKind.OBJECT) return null;
  const found = value.get(name);
  return found === null || found.kind == JsonKind.NULL ? null : found;
}

function stringOf(value: Json, name: string, param: string): string {
  const found = field(value, name);
  if (found === null || found.kind != JsonKind.STRING) {
    refuse(`\`${param}\` needs a \`${name}\`, a text`, param);
  }
  return found!.string();
}

function textOr(value: Json, name: string, other: string, param: string): string {
  return field(value, name) === null ? other : stringOf(value, name, param);
}

function wholeOf(body: Json, name: string, other: i64, low: i64, high: i64): i64 {
  const found = field(body, name);
  if (found === null) return other;
  const good = found.kind == JsonKind.NUMBER && isWhole(found.number());
  if (!good || found.integer() < low || found.integer() > high) {
    refuse(`\`${name}\` has to be a whole number from ${low} to ${high}`, name);
  }
  return found.integer();
}

function numberOf(body: Json, name: string, other: f64): f64 {
  const found = field(body, name);
  if (found === null) return other;
  if (found.kind != JsonKind.NUMBER) refuse(`\`${name}\` has to be a number`, name);
  return found.number();
}

function flagOf(body: Json, name: string): bool {
  const found = field(body, name);
  if (found === null) return false;
  if (found.kind != JsonKind.BOOLEAN) refuse(`\`${name}\` has to be true or false`, name);
  return found.boolean();
}

function textsOf(value: Json, param: string): Array<string> {
  const good = value.kind == JsonKind.ARRAY;
  for (let i = 0; i < value.items.length; i++) {
    if (value.items[i].kind != JsonKind.STRING) refuse(`\`${param}\` has to be a list of texts`, param);
  }
  if (!good) refuse(`\`${param}\` has to be a list of texts`, param);
  return value.strings();
}

/** A text, or that of token ids. */
function promptOf(value: Json): string {
  if (value.kind == JsonKind.STRING) return value.string();
  const tokens = new Array<u32>(0);
  for (let i = 0; i < value.items.length; i++) {
    const id = value.items[i];
    const good = id.kind == JsonKind.NUMBER && isWhole(id.number()) && id.number() >= 0;
    if (!good || id.number() > 4294967295.0) break;
    tokens.push(id.number() as u32);
  }
  if (value.kind != JsonKind.ARRAY || tokens.length < value.items.length) {
    refuse("`prompt` has to be a text, token ids, or a list of several of either", "prompt");
  }
  return detokenize(tokens);
}

/** A text, or the texts of parts. */
function contentOf(value: Json, param: string): string {
  if (value.kind == JsonKind.STRING) return value.string();
  if (value.kind != JsonKind.ARRAY) refuse(`a content of \`${param}\` has to be a text or parts`, param);
  let text = "";
  for (let i = 0; i < value.items.length; i++) text += textOr(value.items[i], "text", "", param);
  return text;
}

function callOf(call: Json, param: string): PastCall {
  const inner = field(call, "function");
  if (inner === null) refuse("a call in `tool_calls` needs a `function`", param);
  const json = textOr(inner!, "arguments", "{}", param);
  return new PastCall(stringOf(call, "id", param), stringOf(inner!, "name", param), json);
}
