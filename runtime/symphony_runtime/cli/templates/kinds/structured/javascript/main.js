/* symphony: {
  "description": "Reads a person out of a text.",
  "input_schema": {"type": "object", "required": ["text"], "properties": {
    "text": {"type": "string"}, "max_tokens": {"type": "integer", "minimum": 1}}},
  "output_schema": {"type": "object", "required": ["name", "age"], "properties": {
    "name": {"type": "string"}, "age": {"type": "integer"}}}
} */
// {{name}}: reads a person out of a text; a JSON schema holds what the model writes.

import { Constraint, Session, samplingOf } from "symphony";

const SCHEMA = {
  type: "object",
  required: ["name", "age"],
  additionalProperties: false,
  properties: {
    name: { type: "string", maxLength: 24 },
    age: { type: "integer", minimum: 0, maximum: 150 },
  },
};

export default async function main(input) {
  const constraint = Constraint.jsonSchema(SCHEMA); // an error says what is wrong, and where
  const text = new Session(`${input.text}\nThe person as JSON: `);
  const reply = await text.reply({ ...samplingOf(input, "max_tokens", 96), constraint });
  return check(reply.text);
}

/** The person, if it is a whole one: max_tokens may have cut it off. */
export function check(written) {
  try {
    return JSON.parse(written);
  } catch {
    throw new Error("max_tokens has cut the answer off");
  }
}
