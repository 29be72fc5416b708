import { Session, inputText, send } from "symphony-lip";

export function lip_main(): i32 {
  const prompt = inputText();
  if (!prompt.length) {
    send("Give me a text to continue.");
    return 0;
  }
  // Of a model that chats, `Session.chat().user(prompt)` gets an answer.
  const reply = new Session(prompt).reply({ maxTokens: 64 });

  for (let text = reply.next(); text !== null; text = reply.next()) send(text);
  return 0;
}
