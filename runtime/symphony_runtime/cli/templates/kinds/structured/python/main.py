# symphony: {
#   "description": "Reads a person out of a text.",
#   "input_schema": {"type": "object", "required": ["text"], "properties": {
#     "text": {"type": "string"}, "max_tokens": {"type": "integer", "minimum": 1}}},
#   "output_schema": {"type": "object", "required": ["name", "age"], "properties": {
#     "name": {"type": "string"}, "age": {"type": "integer"}}}
# }
"""{{name}}: reads a person out of a text; a JSON schema holds what the model writes."""

import json

import symphony
from symphony import Constraint, Sampling, Session

SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
}


@symphony.program
async def main(text: str, max_tokens: int = 96):
    person = await Constraint.json_schema(SCHEMA)  # an error says what is wrong, and where
    session = Session(text + "\nThe person as JSON: ")
    reply = await session.reply(Sampling(max_tokens=max_tokens, constraint=person))
    return check(reply.text)


def check(written: str):
    """Return the person, if it is a whole one: `max_tokens` may have cut it off."""
    if not written.endswith("}"):
        raise ValueError("max_tokens has cut the answer off")
    return json.loads(written)
