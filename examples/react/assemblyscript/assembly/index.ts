// ReAct: the model thinks, the program reads an action out of its text, calls the tool, and adds the
// observation to the same KV file. Nothing is computed twice, however often it calls.

import {
  Arguments, Json, JsonObject, Sampling, Session, callTool, inputText, send,
} from "symphony-lip";

const PROMPT = "Find out what is asked. Each thought ends with an action, Search[what] or "
  + "Finish[answer]; an observation follows.\n\nQuestion: {question}\n";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const tool = job.stringOr("tool", "example.search");
  const argument = job.stringOr("argument", "query");
  const thinking = Sampling.from(job, "thought_tokens", 48);
  thinking.stop = ["]"];
  // Small models write no actions: where the input has queries, these are made instead.
  const queries = job.stringsOr("queries", []);

  const prompt = job.stringOr("prompt", PROMPT);
  const text = new Session(prompt.replace("{question}", job.at("question").string()));
  const steps = job.integerOr("steps", 4) as i32;
  for (let step = 0; step < steps; step++) {
    text.append("Thought:");
    const thought = text.reply(thinking).text();
    const action = new Action(thought);
    let query = action.argument;
    if (queries.length) {
      query = queries[step % queries.length];
      text.append(`\nAction: Search[${query}]`);
    } else if (action.name == "Finish") {
      return conclude(text, query);
    } else if (action.name == "Search") {
      text.append("]");
    } else {
      break; // it does not know what to do: it has to answer
    }
    const answer = callTool(tool, new Arguments().text(argument, query)).answer();
    text.append(`\nObservation: ${answer.content}\n`);
    const told = new JsonObject().text("thought", thought).text("query", query);
    send(told.text("observation", answer.content).flag("ok", answer.ok).finish());
  }
  text.append("Answer:");
  return conclude(text, text.reply(Sampling.from(job, "answer_tokens", 32)).text());
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
function conclude(text: Session, answer: string): i32 {
  const told = new JsonObject().text("answer", answer).whole("tokens", text.tokens.length);
  told.whole("prefilled", text.usage.prefilled).whole("generated", text.usage.generated);
  send(told.finish());
  return 0;
}
