// Constraints, as a program has them; what it says is checked by tests/guest_sdk/test_constraints.py.

import {
  Constraint, KvFile, PredOptions, Sampling, detokenize, lastError, send, tokenize,
} from "symphony-lip";

export function lip_main(): i32 {
  send("before [" + lastError() + "]");
  const years = Constraint.regex("(19|20)[0-9]{2}");
  const prompt = tokenize("It was in ");
  const sampling: Sampling = { maxTokens: 12, constraint: years, temperature: 1, seed: 4 };
  const generation = KvFile.create().generate(prompt, sampling);
  const year = generation.text();
  send("year " + year);

  // The same by hand: a pass for each token.
  const options = new PredOptions().sample(sampling);
  const other = KvFile.create();
  const tokens: u32[] = [];
  let next = prompt;
  for (let i = 0; i < generation.tokens.length; i++) {
    const choice = other.pred(next, options).choice();
    tokens.push(choice.token);
    next = [choice.token];
  }
  send("by hand " + (detokenize(tokens) == year).toString());

  // Another year in the same file, behind the first.
  const behind = other.length() + 1;
  const again = new PredOptions().sample({ constraint: years, constraintSince: behind });
  const first = other.pred(next, again).choice();
  send("since " + detokenize([first.token]));

  const wrong = Constraint.tryJsonSchema('{"properties": {"a": {"type": "intger"}}}');
  send(wrong.reason);
  send("words " + lastError());
  send("lark " + Constraint.tryLark("start: unknown").ok.toString());
  years.close();
  send("closed " + other.pred([1], options).tryFinish().reason);
  return 0;
}
