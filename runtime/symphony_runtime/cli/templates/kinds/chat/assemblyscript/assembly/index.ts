// {{name}}: a conversation that keeps its KV cache between the messages.

import { Json, Sampling, Session, inputText, recv, send } from "symphony-lip";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const chat = Session.chat(job.stringOr("system", "Answer in one sentence."));
  const sampling = Sampling.from(job, "max_tokens", 128);
  for (let said = recv().text(); said !== null; said = recv().text()) answer(chat, said, sampling);
  return 0;
}

/** Answers one message, and sends the answer as it is written. */
export function answer(chat: Session, said: string, sampling: Sampling): void {
  const reply = chat.user(said).reply(sampling);
  for (let piece = reply.next(); piece !== null; piece = reply.next()) send(piece);
  send("\n"); // the end of an answer
}
