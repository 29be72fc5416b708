/* symphony: {
  "description": "Answers a question with the help of tools.",
  "permissions": ["tool"],
  "input_schema": {"type": "object", "required": ["question"], "properties": {
    "question": {"type": "string"}, "steps": {"type": "integer", "minimum": 1}}}
} */
// {{name}}: the model writes actions, the program calls the tool and adds what it said.

import { Constraint, Session, samplingOf, send, tool } from "symphony";

const PROMPT =
  "Answer the question. An action is search[words] or finish[answer]; an observation " +
  "follows each search.\n";
const ACTION = "(search|finish)\\[[A-Za-z0-9 ]{1,24}\\]";

export default async function main(input) {
  const text = new Session(`${PROMPT}Question: ${input.question}\n`);
  for (let left = input.steps ?? 4; left > 0; left--) {
    text.append("Action: ");
    const constraint = Constraint.regex(ACTION); // again for each action: a file has one text of it
    const written = await text.reply({ ...samplingOf(input, "action_tokens", 32), constraint });
    const { name, argument } = parse(written.text);
    if (name === "finish") return { answer: argument };
    const { content } = await tool("project.search", { query: argument });
    text.append(`\nObservation: ${content}\n`);
    send({ query: argument, observation: content });
  }
  text.append("Answer:");
  const reply = await text.reply(samplingOf(input, "answer_tokens", 32));
  return { answer: reply.text.trim() };
}

/** An action's name and argument; one that was cut off has no closing bracket. */
export function parse(written) {
  const [name, argument = ""] = written.split("[");
  return { name, argument: argument.replace("]", "").trim() };
}
