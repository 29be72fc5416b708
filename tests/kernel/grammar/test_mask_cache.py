"""Walks through regular expressions: masks that are known are those that llguidance would make."""

import random
import re

import numpy as np
import pytest
from symphony_kernel.grammar.compiler import Vocabulary
from symphony_kernel.grammar.mask_cache import MaskCache, walk_of
from symphony_kernel.grammar.regex_automata import NOTHING, Expression, UnsupportedRegexError
from symphony_kernel.grammar.source import GrammarKind, write_grammar

from tests.support.kernel.constrained import EOS, ids_of
from tests.support.kernel.grammars import constraint, grammar_of, make_vocabulary, masked, matcher

EXPRESSIONS = [
    "(ab|cd[0-9]{1,3}|[x-z]+){2,40}",
    "([A-Z][a-z]{1,12} [0-9]{1,4}[,.;] ){500}",
    "[a-z ]*",
    '"[^"\\\\]{0,200}"',
    "(19|20)[0-9]{2}-(0[1-9]|1[0-2])",
    "def [a-z_]{1,20}\\(self(, [a-z]+)*\\):\\n    return (None|True|self\\.[a-z]+)",
    "(a|b?c+)*(the end){0,3}",
    ".{3,90}[.!?]",
    "((in|out)ward(s|)|return){1,}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa[bc]",
    "(a{0,9}b{0,9}){3}",
    "[^a-y\\n]{2}x|(é|ü[^ ])+",
]  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_what_is_known_is_what_would_be_made(vocabulary: Vocabulary, text: str) -> None:
    """Texts at random, at once and step by step, some taken back: the same masks either way."""
    knowing = constraint(vocabulary, GrammarKind.REGEX, text)
    plain = constraint(vocabulary, GrammarKind.REGEX, text)
    grammar_of(plain).walk = None
    for seed in range(4):
        chance = random.Random(seed)
        follows, beside = matcher(knowing, [], 1), matcher(plain, [], 1)
        found, last = [7], [7]
        for _ in range(60):
            start = len(found) - len(last)
            mine, theirs = masked(follows, start, last), masked(beside, start, last)
            assert mine.tolist() == theirs.tolist(), found
            token = int(chance.choice(mine.tolist()))
            if token == EOS and len(mine) > 1:
                token = int(mine[0] if mine[0] != EOS else mine[1])
            if token == EOS:
                break
            if len(found) > 3 and chance.random() < 0.1:  # what was computed in vain
                back = chance.randrange(1, len(found))
                last = [*found[back:], token]
            else:
                last = [token]
            found.append(token)


def test_a_mask_is_made_once_for_all_texts_in_its_state(vocabulary: Vocabulary) -> None:
    """How often something may still come makes no other state, while no token reaches so far."""
    made = constraint(vocabulary, GrammarKind.REGEX, "([A-Z][0-9]{2}; ){3000}")
    era, text = grammar_of(made).era, ids_of("A12; ")
    assert era is not None
    follows, start = matcher(made, []), 0
    counts = []
    for _ in range(40):
        for token in text:
            masked(follows, start, [token])
            start += 1
        counts.append(era.masks)
    assert counts[0] > 0
    assert counts[-1] == counts[2], "two rounds tell all"
    elsewhere = matcher(made, [])
    for at, token in enumerate(text):
        masked(elsewhere, at, [token])
    assert era.masks <= counts[-1] + 1, "the first of a text is looked for anew"
    # One that nobody has seen, behind many that the matcher has not.
    late = masked(follows, start, ids_of("Z9"))
    plain = constraint(vocabulary, GrammarKind.REGEX, "([A-Z][0-9]{2}; ){3000}")
    grammar_of(plain).walk = None
    assert masked(matcher(plain, 40 * text), start, ids_of("Z9")).tolist() == late.tolist()


