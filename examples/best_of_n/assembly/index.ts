// Draws n continuations of one prompt and sends the one that the model itself finds most likely.

import {
  Json, JsonObject, Plan, Reply, Session, check, fail, inputText, runTasks, send,
} from "symphony-lip";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const prompt = new Session(job.at("prompt").string());
  const n = job.integerOr("n", 4) as i32;
  if (!prompt.tokens.length || n < 1) fail("the prompt must not be empty, and n at least 1", 2);

  // All of the prompt but its last token is common work; the last one gives each its distribution.
  check(prompt.settle(), "the prompt");
  const plan = Plan.of(job, "max_tokens", 32).withTemperature(job.numberOr("temperature", 0.8));
  plan.withSeed(job.integerOr("seed", 0) as u64);
  const candidates: Reply[] = [];
  for (let i = 0; i < n; i++) candidates.push(prompt.fork().begin(plan.branch(i)));
  runTasks(candidates);
  for (let i = 0; i < n; i++) check(candidates[i].errno, `continuation ${i}`);
  check(send(report(candidates, best(candidates))), "send");
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
  return candidate.tokens.length ? candidate.meanLogprob : -f64.MAX_VALUE;
}

function report(candidates: Reply[], best: i32): string {
  const scores: string[] = [];
  for (let i = 0; i < candidates.length; i++) {
    scores.push(candidates[i].tokens.length ? candidates[i].meanLogprob.toString() : "null");
  }
  const told = new JsonObject().whole("best", best).text("text", candidates[best].text);
  return told.raw("scores", `[${scores.join(", ")}]`).finish();
}
