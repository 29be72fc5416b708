"""The children of a run: their tree, their ends, their bound."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from symphony_runtime.gateway.programs.store import Program
from symphony_runtime.gateway.runs import children as module
from symphony_runtime.gateway.runs.children import Children

PROGRAM = cast(Program, SimpleNamespace(id="sha256:0", name="walk"))


def family() -> Children:
    """A run 10 with children 11 and 12, and 13, a child of 12."""
    found = Children(10)
    for instance, parent in ((11, 10), (12, 10), (13, 12)):
        found.add(instance, parent, PROGRAM, None)
    return found


def column(found: Children, name: str) -> list[Any]:
    return [child[name] for child in found.view()["data"]]


def test_children_are_numbered_below_their_parents() -> None:
    found = family()
    assert column(found, "number") == [1, 2, 3]
    assert column(found, "parent") == [0, 0, 2]
    assert column(found, "status") == ["running"] * 3


def test_end_of_a_child_has_what_worker_and_kernel_counted() -> None:
    found = family()
    found.end(12, "exited", 3, "", {"cpu_ms": 5, "peak_memory_bytes": 64})
    found.add_usage(12, {"completion_tokens": 7, "nonsense": 1})
    found.add_usage(13, {"completion_tokens": 7})  # it lives
    child = found.view()["data"][1]
    assert (child["status"], child["exit_code"], child["ended_ms"] is None) == ("exited", 3, False)
    usage = child["usage"]
    assert (usage["cpu_ms"], usage["completion_tokens"], usage["prompt_tokens"]) == (5, 7, 0)
    assert "nonsense" not in usage
    assert column(found, "usage")[2] is None


def test_nonsense_of_a_worker_is_no_end() -> None:
    found = family()
    found.end(11, "glorious", 1, "x" * 9_999, {"cpu_ms": -1, "wall_ms": "long", "syscalls": 2.5})
    child = found.view()["data"][0]
    assert (child["status"], child["exit_code"], len(child["reason"])) == ("failed", None, 200)
    assert set(child["usage"].values()) == {0}
    found.end(11, "exited", 0, "", {})
    assert column(found, "status")[0] == "failed"
    found.end(99, "exited", 0, "", {})
    found.end(10, "exited", 0, "", {})
    assert column(found, "status")[1:] == ["running"] * 2


def test_children_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_CHILDREN_KEPT_MAX", 2)
    found = family()
    assert column(found, "number") == [1, 2]
    assert found.view()["left_out"] == 1
    found.end(13, "exited", 0, "", {})
    found.add_usage(13, {"completion_tokens": 1})
    assert column(found, "status") == ["running"] * 2


def test_packed_children_are_as_shown_and_all_have_ended() -> None:
    found = family()
    found.end(11, "exited", 0, "", {})
    found.end_all()
    assert column(found, "status") == ["exited", "killed", "killed"]
    packed = found.pack()
    assert packed is not None
    assert json.loads(packed) == found.view()
    assert Children(1).pack() is None