@pytest.mark.parametrize(
    "text",
    ["a(?i)b", r"\d+", r"\w", r"\bx", "^a", "a$", "a+?", "a**", "[[:alpha:]]", "[a&&b]", "[]a]",
     "[a-]", "(?P<n>a)", r"\p{L}", "a{,3}", "[é]", "x{3,1}", "(", ")", "a{99999999}", "[a~~b]",
     "(" * 200],
)  # fmt: skip
def test_what_could_mean_something_else_is_not_read(text: str) -> None:
    with pytest.raises(UnsupportedRegexError):
        Expression(text, 16)


def test_an_expression_has_the_texts_that_it_matches() -> None:
    chance = random.Random(1)
    for text in ("(a|bc)*d?", "a{2,3}b{1,}c{2}", "[a-c]{0,2}(d|a.)", "(ab?){2,4}|c", "[^ab]+a"):
        expression = Expression(text, 8)
        for _ in range(150):
            tried = "".join(chance.choices("abcdé", k=chance.randrange(7)))
            state = expression.after(expression.start, tried.encode())
            matched = re.fullmatch(text, tried) is not None
            assert expression.ends(state) == matched, (text, tried)
            # A state is one of NOTHING's as soon as no text can follow.
            reached = any(re.fullmatch(text, tried + more) for more in _ENDINGS)
            assert (state != NOTHING) == reached, (text, tried)


_ENDINGS = ["", *(a + b + c + d for a in "abcd" for b in ("", *"abcd") for c in ("", *"abcd")
                  for d in ("", "a", "b", "c", "cc"))]  # fmt: skip


def test_forced_bytes_end_where_there_is_a_choice_or_an_end() -> None:
    def forced(text: str) -> bytes | None:
        expression = Expression(text, 8)
        found = expression.forced(expression.start)
        return None if found is None else found[0]

    assert forced("abc[de]") == b"abc"
    assert forced("ab(c|)") == b"ab"
    assert forced("(ab|ac)d") == b"a"
    assert forced("x*") == b""
    assert forced("é") == "é".encode()
    assert forced("a{3}b{1,2}") == b"aaab"
    assert forced("a{500}") is None


def test_an_expression_with_too_many_states_is_left_to_llguidance(vocabulary: Vocabulary) -> None:
    for text in ("(.*x.{90}y.*)+", "((a{1,100}){1,100}){1,100}b"):
        near = walk_of(write_grammar(GrammarKind.REGEX, text), vocabulary.tokenizer, lambda: 16)
        assert near is not None
        for walk in (near, near.longer):
            assert walk is not None
            state, chance = walk.start, random.Random(2)
            for _ in range(400):
                state = walk.after(state, ids_of(chance.choice(["x", "a", "ax"]))[0]) or walk.start
            assert states_of(walk) < 60_000


@pytest.mark.parametrize("near", [False, True])
def test_one_token_can_ask_for_no_more_work_than_it_is_given(near: bool) -> None:
    """It took gigabytes: repetitions of repetitions, and a token that goes through all of them."""
    for text in (
        "((a{0,900}b?){0,900}c?){0,900}",
        "((((a*b{0,9}){0,99}c?)*d?){1,9}(aa?){2,800})*",
        "(" * 12 + "aa?" + "a?){0,999}" * 12,
        "(.*a.*a.{50}){0,9999}",
    ):
        expression = Expression(text, 128, near=near)
        step = expression.along if near else expression.after
        state, told = expression.start, 0
        for length in (1, 128, 64, 7, 1, 32) * 4:
            nodes = len(expression._nodes)
            try:
                state = step(state, b"a" * length)
                expression.forced(state)
                expression.view(state)
            except UnsupportedRegexError:
                told += 1
            assert len(expression._nodes) - nodes <= 400, text
            assert expression._parts <= 12 * 20_000 + 20_000, text
        assert told, text


