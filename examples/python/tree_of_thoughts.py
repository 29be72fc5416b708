"""Tree of thoughts: the best texts so far continue in several ways, which the model judges.

Only the best of each level live on.
"""

import asyncio
from dataclasses import dataclass
from functools import partial

import symphony
from symphony import Sampling, Session, prompt

PROMPT = '"""Sorts a list of numbers, step by step."""\n\n\ndef sort(numbers):\n'


@dataclass
class Best:
    """The best text's steps and conclusion, and the scores of all ways, level by level."""

    text: str
    score: float
    steps: list[str]
    levels: list[list[float]]
    generated: int
    prefilled: int


@dataclass
class Node:
    """A text of some steps, and what the model thinks of it."""

    session: Session
    steps: list[str]
    score: float = 0.0


@symphony.program
async def tree_of_thoughts(
    levels: int = 3,
    branches: int = 3,
    breadth: int = 2,
    tokens: int = 16,
    temperature: float = 0.0,
    seed: int | None = None,
) -> Best:
    """Search for the best way to continue a text."""
    sampling = Sampling(max_tokens=tokens, temperature=temperature, seed=seed)
    frontier, seen = [Node(Session(PROMPT), [])], []
    for level in range(levels):
        words = prompt.fill("    # Step {level}.\n", {"level": str(level + 1)})

        async def grow(node: Node, place: int, words: str, way: int, fork: Session) -> Node:
            fork.append(words)
            reply = await fork.reply(sampling.branch(place * branches + way))
            score = await fork.log_odds("\n\n# Is this right?\nok =", " True", " False")
            return Node(fork, [*node.steps, reply.text], score)

        ways = await asyncio.gather(
            *(
                node.session.fan_out(branches, partial(grow, node, place, words))
                for place, node in enumerate(frontier)
            )
        )
        # What the frontier held alone goes with it: of its pages, those of pruned ways.
        grown = sorted((node for way in ways for node in way), key=lambda node: -node.score)
        seen.append([node.score for node in grown])
        frontier = grown[:breadth]
    best = frontier[0]
    best.session.append("\n    return")
    conclusion = Sampling(max_tokens=16, temperature=temperature, seed=seed)
    reply = await best.session.reply(conclusion)
    usage = best.session.usage
    return Best(reply.text, best.score, best.steps, seen, usage.generated, usage.prefilled)


if __name__ == "__main__":
    print(tree_of_thoughts.run_sync(temperature=0.8, seed=5))
