"""A short, seeded part of the fuzzer's cases of frames, and that they find what they look for."""

from random import Random
from typing import Any

import pytest
from symphony_kernel.processes.table import Instance
from symphony_kernel.protocol.messages import Calls, Op
from symphony_kernel.syscalls.pending import CallContext

from tests.fuzz import frames
from tests.fuzz.rig import Setting
from tests.fuzz.values import least


@pytest.mark.parametrize("seed", range(4))
def test_frame_cases_find_nothing(seed: int) -> None:
    case = frames.make(Random(f"suite/{seed}"))
    seen, _ = frames.play(case)
    assert seen.wrong == [], str(case)
    assert sum(seen.calls.values()) > 10


def test_frame_shapes_cover_every_operation() -> None:
    assert set(frames._SHAPES) == set(Op)


def one(call: list[Any]) -> frames.Case:
    return frames.Case(Setting(), (([Calls.KIND, [call]], 0.0),))


def test_frame_case_without_an_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    length = [frames._INSTANCES[0], int(Op.KV_LEN), 77, 5]
    assert frames.play(one(length))[0].wrong == []
    answer = CallContext.answer

    def forgets(turns: CallContext, caller: Instance, seq: int, result: Any) -> None:
        if seq != 77:
            answer(turns, caller, seq, result)

    monkeypatch.setattr(CallContext, "answer", forgets)
    (wrong,) = frames.play(one(length))[0].wrong
    assert wrong.startswith("never answered")


def test_frame_case_shrinks_to_the_least() -> None:
    case = frames.make(Random(9), 60)
    bad = [1, int(Op.KV_LEN), 5, "bad"]
    case = frames.Case(case.setting, (*case.frames, ([Calls.KIND, [bad, bad[:2]]], 0.0)))

    def matters(each: frames.Case) -> bool:
        return any(len(f) == 2 and isinstance(f[1], list) and bad in f[1] for f, _ in each.frames)

    assert least(case, frames.smaller, matters).frames == (([Calls.KIND, [bad]], 0.0),)
