"""How likely answers are, in one pass over a tree where they are short."""

import asyncio

_TREE_TOKENS = 256  # the server's limit on one pass with parents


async def score_answers(kv, begin, answers):
    """Return the log-probability of each answer after `begin`, and how many tokens that took."""
    together = len(begin) + sum([len(answer) for answer in answers])
    if together <= _TREE_TOKENS:
        return await _score_tree(kv, begin, answers), together
    scores = await asyncio.gather(*[_score_chain(kv, begin, answer) for answer in answers])
    return scores, sum([len(begin) + len(answer) for answer in answers])


async def _score_tree(kv, begin, answers):
    """Score in one pass: each answer is a branch of the tree whose trunk is `begin`."""
    tokens, parents, trunk = list(begin), list(range(-1, len(begin) - 1)), len(begin)
    for answer in answers:
        parent = trunk - 1
        for token in answer:
            parents.append(parent)
            parent = len(tokens)
            tokens.append(token)
    places = range(trunk - 1, len(tokens))
    passed = kv.pred(tokens, parents=parents, keep=False).at(places)
    found = await passed.of(tokens[trunk:])
    # Row r is what comes after token `trunk - 1 + r`, column c is the answers' token c.
    likely = [found[parents[trunk + c] + 1 - trunk][c] for c in range(len(tokens) - trunk)]
    scores, at = [], 0
    for answer in answers:
        scores.append(sum(likely[at : at + len(answer)]))
        at += len(answer)
    return scores


async def _score_chain(kv, begin, answer):
    tokens = list(begin) + list(answer)
    places = range(len(begin) - 1, len(begin) - 1 + len(answer))
    found = await kv.pred(tokens, keep=False).at(places).of(answer)
    return sum([row[i] for i, row in enumerate(found)])
