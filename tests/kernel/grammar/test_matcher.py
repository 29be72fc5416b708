"""Matchers: masks follow from a grammar and a text, whichever way the matcher took."""

import json
import random
import re

import jsonschema
import numpy as np
import pytest
from symphony_kernel.grammar.compiler import Grammar, Vocabulary
from symphony_kernel.grammar.matcher import LATER, GrammarMatcher
from symphony_kernel.grammar.source import GrammarKind
from symphony_kernel.protocol.errno import Errno

from tests.support.kernel.constrained import EOS, PERSON, ids_of, schema, text_of
from tests.support.kernel.grammars import (
    WORDS,
    Text,
    constraint,
    drawn,
    errno_of,
    grammar_of,
    make_vocabulary,
    masked,
    matcher,
)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


def test_text_that_masks_allow_always_parses(vocabulary: Vocabulary) -> None:
    person = constraint(vocabulary, GrammarKind.JSON_SCHEMA, schema(PERSON).decode())
    for seed in range(150):
        jsonschema.validate(json.loads(text_of(drawn(person, seed))), PERSON)
    date = constraint(vocabulary, GrammarKind.REGEX, "(0[1-9]|1[0-2])/[0-9]{2}( or never)?")
    for seed in range(150):
        assert re.fullmatch(r"(0[1-9]|1[0-2])/\d\d( or never)?", text_of(drawn(date, seed)))


def test_mask_follows_from_the_text_alone(vocabulary: Vocabulary) -> None:
    """A matcher may come to a place step by step, at once, back from a later one, or by a copy."""
    made = constraint(vocabulary, GrammarKind.REGEX, "(ab|cd[0-9]{1,3}|[x-z]+){2,40}")
    other = constraint(vocabulary, GrammarKind.REGEX, "(ab|cd[0-9]{1,3}|[x-z]+){2,40}")
    texts = [drawn(made, seed)[:-1] for seed in range(10)]
    for number, text in enumerate(texts):
        chance = random.Random(number)
        stepping = matcher(made, [], kept=bool(number % 2))
        for end in range(1, len(text)):
            mine = masked(stepping, end - 1, [text[end - 1]])
            fresh = masked(matcher(other, text[: end - 1]), end - 1, [text[end - 1]])
            assert mine.tolist() == fresh.tolist()
            if chance.random() < 0.2:  # a row that is repeated after others in vain
                back = chance.randrange(end)
                again = masked(stepping, back, text[back:end])
                assert again.tolist() == fresh.tolist()


def test_text_begins_behind_the_prompt_or_within_a_call(vocabulary: Vocabulary) -> None:
    made = constraint(vocabulary, GrammarKind.REGEX, "abc[0-9]")
    prompt, begun = [5, 6, 7], ids_of("abc")
    digits = set(masked(matcher(made, begun[:-1]), len(begun) - 1, begun[-1:]).tolist())
    assert {text_of([token])[0] for token in digits} <= set("0123456789")
    whole = GrammarMatcher(made, Text(prompt[:1]), 3, kept=False)
    whole.set_prefix(np.empty(0, np.uint32))
    assert set(masked(whole, 1, prompt[1:] + begun).tolist()) == digits
    # Of a call in chunks only the last has a mask: `set_prefix` has the tokens before it.
    chunked = GrammarMatcher(made, Text(prompt[:1]), 3, kept=False)
    chunked.set_prefix(np.array(prompt[1:] + begun[:-1], np.uint32))
    start = 1 + len(prompt[1:]) + len(begun) - 1
    assert set(masked(chunked, start, begun[-1:]).tolist()) == digits


def test_text_that_does_not_match_is_einval_for_itself_only(vocabulary: Vocabulary) -> None:
    made = constraint(vocabulary, GrammarKind.REGEX, "[a-c]{5}")
    assert errno_of(matcher(made, ids_of("z")), 0, ids_of("z")) is Errno.EINVAL
    assert len(masked(matcher(made, []), 0, ids_of("a")))


