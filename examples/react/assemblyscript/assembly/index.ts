// ReAct: the model thinks, the program reads an action out of its text, calls the tool, and adds what
// came to the same KV file. Nothing is computed twice, however often it calls.

import {
  Arguments, Json, PredOptions, Sampling, callTool, check, inputText, quote, send,
} from "symphony-lip";
import { Text } from "./text";

const PROMPT = "Find out what is asked. Each thought ends with an action, Search[what] or "
  + "Finish[answer]; an observation follows.\n\nQuestion: {question}\n";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const tool = job.stringOr("tool", "example.search");
  const argument = job.stringOr("argument", "query");
  const exact = flag(job, "ignore_eos");
  const thoughtTokens = job.integerOr("thought_tokens", 48) as i32;
  // Small models write no actions: where the input has queries, these are made instead.
  const given = job.get("queries");
  const queries = given === null ? new Array<string>(0) : given.strings();

  const text = new Text();
  text.say(job.stringOr("prompt", PROMPT).replace("{question}", job.at("question").string()));
  const steps = job.integerOr("steps", 4) as i32;
  for (let step = 0; step < steps; step++) {
    text.say("Thought:");
    const thought = text.reply(thoughtTokens, sampler(job), "]", exact);
    const action = new Action(thought);
    let query = action.argument;
    if (queries.length) {
      query = queries[step % queries.length];
      text.say(`\nAction: Search[${query}]`);
    } else if (action.name == "Finish") {
      return conclude(text, query);
    } else if (action.name == "Search") {
      text.say("]");
    } else {
      break; // it does not know what to do: it has to answer
    }
    const answer = callTool(tool, new Arguments().text(argument, query)).answer().unwrap();
    text.say(`\nObservation: ${answer.content}\n`);
    const told = `"observation":${quote(answer.content)},"ok":${answer.ok}`;
    check(send(`{"thought":${quote(thought)},"query":${quote(query)},${told}}`), "send");
  }
  text.say("Answer:");
  const answerTokens = job.integerOr("answer_tokens", 32) as i32;
  return conclude(text, text.reply(answerTokens, sampler(job), "", exact));
}

/** The last action in a thought; its closing bracket has stopped the model, and is not there. */
class Action {
  name: string = "";
  argument: string = "";

  constructor(thought: string) {
    const bracket = thought.lastIndexOf("[");
    const before = thought.substring(0, max(bracket, 0));
    if (before.endsWith("Search")) this.name = "Search";
    if (before.endsWith("Finish")) this.name = "Finish";
    this.argument = thought.substring(bracket + 1).trim();
  }
}

/** The end: the answer, and how many tokens were computed for it. */
function conclude(text: Text, answer: string): i32 {
  const counts = `"prefilled":${text.prefilled},"generated":${text.generated}`;
  check(send(`{"answer":${quote(answer)},"tokens":${text.length},${counts}}`), "send");
  return 0;
}

function sampler(job: Json): PredOptions {
  const temperature = job.numberOr("temperature", 0);
  if (temperature <= 0) return new PredOptions();
  const sampling = new Sampling().withTemperature(temperature);
  return new PredOptions().sample(sampling.withSeed(job.integerOr("seed", 0) as u64));
}

function flag(job: Json, name: string): bool {
  const found = job.get(name);
  return found !== null && found.boolean();
}
