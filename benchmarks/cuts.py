"""kill -9 of the kernel during `kv_save` with replace and durable: is a name ever torn?

    python -m benchmarks.cuts [--cuts 20] [--seed 1] [--executor simulated|torch] [--json]

A program saves a growing file under one durable name, again and again; the kernel is killed at a
random instant, 20 times. The kernel keeps no journal here: nothing but the disk brings a name back.
Told is, for each cut, how many tokens the last acknowledged save had and how many the file has
afterwards, and whether it is whole. Exits with 1 unless each is the old file or the new one.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.support.server.cuts import SAVER_WASM, Cutter
from tests.support.server.server import running_server


async def make_cuts(cutter: Cutter, cuts: int) -> None:
    """Cut so often."""
    async with cutter.server.client() as client:
        await client.programs.upload(SAVER_WASM, name="saver")
    for number in range(cuts):
        await cutter.cut(number)


def main() -> int:
    """Run the cuts and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executor", choices=("simulated", "torch"), default="simulated")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), "--no-journal", executor=options.executor) as server,
    ):
        cutter = Cutter(server, random.Random(options.seed))
        asyncio.run(make_cuts(cutter, options.cuts))
    good = sum(cut.good for cut in cutter.cuts)
    if options.json:
        print(json.dumps({"good": good, "cuts": [asdict(cut) for cut in cutter.cuts]}))
    else:
        for cut in cutter.cuts:
            print(f"acknowledged {cut.acknowledged:6}  found {cut.found:6}  {cut.good}")
        new = sum(cut.found > cut.acknowledged for cut in cutter.cuts)
        print(f"{good} of {len(cutter.cuts)} old or new, of them {new} new")
    return 0 if good == len(cutter.cuts) else 1


if __name__ == "__main__":
    sys.exit(main())
