// `symphony test --server URL` runs each exported function test_...() on a server with the tools
// of server.toml.

import { tool } from "symphony";
import { expect, expectEqual } from "symphony/testing";
import main, { parse } from "../main.js";

export function test_actions_are_read() {
  expectEqual(parse("search[a lys]"), { name: "search", argument: "a lys" });
  expectEqual(parse("finish[it"), { name: "finish", argument: "it" });
}

export async function test_the_tool_answers() {
  const { content } = await tool("project.search", { query: "the lys" });
  expect(content.includes("Lisbourg"), content);
}

export async function test_it_ends_with_an_answer() {
  const { answer } = await main({ question: "Where does the Lys rise?", steps: 2 });
  expectEqual(typeof answer, "string");
}
