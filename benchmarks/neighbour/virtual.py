"""The kernel's part alone, on the simulated executor in virtual time: the same on every machine.

The fair share is what the victim has alone on a device of half the speed; at other weights, or with
more attackers, its share of what it has alone.
"""

from dataclasses import replace

from tests.support.kernel.floods import (
    FLOODS,
    GENERATIONS,
    WANTED,
    Completions,
    Device,
    fair,
    measure,
)

BOUND = 1.25
CALL_US = 100.0  # of the kernel's thread, for a call on a KV file
CALLS = f"files, {CALL_US:.0f} us a call"
DEVICES = {  # as in benchmarks.pressure, and one with steps shorter than the host's part
    "a small model on two cores": Device(15_000, 600, 700, 0.1, host_us=300),
    "a tiny model on two cores": Device(400, 20, 60, 0.01, host_us=500),
    "an accelerator": Device(6_000, 15, 20, 0.002, host_us=300),
}
WEIGHTS = ((1.0, 1.0, 1), (1.0, 1.0, 5), (10.0, 1.0, 1), (10.0, 1.0, 5), (1.0, 10.0, 1))
Tables = dict[str, dict[str, dict[str, float]]]


def benchmark() -> Tables:
    """Return by device and wish the rows of a report."""
    found: Tables = {}
    for device_name, device in DEVICES.items():
        for wish, wanted in WANTED.items():
            share = fair(device, wanted)
            rows = {}
            for flood, programs in {"no other": [], **FLOODS, CALLS: FLOODS["files"]}.items():
                got = measure(device, wanted, programs, call_us=CALL_US * (flood == CALLS))
                rate, _, p99 = got.worse(share)
                rows[flood] = {
                    "tokens_s": got.rate, "p99_ms": got.p99_ms, "first_ms": got.first_ms,
                    "rate_ratio": rate, "p99_ratio": p99,
                }  # fmt: skip
            found[f"{device_name}, {wish}"] = rows
        found[f"{device_name}, 256 answers at once, by weights"] = _weighted(device)
    return found


def _weighted(device: Device) -> dict[str, dict[str, float]]:
    wanted = Completions(each=6)
    alone, rows = measure(device, wanted, [], device.told()), {}
    for own, other, attackers in WEIGHTS:
        share = own / (own + other * attackers)
        got = measure(device, wanted, GENERATIONS, weights=(own, other), attackers=attackers)
        due = replace(alone, rate=alone.rate * share, p99_ms=alone.p99_ms / share)
        rate, _, p99 = got.worse(due)
        rows[f"{own:g}:{other:g}, {attackers} attacking"] = {
            "tokens_s": got.rate, "p99_ms": got.p99_ms, "first_ms": got.first_ms,
            "rate_ratio": rate, "p99_ratio": p99,
        }  # fmt: skip
    return rows


def show(tables: Tables) -> None:
    """Print the report as tables."""
    for title, rows in tables.items():
        print(f"\n{title}")
        bound = f"(<= {BOUND})"
        print("fair / had: 1 is the fair share, less is better")
        print(f"{'':28}{'':30}{'throughput':>14}{'p99':>14}")
        print(f"{'beside':28}{'tokens/s':>10}{'p99 ms':>10}{'first ms':>10}{bound:>14}{bound:>14}")
        for name, row in rows.items():
            bad = max(row["rate_ratio"], row["p99_ratio"]) > BOUND
            figures = f"{row['tokens_s']:10.0f}{row['p99_ms']:10.1f}{row['first_ms']:10.1f}"
            ratios = f"{row['rate_ratio']:14.2f}{row['p99_ratio']:14.2f}"
            print(f"{name:28}{figures}{ratios}{f'   past {BOUND}' if bad else ''}")


def passes(tables: Tables) -> bool:
    """Return whether all ratios are within the bound."""
    return all(
        max(row["rate_ratio"], row["p99_ratio"]) <= BOUND
        for rows in tables.values()
        for row in rows.values()
    )
