"""The checker's process: what it refuses, and its own limits."""

import os
from pathlib import Path

import pytest
from symphony_kernel.grammar import checker
from symphony_kernel.grammar.checker import Checker
from symphony_kernel.grammar.compiler import STACK_BYTES
from symphony_kernel.grammar.source import GrammarError, GrammarKind, make_tokenizer
from symphony_kernel.protocol.errno import Errno

from tests.support.kernel.constrained import EOS, assets


def test_grammar_that_compiles_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = make_tokenizer(assets().tokenizer_json, 4_096, (EOS,))
    assert checker._compiled(tokenizer, GrammarKind.REGEX, "a+")
    monkeypatch.setattr(checker, "CONSTRAINT_BUILD_MS_MAX", 0.0)
    with pytest.raises(GrammarError) as raised:
        checker._compiled(tokenizer, GrammarKind.REGEX, "a+")
    assert raised.value.errno is Errno.EFBIG


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.REGEX, "a{5000000000}"),
        (GrammarKind.REGEX, "a{1,99999999999999999999}"),
        (GrammarKind.LARK, 'start: "a"{5000000000}'),
        (GrammarKind.LARK, "start: /a{5000000000}/"),
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "maxLength": 10000000000}'),
        (GrammarKind.JSON_SCHEMA, '{"type": "array", "minItems": 18446744073709551616}'),
    ],
)
def test_grammar_with_a_count_that_is_too_high_is_too_big(kind: GrammarKind, text: str) -> None:
    with pytest.raises(GrammarError) as raised:
        checker._compiled(make_tokenizer(assets().tokenizer_json, 4_096, (EOS,)), kind, text)
    assert raised.value.errno is Errno.EFBIG


def test_grammar_with_a_count_that_is_none_is_invalid() -> None:
    tokenizer = make_tokenizer(assets().tokenizer_json, 4_096, (EOS,))
    for kind, text in (
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "minLength": -1}'),
        (GrammarKind.REGEX, "a{x"),
        (GrammarKind.REGEX, "a{2,1}"),
    ):
        with pytest.raises(GrammarError) as raised:
            checker._compiled(tokenizer, kind, text)
        assert raised.value.errno is Errno.EINVAL


def test_checker_process_has_tight_limits() -> None:
    mine = Checker(assets().tokenizer_json, 4_096, (EOS,))
    try:
        assert mine.check(GrammarKind.REGEX, "a+")[0] == 0
        assert mine._child is not None
        about = Path(f"/proc/{mine._child.pid}")
        limits = {}
        for line in (about / "limits").read_text().splitlines()[1:]:
            limits[line[:26].strip()] = line[26:].split()[:2]
        status = dict(line.split(":\t", 1) for line in (about / "status").read_text().splitlines())
        niceness = os.getpriority(os.PRIO_PROCESS, mine._child.pid)
    finally:
        mine.close()
    assert niceness == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)  # the kernel goes first
    assert limits["Max file size"] == limits["Max core file size"] == ["0", "0"]
    assert int(limits["Max open files"][1]) <= 64
    # What passes here must not break the kernel.
    assert 2 * int(limits["Max stack size"][1]) <= STACK_BYTES
    assert status["NoNewPrivs"] == "1"
