"""The applications as clients of a prompt server: each step is a request with the whole prompt.

`program/src` does the same as programs. An order that depends on what a model says is the same in
both: the larger token of a score is the better one, since random weights mean nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.evaluation.tasks import Task

Tokens = list[int]
Ask = Callable[[Tokens, int], Awaitable[Tokens]]  # a prompt, and how many tokens behind it
Client = Callable[[Ask, Tokens, Task], Awaitable[Tokens]]


async def completion(ask: Ask, _: Tokens, task: Task) -> Tokens:
    """Go on with a prompt."""
    return await ask(task["prompt"], task["new"])


async def react(ask: Ask, context: Tokens, task: Task) -> Tokens:
    """Think, ask the tool, and so on."""
    prompt = context + task["question"]
    for observation in task["observations"]:
        thought = await ask(prompt, task["thought"])
        await asyncio.sleep(task["tool_ms"] / 1e3)
        prompt = prompt + thought + observation
    return await ask(prompt, task["answer"])


async def swarm(ask: Ask, context: Tokens, task: Task) -> Tokens:
    """Let all agents speak at once; what was said is read by all of them in the next round."""
    board = context + task["question"]
    said: Tokens = []
    for _ in range(task["rounds"]):
        board = board + said
        messages = await asyncio.gather(
            *(ask(board + role, task["message"]) for role in task["roles"])
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


async def graph(ask: Ask, context: Tokens, task: Task) -> Tokens:
    """Think several thoughts, and go on from the best of them together."""
    base = context + task["question"]
    thoughts = await asyncio.gather(*(_think(ask, base, hint, task) for hint in task["hints"]))
    kept = _joined([thought.tokens for thought in _best(thoughts, task["keep"])])
    return await ask(base + kept + task["merge"], task["answer"])


async def tree(ask: Ask, context: Tokens, task: Task) -> Tokens:
    """Think several thoughts from each of the best ones, some levels deep."""
    best = [context + task["question"]]
    for _ in range(task["depth"]):
        places = [(prompt, hint) for prompt in best for hint in task["hints"]]
        thoughts = await asyncio.gather(*(_think(ask, *place, task) for place in places))
        parents = {id(thought): place[0] for thought, place in zip(thoughts, places, strict=True)}
        kept = _best(thoughts, task["keep"])
        best = [parents[id(thought)] + thought.tokens for thought in kept]
    return await ask(best[0] + task["merge"], task["answer"])


async def skeleton(ask: Ask, context: Tokens, task: Task) -> Tokens:
    """Write an outline, then all of its points at once."""
    prompt = context + task["question"]
    prompt = prompt + await ask(prompt, task["outline"])
    points = await asyncio.gather(*(ask(prompt + hint, task["thought"]) for hint in task["hints"]))
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
