"""Scrapes, read with the parser of the library that a Prometheus user has."""

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e import programs as guests
from tests.support.worker.guests import call, drop, main, times
from tests.support.worker.snippets import CREATE, KV

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]  # by name and labels

# A prompt of eight tokens, then four tokens one by one.
DECODE = guests.wasm(
    main(
        f"""{CREATE} {drop("claim", call("pred", KV, 0, 8, 0, 0, 0), 256, 8)}
        {times(4, drop("claim", call("pred", KV, 256, 1, 0, 0, 0), 256, 8))}
        {drop("send", 256, 4)} (i32.const 0)""",
        locals_="(local $kv i32) (local $n i32)",
    )
)


async def scrape(url: str, key: str) -> Series:
    """Return every series that a key gets to see; names without their prefix."""
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{url}/metrics") as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    found: Series = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.name.startswith("symphony:")
        for sample in family.samples:
            series = (sample.name.removeprefix("symphony:"), frozenset(sample.labels.items()))
            assert series not in found, "a series stands there twice"
            found[series] = sample.value
    return found


def value(series: Series, name: str, **labels: str) -> float:
    """Return the sum of the series with this name and (at least) these labels."""
    found = [
        each
        for (series_name, series_labels), each in series.items()
        if series_name == name and labels.items() <= dict(series_labels).items()
    ]
    assert found, f"no series {name} {labels}"
    return sum(found)


def names(series: Series) -> set[str]:
    return {name for name, _ in series}


def tenants(series: Series) -> set[str]:
    """Return the tenants that labels name."""
    return {dict(labels)["tenant"] for _, labels in series if "tenant" in dict(labels)}
