// `symphony test` runs each exported function test_...(): i32 on a server with the tiny model.

import { Session } from "symphony-lip";
import { answer } from "../assembly/index";

export function test_turns_share_one_file(): i32 {
  const chat = Session.chat("Be kind.");
  answer(chat, "hello", { maxTokens: 4 });
  const known = chat.tokens.length;
  answer(chat, "and now?", { maxTokens: 4 });
  assert(chat.tokens.length > known, "the second turn is behind the first");
  return 0;
}
