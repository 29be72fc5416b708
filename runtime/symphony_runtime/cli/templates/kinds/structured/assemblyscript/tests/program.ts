// `symphony test` runs each exported function test_...(): i32 on a server with the tiny model.

import { Json } from "symphony-lip";
import { expectEqual, runProgram } from "symphony-lip/assembly/testing";

export function test_the_answer_has_the_schemas_form(): i32 {
  const ended = runProgram('{"text": "Ada Lovelace was 36 years old."}');
  expectEqual(ended.code, 0);
  const person = Json.parse(ended.text);
  assert(person.at("name").string().length <= 24);
  assert(person.at("age").integer() <= 150);
  return 0;
}

export function test_what_is_cut_off_is_an_error(): i32 {
  expectEqual(runProgram('{"text": "Ada", "max_tokens": 3}').code, 1);
  return 0;
}
