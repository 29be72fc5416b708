// The model behind the server: what it is, and its tokenizer.

import { Errno, Result, check, errnoOf, failure, success } from "./errno";
import { Decoder, Encoder } from "./msgpack";
import * as raw from "./raw";
import { decodeUtf8, encodeUtf8 } from "./utf8";

/** What the model is. */
export class ModelInfo {
  name: string = "";
  vocabSize: i32 = 0;
  /** The tokens that end a text. */
  eos: Array<u32> = [];
  /** The token that begins one; -1 when there is none. */
  bos: i64 = -1;
  /** How long a file's positions may grow, in tokens. */
  maxContext: i32 = 0;
  /** Entries of a page. */
  pageSize: i32 = 0;
  dtype: string = "";
}

let known: ModelInfo | null = null;

/** What the model is; asks the host once. */
export function modelInfo(): ModelInfo {
  let info = known;
  if (info === null) {
    info = readModelInfo();
    known = info;
  }
  return info;
}

function readModelInfo(): ModelInfo {
  const bytes = new ArrayBuffer(max(raw.model_info(0, 0), 0));
  check(errnoOf(raw.model_info(changetype<usize>(bytes), bytes.byteLength)), "model_info");
  const info = new ModelInfo();
  const decoder = new Decoder(bytes);
  for (let pairs = decoder.map(); pairs > 0; pairs--) {
    const key = decoder.text();
    if (key == "name") info.name = decoder.text();
    else if (key == "vocab_size") info.vocabSize = decoder.integer() as i32;
    else if (key == "eos") info.eos = readTokens(decoder);
    else if (key == "bos") info.bos = decoder.nil() ? -1 : decoder.integer();
    else if (key == "max_context") info.maxContext = decoder.integer() as i32;
    else if (key == "page_size") info.pageSize = decoder.integer() as i32;
    else if (key == "dtype") info.dtype = decoder.text();
    else decoder.skip();
  }
  if (!decoder.finished) throw new Error("model_info: the answer is malformed");
  return info;
}

function readTokens(decoder: Decoder): Array<u32> {
  const tokens = new Array<u32>();
  for (let n = decoder.array(); n > 0; n--) tokens.push(decoder.unsigned() as u32);
  return tokens;
}

/** The tokens of a text. Adds no special tokens, and their spellings in the text stay text. */
export function tokenize(text: string): Result<Array<u32>> {
  const bytes = encodeUtf8(text);
  const from = changetype<usize>(bytes);
  // Few tokenizers make more tokens than bytes; one that does is asked a second time.
  let tokens = new Array<u32>(bytes.byteLength + 8);
  let count = raw.tokenize(from, bytes.byteLength, tokens.dataStart, tokens.length);
  if (count > tokens.length) {
    tokens = new Array<u32>(count);
    count = raw.tokenize(from, bytes.byteLength, tokens.dataStart, count);
  }
  if (count < 0) return failure<Array<u32>>(errnoOf(count), "tokenize");
  tokens.length = count;
  return success(tokens);
}

/** The tokens' bytes; a token may end inside a character, so pieces go through a `Utf8Decoder`. */
export function detokenizeBytes(tokens: Array<u32>): Result<ArrayBuffer> {
  const count = tokens.length;
  let bytes = new ArrayBuffer(16 + 16 * count);
  let length = raw.detokenize(
    tokens.dataStart, count, changetype<usize>(bytes), bytes.byteLength);
  if (length > bytes.byteLength) {
    bytes = new ArrayBuffer(length);
    length = raw.detokenize(tokens.dataStart, count, changetype<usize>(bytes), length);
  }
  if (length < 0) return failure<ArrayBuffer>(errnoOf(length), "detokenize");
  return success(bytes.slice(0, length));
}

/** The tokens' text. */
export function detokenize(tokens: Array<u32>): Result<string> {
  const bytes = detokenizeBytes(tokens);
  if (!bytes.ok) return failure<string>(bytes.errno, bytes.what);
  return success(decodeUtf8(bytes.unwrap()));
}

/**
 * The tokens of a conversation with tools: msgpack of a map of `messages`, and of `tools`,
 * `variables`, `add_generation_prompt` and `continue_final_message`, as the ABI has them.
 */
export function chatWith(conversation: ArrayBuffer): Result<Array<u32>> {
  const from = changetype<usize>(conversation);
  let tokens = new Array<u32>(conversation.byteLength + 64);
  let count = raw.chat_with(from, conversation.byteLength, tokens.dataStart, tokens.length);
  if (count > tokens.length) {
    tokens = new Array<u32>(count);
    count = raw.chat_with(from, conversation.byteLength, tokens.dataStart, count);
  }
  if (count < 0) return failure<Array<u32>>(errnoOf(count), "chat_with");
  tokens.length = count;
  return success(tokens);
}

/** A conversation, for `tokens` through the model's own chat template. */
export class Chat {
  private encoder: Encoder = new Encoder();
  private count: i32 = 0;

  /** Adds a message. */
  add(role: string, content: string): Chat {
    this.encoder.map(2).text("role").text(role).text("content").text(content);
    this.count++;
    return this;
  }

  /** The conversation's tokens, ready for the assistant's answer. */
  tokens(): Result<Array<u32>> {
    const list = new Encoder().array(this.count).encoded(this.encoder.bytes()).bytes();
    const from = changetype<usize>(list);
    let tokens = new Array<u32>(list.byteLength + 64);
    let count = raw.chat(from, list.byteLength, tokens.dataStart, tokens.length);
    if (count > tokens.length) {
      tokens = new Array<u32>(count);
      count = raw.chat(from, list.byteLength, tokens.dataStart, count);
    }
    if (count < 0) return failure<Array<u32>>(errnoOf(count), "chat");
    tokens.length = count;
    return success(tokens);
  }
}
