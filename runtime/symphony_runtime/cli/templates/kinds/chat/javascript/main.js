/* symphony: {"description": "A conversation: each message is answered."} */
// {{name}}: a conversation that keeps its KV cache between the messages.

import { Session, recv, samplingOf, send } from "symphony";

export default async function main(input) {
  const given = input || {};
  const chat = Session.chat(given.system ?? "Answer in one sentence.");
  const sampling = samplingOf(given, "max_tokens", 128);
  for (let said = await recv(); said !== null; said = await recv()) {
    await answer(chat, said, sampling);
  }
}

/** Answers one message, and sends the answer as it is written. */
export async function answer(chat, said, sampling) {
  await chat.user(said).stream(sampling, send);
  send("\n"); // the end of an answer
}
