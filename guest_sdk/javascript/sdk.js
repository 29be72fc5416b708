// The module "symphony" of JavaScript programs, and the globals that they expect.
const raw = globalThis.raw;
const { fround, min, max } = Math;
const f = (bytes) => new Float32Array(bytes);
const u = (bytes) => new Uint32Array(bytes);

// --- Text ----------------------------------------------------------------------------------------
class TextEncoder {
  get encoding() {
    return "utf-8";
  }
  encode(text = "") {
    return raw.utf8_encode(String(text));
  }
}

class TextDecoder {
  #rest = new Uint8Array(0);
  get encoding() {
    return "utf-8";
  }
  decode(bytes = new Uint8Array(0), { stream = false } = {}) {
    const given = bytes instanceof ArrayBuffer
      ? new Uint8Array(bytes)
      : new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const all = new Uint8Array(this.#rest.length + given.length);
    all.set(this.#rest);
    all.set(given, this.#rest.length);
    const end = stream ? wholeCharacters(all) : all.length;
    this.#rest = all.slice(end);
    return raw.utf8_decode(all.subarray(0, end));
  }
}

/** How many of the bytes end with a whole character. */
function wholeCharacters(bytes) {
  for (let back = 1; back <= min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back];
    if (byte >= 0xc0) {
      const needs = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return needs > back ? bytes.length - back : bytes.length;
    }
    if (byte < 0x80) break;
  }
  return bytes.length;
}

function show(value) {
  if (typeof value === "string") return value;
  if (value instanceof Error) return value.stack ? `${value}\n${value.stack}` : String(value);
  if (typeof value === "object" && value !== null) {
    try {
      return JSON.stringify(value) ?? String(value);
    } catch {
      return Object.prototype.toString.call(value);
    }
  }
  return String(value);
}

const say = (level) => (...values) => raw.log(level, values.map(show).join(" "));
const console = { debug: say(0), log: say(1), info: say(1), warn: say(2), error: say(3) };

// --- Process -------------------------------------------------------------------------------------
const result = (ticket, call) => raw.result(ticket, call);

/** The run's input: JSON where it begins as an object or a list, else text. */
export function input() {
  const bytes = raw.input_read();
  const text = raw.utf8_decode(bytes);
  return /^\s*[[{]/.test(text) ? JSON.parse(text) : text;
}

export const inputBytes = () => raw.input_read();
export const send = (message) =>
  raw.send(typeof message === "string" || isBytes(message) ? message : JSON.stringify(message));
const isBytes = (value) => value instanceof Uint8Array || value instanceof ArrayBuffer;
export const log = (message, level = 1) => raw.log(level, String(message));
export const exit = (code = 0) => raw.exit(code);
export const clockMs = () => raw.clock_ms();
export const unixMs = () => raw.unix_ms();
export const random = (count) => raw.random(count);

/** The next message of the user as bytes; null: there will be none. */
export async function recvBytes() {
  try {
    return new Uint8Array(await result(raw.recv(), "recv"));
  } catch (error) {
    if (error.name === "EPIPE") return null;
    throw error;
  }
}

/** The next message of the user as text; null: there will be none. */
export async function recv() {
  const bytes = await recvBytes();
  return bytes === null ? null : raw.utf8_decode(bytes);
}

export async function sleep(ms) {
  await result(raw.sleep(ms), "sleep");
}

export class Child {
  constructor(pid) {
    this.pid = pid;
  }
  /** Waits for its end: { code, output, text }. */
  async join() {
    const ended = unpacked(await result(raw.join(this.pid), "join"));
    return { ...ended, text: raw.utf8_decode(ended.output) };
  }
}

export const PARENT = 0;

/** Starts a child, by default of the same source: { program, entry, input, grants }. */
export async function spawn({ program, entry, input: given = "", grants = [] } = {}) {
  const data = typeof given === "string" || isBytes(given) ? given : JSON.stringify(given);
  const granted = grants.map(({ file, rights = 31, name }) => ({
    handle: file.handle,
    rights,
    name,
  }));
  const made = { program, entry, input: data, grants: granted };
  return new Child(u(await result(raw.spawn(made), "spawn"))[0]);
}

export const channelSend = (name, message) => raw.channel_send(name, message);
export async function channelRecv(name) {
  return new Uint8Array(await result(raw.channel_recv(name), "channel_recv"));
}

// --- The outside ---------------------------------------------------------------------------------
/** Calls a tool: { ok, content }. */
export async function tool(name, args = {}, { timeoutMs } = {}) {
  const asked = { name, arguments: args, timeout_ms: timeoutMs };
  return unpacked(await result(raw.tool(asked), "tool"));
}

export const tools = () => raw.tools();

/** Makes an HTTP request: { status, headers, body, text() }. */
export async function http({ method, url, headers, body, timeoutMs }) {
  const asked = { method, url, headers, body, timeout_ms: timeoutMs };
  const answer = unpacked(await result(raw.http(asked), "http"));
  return { ...answer, text: () => raw.utf8_decode(answer.body) };
}

const unpacked = (bytes) => raw.unpack(bytes);

// --- The model -----------------------------------------------------------------------------------
let info;
export const modelInfo = () => (info ??= raw.model_info());
export const tokenize = (text) => raw.tokenize(text);
export const detokenizeBytes = (tokens) => raw.detokenize(tokens);
export const detokenize = (tokens) => raw.utf8_decode(raw.detokenize(tokens));
export const chat = (messages) => raw.chat(messages);
export const chatWith = (options) => raw.chat_with(options);

/** A grammar that texts keep to. */
export class Constraint {
  #own;
  constructor(kind, text) {
    this.handle = raw.constraint(kind, text);
    this.#own = raw.own(this.handle, 1);
  }
  static jsonSchema(schema) {
    return new Constraint(0, typeof schema === "string" ? schema : JSON.stringify(schema));
  }
  static regex(text) {
    return new Constraint(1, text);
  }
  static lark(text) {
    return new Constraint(2, text);
  }
  close() {
    raw.disown(this.#own);
    raw.constraint_close(this.handle);
  }
}

/** A set of the model's tokens. */
export class TokenSet {
  constructor(tokens = []) {
    this.bits = new Uint8Array((modelInfo().vocab_size + 7) >> 3);
    for (const token of tokens) this.insert(token);
  }
  insert(token) {
    if (token >>> 3 >= this.bits.length) throw new RangeError(`no token ${token}`);
    this.bits[token >>> 3] |= 1 << (token & 7);
  }
  has(token) {
    return ((this.bits[token >>> 3] >> (token & 7)) & 1) === 1;
  }
}

// --- Sampling ------------------------------------------------------------------------------------
const OPTIONS = new Set([
  "maxTokens", "temperature", "topP", "topK", "minP", "seed", "stop", "stopTokenIds", "exact",
  "logprobs", "logitBias", "biasMask", "repetitionPenalty", "allowedTokens", "constraint",
  "constraintSince", "share", "adapter", "lookahead", "chunk",
]);

function checked(options, known) {
  for (const name in options) {
    if (!known.has(name)) throw new TypeError(`there is no option ${name}`);
  }
  return options;
}

/** What changes a distribution, in the words of the ABI. */
function limitsOf(o) {
  return {
    logprobs: o.logprobs || undefined,
    bias: o.logitBias,
    bias_mask: o.biasMask && { mask: o.biasMask.tokens.bits, value: fround(o.biasMask.bias) },
    repetition: o.repetitionPenalty && {
      mask: o.repetitionPenalty.tokens.bits,
      penalty: fround(o.repetitionPenalty.penalty),
    },
    allow: o.allowedTokens?.bits,
    constraint: o.constraint?.handle,
    since: o.constraintSince,
    share: o.share || undefined,
    adapter: o.adapter || undefined,
  };
}

function choiceOf(o) {
  if (!(o.temperature > 0)) return undefined;
  const sample = {
    temperature: fround(o.temperature),
    top_k: o.topK ?? 0,
    top_p: fround(o.topP ?? 1),
    min_p: fround(o.minP ?? 0),
  };
  if (o.seed !== undefined && o.seed !== null) sample.seed = BigInt.asUintN(64, BigInt(o.seed));
  return { sample };
}

const endsOf = (o) => (o.exact ? [] : [...modelInfo().eos, ...(o.stopTokenIds ?? [])]);
const stopsOf = (o) => (o.exact ? [] : typeof o.stop === "string" ? [o.stop] : (o.stop ?? []));

/** The same sampling for one of several branches: where there is a seed, each has its own. */
export function branch(sampling, number) {
  if (sampling.seed === undefined || sampling.seed === null) return sampling;
  const apart = (BigInt(number) + 1n) * 0x9e3779b97f4a7c15n;
  return { ...sampling, seed: BigInt.asUintN(64, BigInt(sampling.seed) + apart) };
}

/** The sampling that an input asks for, by the names of the OpenAI API. */
export function samplingOf(given, tokens = "max_tokens", count = 16) {
  const named = {
    maxTokens: given[tokens] ?? count,
    temperature: given.temperature,
    topK: given.top_k,
    topP: given.top_p,
    minP: given.min_p,
    seed: given.seed,
    stop: given.stop,
    exact: given.ignore_eos,
  };
  return Object.fromEntries(Object.entries(named).filter(([, value]) => value != null));
}

// --- KV files ------------------------------------------------------------------------------------
const PRED = new Set([
  "positions", "at", "get", "keep", "parents", "top", "of", "since", ...OPTIONS,
]);

export class KvFile {
  #own;
  constructor(handle) {
    this.handle = handle;
    this.#own = raw.own(handle, 0);
  }
  static create() {
    return new KvFile(raw.kv_create());
  }
  static open(path, rights = 31) {
    return new KvFile(raw.kv_open(path, rights));
  }
  static granted(name) {
    return new KvFile(raw.kv_granted(name));
  }
  static remove(path) {
    raw.kv_remove(path);
  }
  static list(prefix = "") {
    const all = [];
    for (let after = ""; ; ) {
      const page = raw.kv_list_after(prefix, after, 1000);
      all.push(...page);
      if (page.length < 1000) return all;
      after = page[page.length - 1].path;
    }
  }
  /** A file of the longest offered prefix of these tokens; null: none is. */
  static matching(tokens) {
    try {
      return new KvFile(raw.kv_match(tokens));
    } catch (error) {
      if (error.name === "ENOENT") return null;
      throw error;
    }
  }
  fork() {
    return new KvFile(raw.kv_fork(this.handle));
  }
  extract(ranges) {
    return new KvFile(raw.kv_extract(this.handle, ranges.flat()));
  }
  append(source, start, end) {
    raw.kv_append(this.handle, source.handle, start, end);
  }
  truncate(length) {
    raw.kv_truncate(this.handle, length);
  }
  length() {
    return raw.kv_len(this.handle);
  }
  stat() {
    return raw.kv_stat(this.handle);
  }
  tokens(start = 0, end = this.length()) {
    return raw.kv_tokens(this.handle, start, max(end - start, 0));
  }
  save(path, { replace = false, durable = false, publicly = false } = {}) {
    raw.kv_save(this.handle, path, replace * 1 + durable * 2 + publicly * 4);
  }
  advise(hint, argument = 0) {
    const number = ["normal", "keep", "willNeed", "doNotNeed", "priority"].indexOf(hint);
    raw.kv_advise(this.handle, number, argument);
  }
  grant(pid, rights, name) {
    raw.kv_grant(this.handle, pid, rights, name);
  }
  offer() {
    return raw.kv_offer(this.handle);
  }
  close() {
    raw.disown(this.#own);
    raw.kv_close(this.handle);
  }
  /** Appends tokens: a pass that nothing is asked of. */
  async prefill(tokens) {
    await result(raw.pred(this.handle, tokens, undefined, { get: "none" }), "pred");
  }
  /**
   * One forward pass. By default the likeliest next token: { token, logprob }. With `temperature`
   * it is drawn; `top: k` gives a list of them, `of: tokens` log-probabilities, `get: "logits"` a
   * Float32Array; with `at` a list, one for each place.
   */
  async pred(tokens, options = {}) {
    const o = checked(options, PRED);
    let get = o.get ?? choiceOf(o) ?? "argmax";
    if (o.top !== undefined) get = { top: o.top };
    if (o.of !== undefined) get = { of: [...o.of] };
    const asked = { at: o.at, get, keep: o.keep, ...limitsOf(o), parents: o.parents };
    const ticket = raw.pred(this.handle, tokens, o.positions, asked);
    const bytes = await result(ticket, "pred");
    const places = Array.isArray(o.at) ? o.at.length : o.at === "all" ? tokens.length : 1;
    const rows = readRows(bytes, get, places, o);
    return o.at === undefined || o.at === "last" ? rows[0] : rows;
  }
  /** Tokens one by one, as the server samples them: an async iterator of { token, logprob }. */
  stream(tokens, sampling = {}) {
    return new Stream(this, tokens, checked(sampling, OPTIONS));
  }
  /** Text piece by piece, an async iterator; `text()` is all of it. */
  generate(tokens, sampling = {}) {
    return new Generation(this, tokens, checked(sampling, OPTIONS));
  }
}

function readRows(bytes, get, places, o) {
  if (get === "none") return [undefined];
  const size = bytes.byteLength / places;
  const rows = [];
  for (let at = 0; at < places; at++) {
    const row = bytes.slice(at * size, (at + 1) * size);
    if (get === "logits" || get === "hidden") rows.push(f(row));
    else if (get.of) rows.push([...f(row)]);
    else if (get.top) rows.push(records(row, 0).map(({ token, logprob }) => ({ token, logprob })));
    else rows.push(records(row, o.logprobs ?? 0)[0]);
  }
  return rows;
}

/** Records of a token and its log-probability, each followed by `best` of the others. */
function records(bytes, best) {
  const tokens = u(bytes);
  const logprobs = f(bytes);
  const all = [];
  for (let at = 0; at < tokens.length; at += 2 * (best + 1)) {
    const record = { token: tokens[at], logprob: logprobs[at + 1] };
    if (best) {
      record.best = [];
      for (let i = at + 2; i < at + 2 * (best + 1); i += 2) {
        record.best.push({ token: tokens[i], logprob: logprobs[i + 1] });
      }
    }
    all.push(record);
  }
  return all;
}

/** A generation as tokens. */
export class Stream {
  #ticket = null;
  #ready = [];
  #best;
  #file;
  constructor(file, tokens, o) {
    this.#best = o.logprobs ?? 0;
    this.#file = file;
    if (o.maxTokens === 0) return;
    const stop = endsOf(o);
    this.#ticket = raw.generate(file.handle, tokens, {
      get: choiceOf(o),
      max: o.maxTokens,
      stop: stop.length ? stop : undefined,
      ahead: o.lookahead,
      lot: o.chunk,
      ...limitsOf(o),
    });
  }
  [Symbol.asyncIterator]() {
    return this;
  }
  async next() {
    if (!this.#ready.length) this.#ready = (await this.nextMany()).reverse();
    const value = this.#ready.pop();
    return { value, done: value === undefined };
  }
  /** The tokens that are ready, at least one; none at the end. */
  async nextMany() {
    if (this.#ready.length) return this.#ready.splice(0).reverse();
    if (this.#ticket === null) return [];
    let bytes;
    try {
      bytes = await result(this.#ticket, "generate");
    } catch (error) {
      this.#ticket = null;
      throw error;
    }
    if (!bytes.byteLength) this.#ticket = null;
    return records(bytes, this.#best);
  }
  async rest() {
    const all = [];
    for (let more = await this.nextMany(); more.length; more = await this.nextMany()) {
      all.push(...more);
    }
    return all;
  }
  cancel() {
    if (this.#ticket === null) return;
    raw.forget(this.#ticket);
    raw.cancel(this.#ticket);
    this.#ticket = null;
  }
  async return() {
    this.cancel();
    return { value: undefined, done: true };
  }
}

/** A generation as text. `finish` says why it ended: "stop", "length" or "token". */
export class Generation {
  tokens = [];
  logprob = 0;
  finish = null;
  #file;
  #stream;
  #before = 0;
  #most;
  #ends;
  #stops;
  #decoder = new TextDecoder();
  #held = "";
  constructor(file, tokens, o) {
    this.#file = file;
    this.#most = o.maxTokens ?? Infinity;
    this.#ends = endsOf(o);
    this.#stops = stopsOf(o);
    if (this.#stops.length) this.#before = file.length() + tokens.length;
    this.#stream = file.stream(tokens, o);
  }
  [Symbol.asyncIterator]() {
    return this;
  }
  async #nextToken() {
    if (this.finish === null && this.tokens.length >= this.#most) {
      this.finish = "length";
      this.cancel();
    }
    if (this.finish !== null) return null;
    const { value, done } = await this.#stream.next();
    if (done) {
      this.finish = "length";
      return null;
    }
    this.tokens.push(value.token);
    this.logprob += value.logprob;
    if (this.#ends.includes(value.token)) {
      this.finish = "token";
      this.cancel();
    }
    return value;
  }
  async next() {
    for (;;) {
      const choice = await this.#nextToken();
      if (choice === null) {
        const value = this.#held + this.#decoder.decode();
        this.#held = "";
        return value ? { value, done: false } : { value: undefined, done: true };
      }
      if (this.finish === null) {
        this.#held += this.#decoder.decode(raw.detokenize([choice.token]), { stream: true });
      }
      const value = this.#release();
      if (value) return { value, done: false };
    }
  }
  #release() {
    if (this.finish !== null) return "";
    let first = -1;
    for (const stop of this.#stops) {
      const at = this.#held.indexOf(stop);
      if (at >= 0 && (first < 0 || at < first)) first = at;
    }
    if (first >= 0) {
      this.finish = "stop";
      this.#decoder = new TextDecoder();
      this.#held = this.#held.slice(0, first);
      this.cancel();
      this.#file.truncate(this.#before + this.tokens.length - 1);
      return "";
    }
    const kept = max(0, ...this.#stops.map((stop) => overlap(this.#held, stop)));
    const ready = this.#held.slice(0, this.#held.length - kept);
    this.#held = this.#held.slice(this.#held.length - kept);
    return ready;
  }
  async text() {
    let all = "";
    for await (const piece of this) all += piece;
    return all;
  }
  cancel() {
    this.#stream.cancel();
  }
  async return() {
    if (this.finish === null) this.cancel();
    return { value: undefined, done: true };
  }
}

/** How much of a text's end begins `stop`. */
function overlap(text, stop) {
  for (let size = min(text.length, stop.length); size > 0; size--) {
    if (text.endsWith(stop.slice(0, size))) return size;
  }
  return 0;
}

// --- Sessions ------------------------------------------------------------------------------------
const TREE_TOKENS_MAX = 1024;
const CHUNK = 1024;

/** A text or a chat that grows: what the program adds, and what the model replies. */
export class Session {
  #computed = 0;
  #turns = null;
  #answer = null; // where the assistant's part begins; null: the turns are not rendered
  constructor(text = "", { file = KvFile.create(), usage } = {}) {
    this.file = file;
    this.tokens = [];
    this.usage = usage ?? { prefilled: 0, generated: 0 };
    if (text) this.append(text);
  }
  /** Goes on after a file that is there. */
  static of(file) {
    const session = new Session("", { file });
    session.tokens = [...file.tokens()];
    session.#computed = session.tokens.length;
    return session;
  }
  /** A chat through the model's own template; `system` says what its part is. */
  static chat(system = "") {
    const session = new Session();
    session.#turns = system ? [{ role: "system", content: system }] : [];
    return session;
  }
  append(text) {
    this.appendTokens(tokenize(text));
  }
  appendTokens(tokens) {
    this.#render();
    for (const token of tokens) this.tokens.push(token);
  }
  user(text) {
    return this.turn("user", text);
  }
  turn(role, text) {
    if (this.#turns === null) {
      if (this.tokens.length) throw new TypeError("this session is a text: use append, or Session.chat");
      this.#turns = [];
    }
    if (this.#answer !== null) {
      const said = this.tokens.slice(this.#answer);
      if (said.length) this.#turns.push({ role: "assistant", content: detokenize(said) });
      this.#answer = null;
    }
    this.#turns.push({ role, content: text });
    return this;
  }
  #render() {
    if (this.#turns === null || this.#answer !== null) return;
    const tokens = [...chat(this.#turns)];
    this.#replace(tokens);
    this.#answer = tokens.length;
  }
  /** Makes the text these tokens; what both begin with is not computed again. */
  rewrite(tokens) {
    this.#turns = null;
    return this.#replace([...tokens]);
  }
  #replace(tokens) {
    const most = min(this.#computed, max(tokens.length - 1, 0));
    let known = 0;
    while (known < most && this.tokens[known] === tokens[known]) known++;
    this.#cut(known);
    this.tokens = tokens;
    return known;
  }
  #cut(computed) {
    if (computed >= this.#computed) return;
    this.file.truncate(computed);
    this.#computed = computed;
  }
  #pending() {
    this.#render();
    if (!this.tokens.length) throw new RangeError("the text has no token to go on from");
    this.#cut(this.tokens.length - 1);
    return this.tokens.slice(this.#computed);
  }
  /** What the model says next: { text, tokens, logprob, finish }. */
  async reply(sampling = {}) {
    const o = checked(sampling, OPTIONS);
    if (stopsOf(o).length) return this.stream(sampling, () => {});
    const ends = endsOf(o);
    const pending = this.#pending();
    const chunk = min(max(o.maxTokens ?? CHUNK, 1), CHUNK);
    const lot = o.chunk ?? chunk;
    const stream = this.file.stream(pending, { ...o, chunk: lot, lookahead: o.lookahead ?? lot });
    const chosen = await this.#whole(pending.length, () => stream.rest());
    const tokens = chosen.map((choice) => choice.token);
    const logprob = chosen.reduce((sum, choice) => sum + choice.logprob, 0);
    const ended = tokens.length > 0 && ends.includes(tokens[tokens.length - 1]);
    const text = detokenize(ended ? tokens.slice(0, -1) : tokens);
    return this.#replied(tokens, text, ended ? "token" : "length", logprob);
  }
  /** The same, while `each` gets the text in pieces as they come. */
  async stream(sampling, each) {
    const pending = this.#pending();
    const generation = this.file.generate(pending, sampling);
    let text = "";
    await this.#whole(pending.length, async () => {
      for await (const piece of generation) {
        text += piece;
        await each(piece);
      }
    });
    return this.#replied(generation.tokens, text, generation.finish, generation.logprob);
  }
  /** Does work on the file; where it fails, the session stays as it was. */
  async #whole(prompt, work) {
    const before = this.#computed;
    try {
      return await work();
    } catch (error) {
      try {
        const got = max(this.file.length() - before, 0);
        this.usage.prefilled += min(got, prompt);
        this.usage.generated += max(got + 1 - prompt, 0);
        if (got) this.file.truncate(before);
      } catch {
        // The first error says more.
      }
      throw error;
    }
  }
  #replied(chosen, text, finish, logprob) {
    const begin = this.tokens.length;
    if (chosen.length) {
      this.usage.prefilled += begin - this.#computed;
      this.usage.generated += chosen.length;
      const last = chosen[chosen.length - 1];
      this.tokens.push(...chosen.slice(0, -1));
      this.#computed = this.tokens.length;
      if (finish === "length") this.tokens.push(last);
      else if (finish === "stop") this.#endWith(begin, text);
    }
    return { text, tokens: this.tokens.slice(begin), logprob, finish };
  }
  /** Cuts the tokens from `begin` on to those of a text, whose end may be inside of one. */
  #endWith(begin, text) {
    let end = this.tokens.length;
    let said = detokenize(this.tokens.slice(begin, end));
    while (!text.startsWith(said)) said = detokenize(this.tokens.slice(begin, --end));
    this.tokens.length = end;
    this.#cut(end);
    if (text.length > said.length) this.append(text.slice(said.length));
  }
  /** Computes what was added up to the last token, with which a reply or a fork begins. */
  prefill() {
    return this.#compute(1);
  }
  /** Computes all of what was added, so that the file holds the whole text. */
  flush() {
    return this.#compute(0);
  }
  async #compute(without) {
    this.#render();
    const end = max(this.tokens.length - without, 0);
    if (this.#computed >= end) return;
    const added = this.tokens.slice(this.#computed, end);
    await this.#whole(added.length, () => this.file.prefill(added));
    this.usage.prefilled += added.length;
    this.#computed = end;
  }
  /** A session of its own with the same text; it shares what is computed. */
  fork() {
    const fork = new Session("", { file: this.file.fork(), usage: this.usage });
    fork.tokens = this.tokens.slice();
    fork.#computed = this.#computed;
    fork.#turns = this.#turns && this.#turns.slice();
    fork.#answer = this.#answer;
    return fork;
  }
  /** Runs `branch(session, number)` on so many forks, side by side; the results in that order. */
  async fanOut(count, branch) {
    await this.prefill();
    const forks = Array.from({ length: count }, () => this.fork());
    return Promise.all(forks.map((fork, number) => branch(fork, number)));
  }
  /** The log-probability of each answer to a question. */
  async scores(question, answers) {
    await this.prefill();
    const begin = [...this.#pending(), ...tokenize(question)];
    const lists = answers.map((answer) => [...tokenize(answer)]);
    const together = lists.reduce((sum, list) => sum + list.length, begin.length);
    if (together <= TREE_TOKENS_MAX) {
      this.usage.prefilled += together;
      return this.#scoreTree(begin, lists);
    }
    this.usage.prefilled += lists.reduce((sum, list) => sum + list.length + begin.length, 0);
    return Promise.all(lists.map((list) => this.#scoreChain(begin, list)));
  }
  async #scoreTree(begin, lists) {
    const tokens = [...begin];
    const parents = begin.map((_, i) => i - 1);
    for (const list of lists) {
      let parent = begin.length - 1;
      for (const token of list) {
        parents.push(parent);
        parent = tokens.length;
        tokens.push(token);
      }
    }
    const at = [];
    for (let i = begin.length - 1; i < tokens.length; i++) at.push(i);
    const of = tokens.slice(begin.length);
    const found = await this.file.pred(tokens, { parents, keep: false, at, of });
    let place = 0;
    return lists.map((list) => {
      let sum = 0;
      for (let i = 0; i < list.length; i++, place++) {
        sum += found[parents[begin.length + place] + 1 - begin.length][place];
      }
      return sum;
    });
  }
  async #scoreChain(begin, list) {
    const at = list.map((_, i) => begin.length - 1 + i);
    const found = await this.file.pred([...begin, ...list], { keep: false, at, of: list });
    return found.reduce((sum, row, i) => sum + row[i], 0);
  }
  /** How much likelier the answer `good` to a question is than the answer `bad`. */
  async logOdds(question, good, bad) {
    const [a, b] = await this.scores(question, [good, bad]);
    return a - b;
  }
  close() {
    this.file.close();
  }
}

/** A template with its {places} filled; a name without a value stays. */
export const fill = (template, values) =>
  template.replace(/\{([^{}]*)\}/g, (whole, name) => (name in values ? values[name] : whole));

// --- Globals, and the start ----------------------------------------------------------------------
let timers = 0;
const timersOff = new Set();
function setTimeout(work, ms = 0, ...given) {
  const timer = ++timers;
  sleep(max(0, ms)).then(() => timersOff.delete(timer) || work(...given));
  return timer;
}
const clearTimeout = (timer) => void timersOff.add(timer);
const queueMicrotask = (work) => void Promise.resolve().then(work);

const globals = {
  console, TextEncoder, TextDecoder, setTimeout, clearTimeout, queueMicrotask,
};
for (const name in globals) {
  Object.defineProperty(globalThis, name, {
    value: globals[name],
    writable: true,
    configurable: true,
  });
}

globalThis.raw = async (program) => {
  const main = program.default;
  if (main === undefined) return 0;
  if (typeof main !== "function") throw new TypeError("the default export must be a function");
  const answer = await main(input());
  if (answer !== undefined) send(answer);
  return 0;
};
