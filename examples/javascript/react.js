/* symphony: {"description": "Answers a question with a tool, thought by thought.", "permissions": ["tool"]} */
// ReACT: the model thinks, the program calls the tool that the thought ends with, until it finishes.
import { Session, fill, samplingOf, send, tool } from "symphony";

const PROMPT =
  "Find out what is asked. Each thought ends with an action, Search[what] or " +
  "Finish[answer]; an observation follows.\n\nQuestion: {question}\n";

export default async function main(input) {
  const { question, queries = [], steps = 4 } = input;
  const { tool: name = "example.search", argument = "query" } = input;
  const thinking = { ...samplingOf(input, "thought_tokens", 48), stop: "]" };

  const text = new Session(fill(input.prompt ?? PROMPT, { question }));
  for (let step = 0; step < steps; step++) {
    text.append("Thought:");
    const thought = await text.reply(thinking);
    // Small models write no actions: where the input has queries, these are made instead.
    let query = queries[step % Math.max(queries.length, 1)];
    if (query !== undefined) {
      text.append(fill("\nAction: Search[{query}]", { query }));
    } else {
      const action = actionOf(thought.text);
      if (action === null) break; // it does not know what to do: it has to answer
      if (action.kind === "Finish") return conclude(text, action.argument);
      text.append("]");
      query = action.argument;
    }
    const { ok, content } = await tool(name, { [argument]: query });
    text.append(`\nObservation: ${content}\n`);
    send({ thought: thought.text, query, observation: content, ok });
  }
  text.append("Answer:");
  const answer = await text.reply(samplingOf(input, "answer_tokens", 32));
  return conclude(text, answer.text);
}

function actionOf(thought) {
  const found = /(Search|Finish)\[([^[]*)$/.exec(thought);
  return found && { kind: found[1], argument: found[2].trim() };
}

const conclude = (text, answer) => ({ answer, tokens: text.tokens.length, ...text.usage });