def test_states_are_let_go_though_no_mask_is_made(vocabulary: Vocabulary) -> None:
    """A text whose masks are all known comes to a new state with each token."""
    near = walk_of(
        write_grammar(GrammarKind.REGEX, "[ab]{0,900000}"), vocabulary.tokenizer, lambda: 16
    )
    assert near is not None
    walk, mask = near.longer, np.zeros(1, np.uint32)
    assert walk is not None
    tokens = [*ids_of("a"), *ids_of("b")]
    state, full = walk.start, 0
    for at in range(120_000):
        state = walk.after(state, tokens[at % 2])
        if not walk.write(state, 0, mask) and state:
            walk.note(state, 0, mask)
        assert states_of(walk) < 21_000
        if not state:
            full += 1
            walk.tidy()
            state = walk.start
            assert state, "the masks were worth it"
    assert full > 1
    # Who finds no mask on the way has no more room made.
    for at in range(120_000):
        state = walk.after(state, tokens[at % 2])
        if not state:
            walk.tidy()
            state = walk.start
    assert not walk.start
    assert states_of(walk) < 100


def test_near_its_beginning_a_text_has_few_states_and_behind_it_the_same_masks(
    vocabulary: Vocabulary,
) -> None:
    """A count of what no token reaches is none, until so many bytes have come that one may."""
    made = constraint(vocabulary, GrammarKind.REGEX, "([A-Z][a-z]{1,5}(-|~){140}; ){200}")
    plain = constraint(vocabulary, GrammarKind.REGEX, "([A-Z][a-z]{1,5}(-|~){140}; ){200}")
    walk, grammar_of(plain).walk = grammar_of(made).walk, None
    assert walk is not None
    assert 0 < walk.slack < 140
    follows, beside = matcher(made, []), matcher(plain, [])
    states: list[int] = []
    far: list[bool] = []
    for at, token in enumerate(ids_of(f"Abc{'-~' * 70}; Xyzu{'~-' * 70}; Z")):
        assert masked(follows, at, [token]).tolist() == masked(beside, at, [token]).tolist(), at
        states.append(states_of(walk))
        far.append(follows._far)
    assert not far[0]
    assert far[-1]
    assert len(set(states[10:])) == 1, "each comes soon"
    again = matcher(made, [])
    masked(again, 0, ids_of("Ab"))
    assert not again._far, "another text begins near"


def test_near_states_are_those_of_the_expression_as_far_as_they_go() -> None:
    chance = random.Random(3)
    for text in ("(a|bc){80}d", "a{75,}b*|c{70,90}", "(ab?c{90}){2}d?", "((a|b){80}c){80}"):
        near, exact = Expression(text, 2, near=True), Expression(text, 2)
        assert 0 < near.slack < 80, text
        assert exact.slack > 1_000
        for _ in range(200):
            tried = "".join(chance.choices("aaabcd", k=chance.randrange(near.slack + 1))).encode()
            state, wanted = near.along(near.start, tried), exact.after(exact.start, tried)
            assert (state == NOTHING) == (wanted == NOTHING), (text, tried)
            assert near.ends(state) == exact.ends(wanted), (text, tried)
            mine, theirs = near.forced(state), exact.forced(wanted)
            assert mine is None or (theirs is not None and mine[0] == theirs[0]), (text, tried)


def states_of(walk: MaskCache) -> int:
    return len(walk._expression._nodes)


def test_all_states_may_be_let_go(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony_kernel.grammar.regex_automata._NODES_MAX", 30)
    test_what_is_known_is_what_would_be_made(vocabulary, EXPRESSIONS[1])
    made = constraint(vocabulary, GrammarKind.REGEX, EXPRESSIONS[1])
    follows = matcher(made, [])
    for at, token in enumerate(ids_of("Abcde 12, Xyzu 999; Gh 1. Qqqqqq 8888. ")):
        masked(follows, at, [token])
    walk = grammar_of(made).walk
    assert walk is not None
    assert walk.era > 0


def test_other_grammars_have_no_walk(vocabulary: Vocabulary) -> None:
    for kind, text in (
        (GrammarKind.JSON_SCHEMA, '{"type": "string"}'),
        (GrammarKind.LARK, "start: /a+/"),
        (GrammarKind.REGEX, r"\d+"),
    ):
        assert walk_of(write_grammar(kind, text), vocabulary.tokenizer, lambda: 16) is None