@pytest.mark.parametrize(
    ("kind", "grammar", "text"),
    [
        (GrammarKind.REGEX, "ab[0-9]", "ab7"),  # nothing can follow
        (GrammarKind.REGEX, "[ab]*", "abab"),
        (GrammarKind.LARK, 'start: ("ab" | "c")*', "abcab"),
        (GrammarKind.JSON_SCHEMA, '{"enum": ["yes", "no"]}', '"yes"'),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_mask_behind_an_end_allows_only_ends(
    vocabulary: Vocabulary, kind: GrammarKind, grammar: str, text: str, kept: bool
) -> None:
    made = constraint(vocabulary, kind, grammar)
    ids = ids_of(text)
    whole = [*ids, EOS, EOS, EOS]
    for seed in range(12):
        chance = random.Random(seed)
        follows, start = matcher(made, [], kept=kept), 0
        while start < len(whole):
            end = chance.randint(start + 1, len(whole))
            allowed = masked(follows, start, whole[start:end]).tolist()
            assert EOS in allowed or end < len(ids)
            if end > len(ids):
                assert allowed == [EOS]
            start = end
            if chance.random() < 0.2:  # a row that was computed in vain
                start = chance.randrange(end + 1)
        back = chance.randrange(len(ids))
        fresh = masked(matcher(made, ids[:back]), back, ids[back:]).tolist()
        assert masked(follows, back, ids[back:]).tolist() == fresh
        assert errno_of(follows, back, [*ids[back:], EOS, ids[0]]) is Errno.EINVAL
    early = errno_of(matcher(made, []), 0, [*ids[:1], EOS])
    assert (early is None) == (kind is not GrammarKind.JSON_SCHEMA and grammar != "ab[0-9]")


def test_grammar_whose_states_are_used_up_begins_anew(vocabulary: Vocabulary) -> None:
    """All texts of a grammar share its states: no text may fail because of the others."""
    made = constraint(vocabulary, GrammarKind.REGEX, "(.*x.{200}y.*)+")
    grammar = grammar_of(made)
    first = grammar.generation
    chance = random.Random(1)
    for _ in range(12):
        follows, start, last = matcher(made, []), 0, [ids_of("x")[0]]
        for _ in range(120):
            allowed = masked(follows, start, last)
            start, last = start + 1, [int(chance.choice(allowed[allowed != EOS].tolist()))]
    assert grammar.generation is not first


def test_grammar_is_compiled_again_only_if_other_texts_used_it(vocabulary: Vocabulary) -> None:
    """A text that needs all states itself is refused for good, without compiling again."""
    made = constraint(vocabulary, GrammarKind.REGEX, "((a{1,100}){1,100}){1,100}")
    grammar, text = grammar_of(made), ids_of("a" * 12)
    first = grammar.generation
    for _ in range(8):
        follows = matcher(made, text[:-1])
        assert errno_of(follows, len(text) - 1, text[-1:]) is Errno.EFBIG
        assert follows.ready()
    assert grammar.generation is first
    assert first is not None
    assert first.matchers == 1, "the others were not tried"
    assert grammar.seconds > 0.0


def test_mask_without_a_compiled_grammar_comes_later(vocabulary: Vocabulary) -> None:
    made = constraint(vocabulary, GrammarKind.REGEX, "[ab]+")
    source = grammar_of(made).source
    asked: list[Grammar] = []
    late = made.grammar = Grammar(vocabulary, source, request_build=asked.append)
    follows = matcher(made, [])
    mask = np.zeros(WORDS, np.uint32)
    own = np.array(ids_of("a"), np.uint32)
    assert follows.fill(0, own, mask) is LATER
    assert late.generation is None
    assert [follows.ready(), follows.ready()] == [False, False]
    assert asked == [late], "once"
    late.build()
    assert late.seconds > 0.0, "the time of a mask is known before the first one"
    assert follows.ready()
    assert follows.fill(0, own, mask) is None


def test_long_text_is_followed_in_several_steps(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = constraint(vocabulary, GrammarKind.REGEX, "[a-c ]*")
    text = ids_of("abc cab " * 40)
    wanted = masked(matcher(made, text[:-1]), len(text) - 1, text[-1:]).tolist()
    again = constraint(vocabulary, GrammarKind.REGEX, "[a-c ]*")
    monkeypatch.setattr("symphony_kernel.grammar.matcher.TEXT_MS_MAX", 0.0)
    follows = matcher(again, text[:-9])
    mask = np.zeros(WORDS, np.uint32)
    steps, last = 1, text[-9:]
    while follows.fill(len(text) - 9, np.array(last, np.uint32), mask) is LATER:
        steps += 1
        follows.retry()
        follows.set_prefix(np.empty(0, np.uint32))
    assert steps > 10
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == wanted


def test_text_that_is_only_read_is_followed_once(vocabulary: Vocabulary) -> None:
    """`kept` is false where a call appends nothing; the file's entries are kept all the same."""
    made = constraint(vocabulary, GrammarKind.REGEX, "[a-c ]*")
    text = ids_of("abc cab " * 40)
    grammar, own = grammar_of(made), ids_of("a")
    first = masked(matcher(made, text), len(text), own).tolist()
    assert grammar.token_seconds > 0.0
    again = matcher(made, text)
    assert again.seconds > grammar.seconds, "tokens to follow count beforehand"
    rate = grammar.token_seconds
    assert masked(again, len(text), own).tolist() == first
    assert grammar.token_seconds < rate, "no token was followed again"
    assert again.seconds == grammar.seconds


def test_mask_seconds_are_the_recent_maximum(vocabulary: Vocabulary) -> None:
    grammar = grammar_of(constraint(vocabulary, GrammarKind.REGEX, "a"))
    grammar.record_mask(1.0)
    for _ in range(3):
        grammar.record_mask(0.0)
    assert 0.5 < grammar.seconds < 1.0
