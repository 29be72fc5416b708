import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, Optional, TypedDict

import pytest
from symphony.programs.schema import Signature, SignatureError, ValueRefused


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5


class Named(TypedDict):
    name: str


class Kind(Enum):
    GOOD = "good"
    BAD = "bad"


async def everything(
    prompt: str,
    points: list[Point],
    named: Named,
    kind: Kind = Kind.GOOD,
    mode: Literal["a", "b"] = "a",
    size: Optional[int] = None,  # noqa: UP045 - users write it, too
    table: dict[str, list[float]] | None = None,
    *,
    deep: bool = False,
) -> Point:
    return points[0]


def test_parameters_of_all_kinds_have_a_schema() -> None:
    schema = Signature(everything).input_schema
    name = schema["$ref"].rpartition("/")[2]
    known = schema["$defs"][name]
    assert known["required"] == ["prompt", "points", "named"]
    assert known["additionalProperties"] is False
    assert known["properties"]["mode"]["enum"] == ["a", "b"]
    assert known["properties"]["deep"] == {"type": "boolean", "default": False}
    assert set(schema["$defs"]) == {"everything", "Point", "Named", "Kind"}
    assert Signature(everything).output_schema["$ref"].endswith("/Point")


def test_arguments_become_their_own_types() -> None:
    signature = Signature(everything)
    given = signature.bind("p", [Point(1)], {"name": "n"}, kind=Kind.BAD)
    assert given == {
        "prompt": "p",
        "points": [{"x": 1, "y": 0.5}],
        "named": {"name": "n"},
        "kind": "bad",
    }
    parsed = signature.parse(given)
    assert (parsed["points"], parsed["kind"]) == ([Point(1)], Kind.BAD)
    assert (parsed["mode"], parsed["table"], parsed["deep"]) == ("a", None, False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": 1}, r"Expected `str`, got `int` - at `\$.prompt`"),
        ({"prompt": "p", "points": [{"x": "1"}], "named": {"name": ""}}, r"\$.points\[0\].x"),
        ({"prompt": "p", "points": [], "named": {"name": ""}, "mode": "c"}, r"\$.mode"),
        ({"prompt": "p", "points": [], "named": {"name": ""}, "more": 1}, "unknown field `more`"),
        ({}, "missing required field `prompt`"),
    ],
)
def test_wrong_arguments_are_refused_by_their_place(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueRefused, match=f"everything: .*{words}"):
        Signature(everything).parse(given)


def test_too_many_and_repeated_arguments_are_refused() -> None:
    async def one(a: int) -> None: ...

    with pytest.raises(TypeError, match="one takes 1 arguments, and got 2"):
        Signature(one).bind(1, 2)
    with pytest.raises(TypeError, match="one got 'a' twice"):
        Signature(one).bind(1, a=2)


async def untyped(prompt) -> str:  # type: ignore[no-untyped-def]
    return ""


async def odd(prompt: Callable[[], int]) -> str:
    return ""


async def many(*prompts: str) -> str:
    return ""


async def wrong_default(n: int = "three") -> str:  # type: ignore[assignment]
    return ""


async def odd_result(n: int) -> Callable[[], int]:
    return lambda: n


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (untyped, "untyped: the parameter `prompt` has no type: write `prompt: str`, say"),
        (odd, "odd: the parameter `prompt`: .*has no JSON schema"),
        (many, "many: the parameter `prompts` must have a name of its own"),
        (wrong_default, "wrong_default: the parameter `n` has a default that is none of its type"),
        (odd_result, "what odd_result returns: .*has no JSON schema"),
    ],
)
def test_signatures_without_a_schema_are_refused_with_the_parameter(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(SignatureError, match=words):
        Signature(function)


def test_results_are_checked_by_their_type() -> None:
    signature = Signature(everything)
    assert signature.dump(Point(1, 2.0)) == {"x": 1, "y": 2.0}
    assert signature.load({"x": 1, "y": 2.0}) == Point(1, 2.0)
    with pytest.raises(ValueRefused, match="what everything returned: Expected `object`"):
        signature.dump("no point")
    with pytest.raises(ValueRefused, match="what everything returned"):
        signature.dump(object())
