"""The whole server under requests that come by themselves: it shows what arrivals and ends cost.

First 64 streams in a closed loop, whose rate is what the server can do. Then Poisson arrivals at a
share of it. Runs come and end all the time there, while in the other parts all begin at once.
"""

import asyncio
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.gpu.model import Model
from benchmarks.gpu.report import Finding
from benchmarks.gpu.served import Load, served_model
from benchmarks.serving.client import Endpoint, Request, drive
from benchmarks.serving.workloads import Column, Workload, arrivals

SHARES = (0.5, 0.8)  # of the closed loop's rate
CLOSED_SHARE_MIN = 0.9  # of the tokens asked for that come while they are asked for
STREAMS_MAX = 64
SECONDS = 30.0  # of each open loop
_POOL_FACTOR = 4  # pages for so many times the streams: an open loop has more at times
ROUNDS = 3  # of the closed loop: requests of each stream


def measure(
    model: Model, load: Load, room: Path | None, more: list[str], seconds: float
) -> list[Finding]:
    """Return findings of the closed loop, and of `seconds` of each open one."""
    room_for = replace(load, streams=_POOL_FACTOR * load.streams)
    with served_model(model, [room_for], room, more) as (url, key, name):
        endpoint = Endpoint("symphony", url, name, key)
        return asyncio.run(_measure(model, endpoint, load, seconds))


async def _measure(model: Model, endpoint: Endpoint, load: Load, seconds: float) -> list[Finding]:
    async def run(workload: Workload, turn: int, due: list[float] | None) -> list[Request]:
        random = np.random.default_rng((load.streams, turn))
        drawn = random.integers(20, load.vocab_size, (workload.requests, load.prompt))
        return await drive(endpoint, workload, drawn.tolist(), due)

    closed = Workload(
        "closed", load.prompt, load.new, Column.WHOLE, load.streams, load.streams * ROUNDS
    )
    await run(closed, 0, None)  # warm
    done = await run(closed, 1, None)
    rate = len(done) / max(request.ended for request in done)
    findings = [finding(model, f"closed, {load.streams} streams", done, None)]
    for turn, share in enumerate(SHARES, 2):
        asked = max(round(rate * share * seconds), 2)
        workload = Workload(
            f"open {share:.0%}", load.prompt, load.new, Column.FIRST, 1, asked, rate * share
        )
        due = arrivals(rate * share, asked, turn)
        done = await run(workload, turn, due)
        findings.append(finding(model, f"open at {share:.0%} of it", done, rate * share))
    return findings


def finding(model: Model, case: str, done: list[Request], rate: float | None) -> Finding:
    """Return rates and times of some requests; with the `rate` asked for, whether it kept up."""
    span = max(request.ended for request in done) - min(request.due for request in done)
    firsts = [request.to_first for request in done]
    gaps = [gap for request in done for gap in request.between] or [0.0]
    served = len(done) / span
    right = None
    if rate is not None and model.tensors.device.type == "cuda":
        # The last requests take as long as the first ones: they are no lag.
        latency = statistics.median(request.latency for request in done)
        right = len(done) / max(span - latency, 1e-9) >= CLOSED_SHARE_MIN * rate
    return Finding(
        "open", model.name, case,
        {"requests": len(done), "requests/s": served,
         "tokens/s": sum(request.completion_tokens for request in done) / span,
         "first token, median (ms)": 1e3 * statistics.median(firsts),
         "first token, 95% (ms)": 1e3 * float(np.percentile(firsts, 95)),
         "between, 99% (ms)": 1e3 * float(np.percentile(gaps, 99))},
        right,
    )  # fmt: skip
