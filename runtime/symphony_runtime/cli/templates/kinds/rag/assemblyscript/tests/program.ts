// `symphony test` runs each exported function test_...(): i32 on a server with the tiny model.

import { expectContains, expectEqual, runProgram } from "symphony-lip/assembly/testing";
import { best, documentFile } from "../assembly/index";

export function test_the_document_with_most_words_is_best(): i32 {
  expectEqual(best("How long is the Lys?", ["Ghent is a city", "The Lys is long"]), 1);
  expectEqual(best("what?", ["a", "b"]), 0);
  expectEqual(best("what?", []), -1);
  return 0;
}

export function test_a_document_is_computed_once(): i32 {
  const first = documentFile("The Lys is long");
  const again = documentFile("The Lys is long");
  expectEqual(again.length(), first.length());
  return 0;
}

export function test_it_answers(): i32 {
  const ended = runProgram('{"question": "long?", "documents": ["a", "long"], "max_tokens": 4}');
  expectEqual(ended.code, 0);
  expectContains(ended.text, '"document":1');
  return 0;
}
