// {{name}}: reads a person out of a text; a JSON schema holds what the model writes.

import { Constraint, Json, Sampling, Session, fail, inputText, send } from "symphony-lip";

const SCHEMA = `{"type": "object", "required": ["name", "age"], "additionalProperties": false,
  "properties": {"name": {"type": "string", "maxLength": 24},
    "age": {"type": "integer", "minimum": 0, "maximum": 150}}}`;

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const sampling = Sampling.from(job, "max_tokens", 96);
  sampling.constraint = Constraint.jsonSchema(SCHEMA); // a failure says what is wrong, and where
  const text = new Session(`${job.at("text").string()}\nThe person as JSON: `);
  const written = text.reply(sampling).text();
  if (!written.endsWith("}")) fail("max_tokens has cut the answer off", 1);
  send(written);
  return 0;
}
