// `symphony test` runs each exported function test_...() on a server with the tiny model.

import { expect, expectThrows } from "symphony/testing";
import main from "../main.js";

export async function test_the_answer_has_the_schemas_form() {
  const { name, age } = await main({ text: "Ada Lovelace was 36 years old." });
  expect(name.length <= 24, name);
  expect(Number.isInteger(age) && age <= 150, age);
}

export async function test_what_is_cut_off_is_an_error() {
  await expectThrows(() => main({ text: "Ada", max_tokens: 3 }), "has cut the answer off");
}
