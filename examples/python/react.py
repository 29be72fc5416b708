"""ReAct: the model thinks, the program calls the tool that its text asks for, and adds the answer.

Nothing is computed twice, however often it calls.
"""

from dataclasses import dataclass, field

import symphony
from symphony import Sampling, Session, prompt, tool

PROMPT = (
    "Find out what is asked. Each thought ends with an action, Search[what] or Finish[answer]; "
    "an observation follows.\n\nQuestion: {question}\n"
)


@dataclass
class Step:
    """A thought, the call that it led to, and what the tool said."""

    thought: str
    query: str
    observation: str
    ok: bool


@dataclass
class Answer:
    """The answer, the steps to it, and how many tokens were computed for it."""

    answer: str
    tokens: int = 0
    prefilled: int = 0
    generated: int = 0
    steps: list[Step] = field(default_factory=list)


@symphony.program(permissions=["tool"])
async def react(
    question: str,
    queries: list[str] | None = None,
    steps: int = 4,
    thought_tokens: int = 48,
    answer_tokens: int = 32,
) -> Answer:
    """Answer a question with a tool's help."""
    done: list[Step] = []
    text = Session(prompt.fill(PROMPT, {"question": question}))
    for step in range(steps):
        text.append("Thought:")
        thought = await text.reply(Sampling(max_tokens=thought_tokens, stop="]"))
        kind, query = action(thought.text)
        if queries:  # small models write no actions: these are made in place of them
            query = queries[step % len(queries)]
            text.append(prompt.fill("\nAction: Search[{query}]", {"query": query}))
        elif kind == "Search":
            text.append("]")
        elif kind == "Finish":
            return await conclude(text, query, done)
        else:
            break  # it does not know what to do: it has to answer
        answer = await tool.call("example.search", {"query": query})
        text.append(prompt.fill("\nObservation: {content}\n", {"content": answer.content}))
        done.append(Step(thought.text, query, answer.content, answer.ok))
    text.append("Answer:")
    reply = await text.reply(Sampling(max_tokens=answer_tokens))
    return await conclude(text, reply.text, done)


def action(thought: str) -> tuple[str, str]:
    """Return the last action in a text, whose closing bracket has stopped the model."""
    before, bracket, argument = thought.rpartition("[")
    kind = next((kind for kind in ("Search", "Finish") if before.endswith(kind)), "")
    return (kind, argument.strip()) if bracket else ("", "")


async def conclude(text: Session, answer: str, steps: list[Step]) -> Answer:
    tokens = len(await text.tokens())
    return Answer(answer, tokens, text.usage.prefilled, text.usage.generated, steps)


if __name__ == "__main__":
    print(react.run_sync("Where does the Lys rise?", ["lys rises", "ghent"], steps=3).answer)
