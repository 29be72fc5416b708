// `symphony test` runs each exported function test_...() on a server with the tiny model.

import { Session } from "symphony";
import { expectEqual } from "symphony/testing";
import main from "../main.js";

export async function test_it_asks_for_a_text() {
  expectEqual(await main(""), "Give me a text to continue.");
}

export async function test_a_text_is_continued() {
  const text = new Session("def main(");
  const reply = await text.reply({ maxTokens: 4, exact: true });
  expectEqual(reply.tokens.length, 4);
}
