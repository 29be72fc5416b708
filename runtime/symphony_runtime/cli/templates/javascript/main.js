// {{name}}: continues the text that it gets.

import { Session, samplingOf, send } from "symphony";

export default async function main(input) {
  const given = typeof input === "string" ? { prompt: input } : input;
  if (!given.prompt) return "Give me a text to continue.";
  // Of a model that chats, `Session.chat().user(prompt)` gets an answer.
  const text = new Session(given.prompt);
  await text.stream(samplingOf(given, "max_tokens", 64), send);
}
