"""Guessing keys: a constant answer after constant work, however often.

`test_routes.py` tests that all callers without a good key get the same answer.
"""

import asyncio
import statistics
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path

import pytest
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.tenancy.authentication import Authentication, Key, Role, new_key

from tests.hostile.clients.wire import head, wire
from tests.support.gateway.system import SystemRig
from tests.support.server.server import RunningServer
from tests.support.timing import check_median

WRONG_SECRETS = ("the last letter", "the first letter", "another's id", "no such id")


def ring() -> tuple[Authentication, dict[str, str]]:
    """Keys, and guesses of every kind: as near as can be to a good one, and not near at all."""
    good, kept = new_key("acme", Role.TENANT, "", None)
    late, expired = new_key("acme", Role.TENANT, "", 1)
    others: list[Key] = [new_key(f"t{n}", Role.TENANT, "", None)[1] for n in range(100)]
    last = "A" if good[-1] != "A" else "B"
    guesses = {
        "the last letter": good[:-1] + last,
        "the first letter": good[:17] + ("A" if good[17] != "A" else "B") + good[18:],
        "another's id": f"sym_{others[0].id}_{good.split('_', 2)[2]}",
        "no such id": "sym_" + "0" * 12 + good[16:],
        "expired": late,
        "no id": "x" * len(good),
        "nothing": "",
    }
    return Authentication([kept, expired, *others]), guesses


def test_key_guess_is_always_refused_in_the_same_words() -> None:
    keys, guesses = ring()
    told = set()
    for guess in guesses.values():
        with pytest.raises(Problem) as refused:
            keys.admit(f"Bearer {guess}")
        told.add(str(refused.value.document()) + str(refused.value.headers))
    assert len(told) == 1
    assert "this key is not valid: it is unknown, revoked or expired" in told.pop()


@pytest.mark.parametrize("authorization", [None, "", "Basic dTpw", "sym_1_2"])
def test_key_that_is_missing_is_reported_as_missing(authorization: str | None) -> None:
    keys, _ = ring()
    with pytest.raises(Problem, match="this route needs the header `Authorization: Bearer <key>`"):
        keys.admit(authorization)


@pytest.mark.timing
async def test_key_guess_that_is_nearly_right_takes_no_longer() -> None:
    """One hash and one comparison each. Interleaved, so that all meet the same machine."""
    keys, guesses = ring()
    del guesses["nothing"]  # it is shorter to hash
    headers = {name: f"Bearer {guess}" for name, guess in guesses.items()}

    def median_ns() -> dict[str, float]:
        taken: dict[str, list[int]] = {name: [] for name in headers}
        for _ in range(2_000):
            for name, header in headers.items():
                began = time.perf_counter_ns()
                keys.find_key(header)
                taken[name].append(time.perf_counter_ns() - began)
        return {name: statistics.median(times) for name, times in taken.items()}

    async def spread(names: Collection[str]) -> float:
        medians = median_ns()
        return max(medians[name] for name in names) / min(medians[name] for name in names)

    await check_median(partial(spread, WRONG_SECRETS), below=1.15, count=3)
    # An expired key is looked at once more, for its date; a guess without a hash takes a third.
    await check_median(partial(spread, headers), below=1.4, count=3)


async def test_key_guesses_in_a_flood_delay_no_other_client(target: RunningServer) -> None:
    """Thousands of guesses on one connection, and the owner between them; no line in the log."""
    async with wire(target.url) as stranger, wire(target.url) as owner:
        guess = head("GET /v1/runs HTTP/1.1", "sym_000000000000_" + "A" * 43)
        sending = asyncio.create_task(stranger.send(guess * 2_000))
        for _ in range(20):
            await owner.send(head("GET /v1/runs HTTP/1.1", target.key))
            assert (await owner.reply()).status == 200
        for _ in range(2_000):
            assert (await stranger.reply()).status == 401
        await sending


async def test_key_guesses_fill_no_database(tmp_path: Path) -> None:
    """What was denied is in the audit log, and the log does not grow with it."""
    async with SystemRig(tmp_path) as system, wire(system.url) as stranger:
        guesses = [head(f"GET /v1/runs/{n} HTTP/1.1", f"sym_{n:012d}_x") for n in range(2_000)]
        sending = asyncio.create_task(stranger.send(b"".join(guesses)))
        for _ in guesses:
            assert (await stranger.reply()).status == 401
        await sending
        async with system.admin() as admin:
            notes = [note async for note in admin.admin.audit({"kind": "denied"})]
        assert sum(note["times"] for note in notes) == len(guesses)
        assert len(notes) < len(guesses) / 10
