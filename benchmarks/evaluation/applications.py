"""The applications as clients of a prompt server: each step is a request with the whole prompt.

`program/src` does the same as programs. An order that depends on what a model says is the same in
both: the larger token of a score is the better one, since random weights mean nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.evaluation.tasks import Task
from benchmarks.evaluation.tool_server import look_up

Tokens = list[int]
Ask = Callable[[Tokens, int], Awaitable[Tokens]]  # a prompt, and how many tokens behind it


@dataclass(frozen=True, slots=True)
class Around:
    """What a client has around it: a server to ask, the common context, the model's tokenizer."""

    ask: Ask
    context: Tokens
    encode: Callable[[str], Tokens]


Client = Callable[[Around, Task], Awaitable[Tokens]]


async def completion(around: Around, task: Task) -> Tokens:
    """Go on with a prompt."""
    return await around.ask(task["prompt"], task["new"])


async def react(around: Around, task: Task) -> Tokens:
    """Think, call the tool, and so on."""
    prompt = around.context + task["question"]
    for observation in task["observations"]:
        thought = await around.ask(prompt, task["thought"])
        seen = await look_up(observation, task["tool_ms"])
        prompt = prompt + thought + around.encode(seen)
    return await around.ask(prompt, task["answer"])


async def swarm(around: Around, task: Task) -> Tokens:
    """Let all agents speak at once; what was said is read by all of them in the next round."""
    board = around.context + task["question"]
    said: Tokens = []
    for _ in range(task["rounds"]):
        board = board + said
        messages = await asyncio.gather(
            *(around.ask(board + role, task["message"]) for role in task["roles"])
        )
        said = _joined(messages)
    return said


@dataclass(frozen=True, slots=True)
class _Thought:
    tokens: Tokens  # without what it goes on from
    score: int


async def _think(ask: Ask, prompt: Tokens, hint: Tokens, task: Task) -> _Thought:
    thought = await ask(prompt + hint, task["thought"])
    score = await ask(prompt + hint + thought + task["judge"], 1)
    return _Thought(hint + thought, score[0])


def _best(thoughts: Sequence[_Thought], count: int) -> list[_Thought]:
    return sorted(thoughts, key=lambda thought: -thought.score)[:count]


async def graph(around: Around, task: Task) -> Tokens:
    """Think several thoughts, and go on from the best of them together."""
    base = around.context + task["question"]
    thoughts = await asyncio.gather(
        *(_think(around.ask, base, hint, task) for hint in task["hints"])
    )
    kept = _joined([thought.tokens for thought in _best(thoughts, task["keep"])])
    return await around.ask(base + kept + task["merge"], task["answer"])


async def tree(around: Around, task: Task) -> Tokens:
    """Think several thoughts from each of the best ones, some levels deep."""
    best = [around.context + task["question"]]
    for _ in range(task["depth"]):
        places = [(prompt, hint) for prompt in best for hint in task["hints"]]
        thoughts = await asyncio.gather(*(_think(around.ask, *place, task) for place in places))
        parents = {id(thought): place[0] for thought, place in zip(thoughts, places, strict=True)}
        kept = _best(thoughts, task["keep"])
        best = [parents[id(thought)] + thought.tokens for thought in kept]
    return await around.ask(best[0] + task["merge"], task["answer"])


async def skeleton(around: Around, task: Task) -> Tokens:
    """Write an outline, then all of its points at once."""
    prompt = around.context + task["question"]
    prompt = prompt + await around.ask(prompt, task["outline"])
    points = await asyncio.gather(
        *(around.ask(prompt + hint, task["thought"]) for hint in task["hints"])
    )
    return _joined(points)


def _joined(lists: Sequence[Tokens]) -> Tokens:
    return [token for tokens in lists for token in tokens]


CLIENTS: dict[str, Client] = {
    "completion": completion,
    "react": react,
    "swarm": swarm,
    "got": graph,
    "tot": tree,
    "skeleton": skeleton,
}
