# symphony: {
#   "description": "Answers a question with the help of tools.",
#   "permissions": ["tool"],
#   "input_schema": {"type": "object", "required": ["question"], "properties": {
#     "question": {"type": "string"}, "steps": {"type": "integer", "minimum": 1}}}
# }
"""{{name}}: the model writes actions, the program calls the tool and adds what it said."""

import symphony
from symphony import Constraint, Sampling, Session, tool

PROMPT = (
    "Answer the question. An action is search[words] or finish[answer]; an observation "
    "follows each search.\n"
)
ACTION = r"(search|finish)\[[A-Za-z0-9 ]{1,24}\]"


@symphony.program
async def main(question: str, steps: int = 4):
    text = Session(PROMPT + "Question: " + question + "\n")
    for _ in range(steps):
        text.append("Action: ")
        action = await Constraint.regex(ACTION)  # again for each action: a file has one text of it
        written = await text.reply(Sampling(max_tokens=32, constraint=action))
        name, argument = parse(written.text)
        if name == "finish":
            return {"answer": argument}
        found = await tool.call("project.search", {"query": argument})
        text.append("\nObservation: " + found.content + "\n")
        await symphony.send({"query": argument, "observation": found.content})
    text.append("Answer:")
    reply = await text.reply(Sampling(max_tokens=32))
    return {"answer": reply.text.strip()}


def parse(written: str) -> tuple[str, str]:
    """Return an action's name and argument; one that was cut off has no closing bracket."""
    name, _, argument = written.partition("[")
    return name, argument.replace("]", "").strip()
