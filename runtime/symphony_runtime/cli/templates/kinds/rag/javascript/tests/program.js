// `symphony test` runs each exported function test_...() on a server with the tiny model.

import { expectEqual } from "symphony/testing";
import main, { best, documentFile } from "../main.js";

export function test_the_document_with_most_words_is_best() {
  expectEqual(best("How long is the Lys?", ["Ghent is a city", "The Lys is long"]), 1);
  expectEqual(best("what?", ["a", "b"]), 0);
  expectEqual(best("what?", []), -1);
}

export async function test_a_document_is_computed_once() {
  const first = await documentFile("The Lys is long");
  const again = await documentFile("The Lys is long");
  expectEqual(again.length(), first.length());
}

export async function test_it_answers() {
  const told = await main({ question: "long?", documents: ["a", "long"], max_tokens: 4 });
  expectEqual(told.document, 1);
}
