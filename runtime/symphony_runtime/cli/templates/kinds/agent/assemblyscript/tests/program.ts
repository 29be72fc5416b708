// `symphony test --server URL` runs each exported function test_...(): i32 on a server with the
// tools of server.toml.

import { Arguments, callTool } from "symphony-lip";
import { expectContains, expectEqual, runProgram } from "symphony-lip/assembly/testing";
import { Action } from "../assembly/index";

export function test_actions_are_read(): i32 {
  const action = new Action("search[a lys]");
  expectEqual(action.name, "search");
  expectEqual(action.argument, "a lys");
  expectEqual(new Action("finish[it").argument, "it");
  return 0;
}

export function test_the_tool_answers(): i32 {
  const answer = callTool("project.search", new Arguments().text("query", "the lys")).answer();
  expectContains(answer.content, "Lisbourg");
  return 0;
}

export function test_it_ends_with_an_answer(): i32 {
  const ended = runProgram('{"question": "Where does the Lys rise?", "steps": 2}');
  expectEqual(ended.code, 0);
  expectContains(ended.text, '"answer"');
  return 0;
}
