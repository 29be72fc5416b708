// Draws n continuations of one prompt and sends the one that the model itself finds most likely.

import {
  Generation, Json, KvFile, PredOptions, Sampling, check, fail, inputText, quote, runTasks, send,
  tokenize,
} from "symphony-lip";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const prompt = tokenize(job.at("prompt").string()).unwrap();
  const n = job.integerOr("n", 4) as i32;
  if (!prompt.length || n < 1) fail("the prompt must not be empty, and n at least 1", 2);

  const candidates = draw(prompt, n, job);
  runTasks(candidates);
  for (let i = 0; i < n; i++) check(candidates[i].errno, `continuation ${i}`);
  check(send(report(candidates, best(candidates))), "send");
  return 0;
}

/** A generation for each seed, all from the same computed prompt. */
function draw(prompt: u32[], n: i32, job: Json): Generation[] {
  const seed = job.integerOr("seed", 0) as u64;
  const temperature = job.numberOr("temperature", 0.8);
  const maxTokens = job.integerOr("max_tokens", 32) as i32;

  // All of the prompt but its last token is common work; the last one gives each its distribution.
  const common = KvFile.create();
  if (prompt.length > 1) check(common.prefill(prompt.slice(0, -1)).status(), "the prompt");
  const last = prompt.slice(-1);

  const candidates: Generation[] = [];
  for (let i = 0; i < n; i++) {
    const sampling = new Sampling().withTemperature(temperature).withSeed(seed + i);
    const options = new PredOptions().sample(sampling);
    candidates.push(new Generation(common.fork(), last, maxTokens, options));
  }
  return candidates;
}

/** The candidate with the highest mean log-probability; one without any token is worse than all. */
function best(candidates: Generation[]): i32 {
  let best = 0;
  for (let i = 1; i < candidates.length; i++) {
    if (score(candidates[i]) > score(candidates[best])) best = i;
  }
  return best;
}

function score(candidate: Generation): f64 {
  return candidate.tokens.length ? candidate.meanLogprob : -f64.MAX_VALUE;
}

function report(candidates: Generation[], best: i32): string {
  const scores: string[] = [];
  for (let i = 0; i < candidates.length; i++) {
    scores.push(candidates[i].tokens.length ? candidates[i].meanLogprob.toString() : "null");
  }
  const text = quote(candidates[best].text().unwrap());
  return `{"best": ${best}, "text": ${text}, "scores": [${scores.join(", ")}]}`;
}
