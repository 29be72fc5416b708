// Draws n continuations of one prompt and sends the one that the model itself finds most likely.

import {
  Json, JsonObject, Reply, Sampling, Session, fail, inputText, runTasks, send,
} from "symphony-lip";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const prompt = new Session(job.at("prompt").string());
  const n = job.integerOr("n", 4) as i32;
  if (!prompt.tokens.length || n < 1) fail("the prompt must not be empty, and n at least 1", 2);

  const sampling = Sampling.from(job, "max_tokens", 32);
  sampling.temperature = job.numberOr("temperature", 0.8);
  sampling.seed = job.integerOr("seed", 0);
  const branches = prompt.fanOut(n);
  const candidates: Reply[] = [];
  for (let i = 0; i < n; i++) candidates.push(branches[i].reply(sampling.branch(i)));
  runTasks(candidates);
  send(report(candidates, best(candidates)));
  return 0;
}

/** The candidate with the highest mean log-probability; one without any token is worse than all. */
function best(candidates: Reply[]): i32 {
  let best = 0;
  for (let i = 1; i < candidates.length; i++) {
    if (score(candidates[i]) > score(candidates[best])) best = i;
  }
  return best;
}

function score(candidate: Reply): f64 {
  const count = candidate.tokens.length;
  return count ? candidate.logprob / count : -Infinity;
}

function report(candidates: Reply[], best: i32): string {
  const scores: string[] = [];
  for (let i = 0; i < candidates.length; i++) {
    const value = score(candidates[i]);
    scores.push(isFinite(value) ? value.toString() : "null");
  }
  const told = new JsonObject().whole("best", best).text("text", candidates[best].text());
  return told.raw("scores", `[${scores.join(", ")}]`).finish();
}
