// Marks what it writes, so that the holder of the secret can tell it from other texts; and tells.

import {
  Json, JsonObject, KvFile, Pred, PredOptions, Sampling, Task, Ticket, TokenSet, detokenize,
  fail, inputText, modelInfo, runTasks, send, tokenize,
} from "symphony-lip";
import { Secret, WIDTH } from "./green";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const secret = new Secret(job.at("secret").string());
  const text = job.get("text");
  if (text !== null) {
    send(evidence(new JsonObject(), secret, text.string()));
    return 0;
  }
  const prompt = tokenize(job.at("prompt").string());
  if (!prompt.length) fail("the prompt is empty");
  const kv = KvFile.create();
  if (prompt.length > 1) kv.prefill(prompt.slice(0, -1)).finish();

  const deltas = job.get("deltas");
  const writers: Writer[] = [];
  for (let i = 0; i < (deltas === null ? 1 : deltas.array().length); i++) {
    const delta = deltas === null ? 2 : deltas.array()[i].number();
    writers.push(new Writer(secret, kv.fork(), prompt.slice(), delta, job));
  }
  runTasks(writers);
  for (let i = 0; i < writers.length; i++) {
    const text = writers[i].text();
    const told = new JsonObject().number("delta", writers[i].delta).text("text", text);
    send(evidence(told, secret, text));
  }
  return 0;
}

/** What a reader who has the text alone, and the secret, can say about it. */
function evidence(told: JsonObject, secret: Secret, text: string): string {
  const found = secret.lookAt(tokenize(text));
  told.whole("counted", found.counted).whole("green", found.green);
  return told.number("z", found.z).number("p", found.p).finish();
}

/** Continues a prompt of which its file has all but the last token. */
class Writer extends Task {
  private pred: Pred | null = null;
  private readonly begin: i32;
  private readonly end: i32;
  private readonly sampling: Sampling;
  private readonly vocabSize: i32 = modelInfo().vocabSize;
  private readonly eos: u32[] = modelInfo().eos;

  constructor(
    private readonly secret: Secret,
    private readonly kv: KvFile,
    private readonly tokens: u32[],
    /** What is added to each green token's logit. */
    readonly delta: f64,
    job: Json,
  ) {
    super();
    this.begin = tokens.length;
    this.sampling = Sampling.from(job, "max_tokens", 200);
    this.sampling.temperature = job.numberOr("temperature", 1);
    this.end = tokens.length + this.sampling.maxTokens;
  }

  step(): Ticket | null {
    const pred = this.pred;
    if (pred !== null) {
      const drawn = pred.choice().token;
      if (this.eos.includes(drawn)) return null;
      this.tokens.push(drawn);
    }
    if (this.tokens.length >= this.end) return null;
    const green = this.secret.greenAfter(this.tokens.slice(-WIDTH), this.vocabSize);
    this.sampling.biasMask = { tokens: TokenSet.fromBits(green), bias: this.delta };
    const options = new PredOptions().sample(this.sampling);
    this.pred = this.kv.decode(this.tokens[this.tokens.length - 1], options);
    return this.pred;
  }

  text(): string {
    return detokenize(this.tokens.slice(this.begin));
  }
}
