// `symphony test` runs each exported function test_...(): i32 on a server with the tiny model.

import { expectEqual, runProgram } from "symphony-lip/assembly/testing";

export function test_it_continues_what_it_gets(): i32 {
  const ended = runProgram("def main(");
  expectEqual(ended.code, 0);
  assert(ended.text.length > 0, "it wrote nothing");
  return 0;
}

export function test_it_asks_for_a_text(): i32 {
  expectEqual(runProgram("").text, "Give me a text to continue.");
  return 0;
}
