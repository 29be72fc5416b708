// {{name}}: the model writes actions, the program calls the tool and adds what it said.

import {
  Arguments, Constraint, Json, JsonObject, Sampling, Session, callTool, inputText, send,
} from "symphony-lip";

const PROMPT = "Answer the question. An action is search[words] or finish[answer]; an observation "
  + "follows each search.\n";
const ACTION = "(search|finish)\\[[A-Za-z0-9 ]{1,24}\\]";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const sampling = Sampling.from(job, "action_tokens", 32);
  const text = new Session(`${PROMPT}Question: ${job.at("question").string()}\n`);
  for (let left = job.integerOr("steps", 4); left > 0; left--) {
    text.append("Action: ");
    const form = Constraint.regex(ACTION); // again for each action: a file has one text of it
    sampling.constraint = form;
    const action = new Action(text.reply(sampling).text());
    form.close();
    if (action.name == "finish") {
      send(new JsonObject().text("answer", action.argument).finish());
      return 0;
    }
    const found = callTool("project.search", new Arguments().text("query", action.argument)).answer();
    text.append(`\nObservation: ${found.content}\n`);
    const step = new JsonObject().text("query", action.argument);
    send(step.text("observation", found.content).finish());
  }
  text.append("Answer:");
  const answer = text.reply(Sampling.from(job, "answer_tokens", 32)).text();
  send(new JsonObject().text("answer", answer.trim()).finish());
  return 0;
}

/** An action of the model; one that was cut off has no closing bracket. */
export class Action {
  name: string;
  argument: string;

  constructor(written: string) {
    const at = written.indexOf("[");
    this.name = at < 0 ? written : written.substring(0, at);
    const end = written.endsWith("]") ? written.length - 1 : written.length;
    this.argument = at < 0 ? "" : written.substring(at + 1, end).trim();
  }
}
