// `symphony test` runs each exported function test_...() on a server with the tiny model.

import { Session } from "symphony";
import { expect } from "symphony/testing";
import { answer } from "../main.js";

export async function test_turns_share_one_file() {
  const chat = Session.chat("Be kind.");
  await answer(chat, "hello", { maxTokens: 4 });
  const known = chat.tokens.length;
  await answer(chat, "and now?", { maxTokens: 4 });
  expect(chat.tokens.length > known, "the second turn is behind the first");
}
