// The model behind the server: what it is, and its tokenizer.

import { Errno, Result } from "./errno";
import { demand, errnoOf, failure, success, tokenCount } from "./failure";
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
  /** Numbers of a hidden state. */
  hiddenSize: i32 = 0;
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
  demand(raw.model_info(changetype<usize>(bytes), bytes.byteLength), "modelInfo");
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
    else if (key == "hidden_size") info.hiddenSize = decoder.integer() as i32;
    else if (key == "dtype") info.dtype = decoder.text();
    else decoder.skip();
  }
  if (!decoder.finished) throw new Error("modelInfo: the answer is malformed");
  return info;
}

function readTokens(decoder: Decoder): Array<u32> {
  const tokens = new Array<u32>();
  for (let n = decoder.array(); n > 0; n--) tokens.push(decoder.unsigned() as u32);
  return tokens;
}

/** The tokens of a text. Adds no special tokens, and their spellings in the text stay text. */
export function tokenize(text: string): Array<u32> {
  return tryTokenize(text).value;
}

export function tryTokenize(text: string): Result<Array<u32>> {
  const bytes = encodeUtf8(text);
  const from = changetype<usize>(bytes);
  // Few tokenizers make more tokens than bytes; one that does is asked a second time.
  let tokens = new Array<u32>(bytes.byteLength + 8);
  let count = raw.tokenize(from, bytes.byteLength, tokens.dataStart, tokens.length);
  if (count > tokens.length) {
    tokens = new Array<u32>(count);
    count = raw.tokenize(from, bytes.byteLength, tokens.dataStart, count);
  }
  if (count < 0) return failure<Array<u32>>(errnoOf(count), `tokenize(${bytes.byteLength} bytes)`);
  tokens.length = count;
  return success(tokens);
}

/** The tokens' bytes; a token may end inside a character, so pieces go through a `Utf8Decoder`. */
export function detokenizeBytes(tokens: Array<u32>): ArrayBuffer {
  return tryDetokenizeBytes(tokens).value;
}

export function tryDetokenizeBytes(tokens: Array<u32>): Result<ArrayBuffer> {
  const count = tokens.length;
  let bytes = new ArrayBuffer(16 + 16 * count);
  let length = raw.detokenize(
    tokens.dataStart, count, changetype<usize>(bytes), bytes.byteLength);
  if (length > bytes.byteLength) {
    bytes = new ArrayBuffer(length);
    length = raw.detokenize(tokens.dataStart, count, changetype<usize>(bytes), length);
  }
  if (length < 0) return failure<ArrayBuffer>(errnoOf(length), `detokenize(${tokenCount(count)})`);
  return success(bytes.slice(0, length));
}

/** The tokens' text. */
export function detokenize(tokens: Array<u32>): string {
  return decodeUtf8(detokenizeBytes(tokens));
}

/**
 * The tokens of a conversation with tools: msgpack of a map of `messages`, and of `tools`,
 * `variables`, `add_generation_prompt` and `continue_final_message`, as the ABI has them.
 */
export function chatWith(conversation: ArrayBuffer): Array<u32> {
  return tryChatWith(conversation).value;
}

export function tryChatWith(conversation: ArrayBuffer): Result<Array<u32>> {
  const from = changetype<usize>(conversation);
  const length = conversation.byteLength;
  let tokens = new Array<u32>(length + 64);
  let count = raw.chat_with(from, length, tokens.dataStart, tokens.length);
  if (count > tokens.length) {
    tokens = new Array<u32>(count);
    count = raw.chat_with(from, length, tokens.dataStart, count);
  }
  if (count < 0) return failure<Array<u32>>(errnoOf(count), `chat_with(${length} bytes)`);
  tokens.length = count;
  return success(tokens);
}

/** A conversation, rendered by the model's own chat template; `Session.chat` is the simpler way. */
export class Chat {
  private encoder: Encoder = new Encoder();
  private count: i32 = 0;

  /** Adds a message. */
  add(role: string, content: string): Chat {
    this.encoder.map(2).text("role").text(role).text("content").text(content);
    this.count++;
    return this;
  }

  /** A copy, to which others may add. */
  copy(): Chat {
    const copy = new Chat();
    copy.encoder.encoded(this.encoder.bytes());
    copy.count = this.count;
    return copy;
  }

  /** The conversation's tokens, ready for the assistant's answer. */
  tokens(): Array<u32> {
    return this.tryTokens().value;
  }

  tryTokens(): Result<Array<u32>> {
    const list = new Encoder().array(this.count).encoded(this.encoder.bytes()).bytes();
    const from = changetype<usize>(list);
    let tokens = new Array<u32>(list.byteLength + 64);
    let count = raw.chat(from, list.byteLength, tokens.dataStart, tokens.length);
    if (count > tokens.length) {
      tokens = new Array<u32>(count);
      count = raw.chat(from, list.byteLength, tokens.dataStart, count);
    }
    if (count < 0) return failure<Array<u32>>(errnoOf(count), `Chat.tokens(${this.count} messages)`);
    tokens.length = count;
    return success(tokens);
  }
}
