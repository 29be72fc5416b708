"""kill -9 of real roles under load: what was acknowledged is there, and what runs goes on."""

import asyncio
import random
from pathlib import Path

from tests.support.deaths import Witness, kill
from tests.support.server import RunningServer, running_server


def test_a_gateway_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    async def whole(server: RunningServer) -> None:
        chance = random.Random(1)
        async with server.client() as client:
            witness = Witness(client)
            await witness.begin(2)
            for _ in range(3):
                await asyncio.sleep(chance.uniform(0.2, 0.6))
                await kill(server, "gateway")
            await asyncio.sleep(0.3)
            await witness.end()
            await witness.check()
        assert witness.problems == []
        assert witness.resumed
        for acknowledged in (witness.programs, witness.results, witness.saved, witness.told):
            assert acknowledged
        assert (await server.wait_until_idle())["instances"] == 0

    with running_server(tmp_path) as server:
        asyncio.run(whole(server))
