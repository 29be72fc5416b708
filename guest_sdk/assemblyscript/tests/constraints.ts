// Constraints, as a program has them; what it says is checked by tests/guest_sdk/test_constraints.py.

import {
  Constraint, Errno, Generation, KvFile, PredOptions, Sampling, check, describe, detokenize,
  lastError, send, tokenize,
} from "../assembly/index";

function say(text: string): void {
  check(send(text), "send");
}

export function lip_main(): i32 {
  say("before [" + lastError() + "]");
  const years = Constraint.regex("(19|20)[0-9]{2}").unwrap();
  const prompt = tokenize("It was in ").unwrap();
  const kv = KvFile.create();
  const options = new PredOptions().constraint(years).sample(new Sampling().withSeed(4));
  const generation = new Generation(kv, prompt, 12, options);
  check(generation.finish(), "generate");
  const year = generation.text().unwrap();
  say("year " + year);

  // The same by hand: a pass for each token.
  const other = KvFile.create();
  const tokens: u32[] = [];
  let next = prompt;
  for (let i = 0; i < generation.tokens.length; i++) {
    const choice = other.pred(next, options).choice().unwrap();
    tokens.push(choice.token);
    next = [choice.token];
  }
  say("by hand " + (detokenize(tokens).unwrap() == year).toString());

  // Another year in the same file, behind the first.
  const behind = other.length().unwrap() + 1;
  const again = new PredOptions().constraint(years).since(behind);
  const first = other.pred(next, again).choice().unwrap();
  say("since " + detokenize([first.token]).unwrap());

  const wrong = Constraint.jsonSchema('{"properties": {"a": {"type": "intger"}}}');
  say(wrong.reason);
  say("words " + lastError());
  say("lark " + Constraint.lark("start: unknown").ok.toString());
  say("close " + describe(years.close()));
  say("closed " + describe(other.pred([1], options).status()));
  return Errno.OK;
}
