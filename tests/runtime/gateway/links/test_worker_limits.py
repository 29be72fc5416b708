"""Tenants' limits that workers check: workers are told them, and hits are counted."""

from symphony import AsyncClient
from symphony_runtime.config.limits import parse_limits

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import main

NAME = "memory_total_bytes"
# Two pages at the start; grows into what is left, exits with what `memory.grow` says then.
GROWS = guests.wasm(
    main("(drop (memory.grow (i32.const 2))) (call $await (call $sleep (i64.const 1)))"
         " (memory.grow (i32.const 1))")
)  # fmt: skip


@run_by(with_system, "tmp_path", limits=parse_limits({NAME: 4 << 16}))
async def test_worker_memory_of_a_tenant_is_bounded(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(GROWS, "grows")
    ended = await client.run("grows")
    assert (ended["status"], ended["exit_code"]) == ("exited", -1), ended
    counts = system.gateway.services.runs.metrics
    assert counts.of_tenant("default").limits[NAME] == 1
    async with system.admin() as admin:
        # Its quota changes at run time: nothing of it fits.
        await admin.admin.change_tenant("default", quotas={NAME: 1 << 16})
        ended = await client.run("grows")
        assert (ended["status"], ended["limit"]) == ("killed", NAME), ended
        assert counts.of_tenant("default").limits[NAME] == 2
        await admin.admin.change_tenant("default", quotas={NAME: 5 << 16})
        assert (await client.run("grows"))["exit_code"] == 4
