"""Limits of a tenant at which its workers look: they are told, and what they hit is counted."""

from pathlib import Path

from symphony_runtime.client import Client
from symphony_runtime.config.limits import parse_limits

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig
from tests.support.worker.guests import main

NAME = "memory_total_bytes"
# Two pages at the start; grows into what is left, exits with what `memory.grow` says then.
GROWS = guests.wasm(
    main("(drop (memory.grow (i32.const 2))) (call $await (call $sleep (i64.const 1)))"
         " (memory.grow (i32.const 1))")
)  # fmt: skip


async def test_a_tenants_memory_in_a_worker_is_bounded_by_its_limit_and_counted(
    tmp_path: Path,
) -> None:
    limits = parse_limits({NAME: 4 << 16})
    async with (
        SystemRig(tmp_path, limits=limits) as system,
        Client(system.url, system.admin_key) as admin,
        system.client() as client,
    ):
        await client.upload(GROWS, "grows")
        ended = await client.run("grows")
        assert (ended["status"], ended["exit_code"]) == ("exited", -1), ended
        figures = system.gateway.services.runs.metrics
        assert figures.of_tenant("default").limits[NAME] == 1
        # Its quota changes at run time: nothing of it fits.
        await admin.change_tenant("default", quotas={NAME: 1 << 16})
        ended = await client.run("grows")
        assert (ended["status"], ended["limit"]) == ("killed", NAME), ended
        assert figures.of_tenant("default").limits[NAME] == 2
        await admin.change_tenant("default", quotas={NAME: 5 << 16})
        assert (await client.run("grows"))["exit_code"] == 4
