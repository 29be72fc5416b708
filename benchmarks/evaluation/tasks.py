"""What each application is asked: its lengths, and tokens that are the same for every system.

The paper gives no lengths; these are near what its applications are described to do: a long context
that all share (instructions, tools, examples), a short question of each one's own, thoughts of a
sentence or two, tools that answer with a paragraph.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.serving.workloads import Column, Prompts, Workload

CONTEXT_TOKENS = 1024
TOOL_MS = 20
Task = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Application:
    """An application's lengths: `lists` are so many lists of so many tokens, `tokens` one list.

    `texts` are so many texts of so many tokens, each run's own.

    `numbers` go to the program and the client as they are. `generated` is what one run generates.
    """

    name: str
    tokens: dict[str, int]
    lists: dict[str, tuple[int, int]]
    numbers: dict[str, int]
    generated: int
    words: str
    texts: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Requests that a client has under way at once."""
        lists = max((many for many, _ in self.lists.values()), default=1)
        return lists * (self.numbers["keep"] if "depth" in self.numbers else 1)

    def scaled(self, tool_ms: int) -> "Application":
        """Return it with a tool that takes so long."""
        if "tool_ms" not in self.numbers:
            return self
        return replace(self, numbers={**self.numbers, "tool_ms": tool_ms})


_GRAPH: dict[str, Any] = {
    "tokens": {"question": 64, "judge": 16, "merge": 16},
    "lists": {"hints": (8, 16)},
    "numbers": {"thought": 32, "keep": 4, "answer": 64},
    "generated": 8 * (32 + 1) + 64,
}
_SWARM: dict[str, Any] = {
    "tokens": {"question": 64},
    "lists": {"roles": (8, 16)},
    "numbers": {"message": 24, "rounds": 3},
    "generated": 3 * 8 * 24,
}
APPLICATIONS = {
    application.name: application
    for application in (
        Application(
            "completion", {"prompt": 128}, {}, {"new": 64}, 64,
            "a prompt of 128 tokens that no other client has, 64 new tokens",
        ),
        Application(
            "react", {"question": 64}, {},
            {"thought": 32, "answer": 32, "tool_ms": TOOL_MS}, 5 * 32 + 32,
            "ReACT: 5 times a thought of 32 tokens and a tool's answer of 64, then 32 tokens",
            texts={"observations": (5, 64)},
        ),
        Application(
            "swarm", **_SWARM,
            words="SWARM: 8 agents, 3 rounds; each says 24 tokens behind all that was said before, "
            "whose K and V are put behind one another as they are",
        ),
        Application(
            "swarm-exact", **{**_SWARM, "numbers": {**_SWARM["numbers"], "exact": 1}},
            words="the same, where what was said is computed anew, once for all agents",
        ),
        Application(
            "got", **_GRAPH,
            words="Graph of Thoughts: 8 thoughts of 32 tokens, each scored; the K and V of the 4 "
            "best are merged as they are, and 64 tokens follow",
        ),
        Application(
            "got-exact", **{**_GRAPH, "numbers": {**_GRAPH["numbers"], "exact": 1}},
            words="the same, where the merged thoughts are computed anew, behind one another",
        ),
        Application(
            "tot", {"question": 64, "judge": 16, "merge": 16}, {"hints": (4, 16)},
            {"thought": 24, "keep": 2, "depth": 3, "answer": 32}, 20 * (24 + 1) + 32,
            "Tree of Thoughts: 3 levels; from each of the 2 best thoughts 4 of 24 tokens, scored",
        ),
        Application(
            "skeleton", {"question": 64}, {"hints": (8, 16)}, {"outline": 64, "thought": 48},
            64 + 8 * 48,
            "Skeleton of Thought: an outline of 64 tokens, then its 8 points of 48 side by side",
        ),
    )
}  # fmt: skip


class Material:
    """Draws tokens: the same (seed, words) give the same ones, for every system."""

    def __init__(self, model: Path, seed: int = 0) -> None:
        self._prompts = Prompts(model, seed)
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def draw(self, count: int, words: str, index: int = 0) -> list[int]:
        """Return `count` token ids, none of them special."""
        return self._prompts.tokens(Workload(_folded(words), count, 1, Column.WHOLE), 0, index)

    def text(self, count: int, words: str, index: int = 0) -> str:
        """Return a text that the model's tokenizer makes `count` tokens of."""
        return self._prompts.text(Workload(_folded(words), count, 1, Column.WHOLE), 1, index)

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def context(self) -> list[int]:
        """Return what all runs of all applications begin with."""
        return self.draw(CONTEXT_TOKENS, "context")

    def task(self, application: Application, words: str, index: int) -> Task:
        """Return one run's input. Another `words` or `index` has another question."""
        task: Task = {"application": application.name.partition("-")[0]}
        for number, (name, count) in enumerate(application.tokens.items()):
            own = name in ("question", "prompt")
            task[name] = self.draw(count, words if own else name, index if own else number)
        for name, (many, count) in application.lists.items():
            task[name] = [self.draw(count, name, each) for each in range(many)]
        for name, (many, count) in application.texts.items():
            task[name] = [self.text(count, words, many * index + each) for each in range(many)]
        task |= application.numbers
        if "exact" in task:
            task["exact"] = True
        return task


def _folded(words: str) -> str:
    """Return eight letters that stand for some words, since prompts look at eight."""
    value = 0xCBF29CE484222325  # FNV-1a
    for byte in words.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return np.base_repr(value % 36**8, 36).rjust(8, "0")
