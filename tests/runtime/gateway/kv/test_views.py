"""Pages, tokens and prefixes over HTTP, to their tenant only."""

from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient

from tests.runtime.gateway.kv.test_files import bare, with_files
from tests.support.gateway.system import Scenario, SystemRig, refusal, with_system
from tests.support.kernel.constrained import assets
from tests.support.kv_files import MATCH_WASM, SHARE_WASM, TEXT
from tests.support.run_by import run_by


def with_shared_files(tmp_path: Path, scenario: Scenario) -> None:
    async def whole(system: SystemRig, client: AsyncClient) -> None:
        await client.programs.upload(SHARE_WASM, name="share")
        await client.programs.upload(MATCH_WASM, name="match")
        assert (await client.run("share", input=TEXT))["exit_code"] == 0
        await scenario(system, client)

    with_system(tmp_path, whole, assets=assets())


@run_by(with_shared_files, "tmp_path")
async def test_pages_name_the_files_that_share_them(system: SystemRig, client: AsyncClient) -> None:
    shown = await client.kv.pages("talk/first")
    stat = await client.kv.stat("talk/first")
    assert stat.items() <= shown.items()
    whole = stat["len"] // 16
    head = {"first": 0, "tier": "device", "holders": 1, "cached": True}
    runs = shown["data"]
    assert runs[0] == {**head, "pages": 1, "files": ["talk/second"]}
    both = ["cut", "talk/second"]
    assert runs[1] == {**head, "first": 1, "pages": 2, "holders": 2, "files": both}
    assert runs[2] == {**head, "first": 3, "pages": whole - 3, "files": ["talk/second"]}
    assert runs[3:] == [
        {"first": whole, "pages": 1, "tier": "device", "holders": 0, "cached": False, "files": []}
    ]
    assert sum(run["pages"] for run in runs) == stat["pages"]
    assert (shown["complete"], shown["next"], shown["page_tokens"]) == (True, None, 16)
    assert shown["lineage"] is None
    cut = await client.kv.pages("cut")
    assert cut["lineage"] is not None
    assert [part["of"] for part in cut["lineage"]["parts"]] == [stat["len"]]


@run_by(with_shared_files, "tmp_path")
async def test_pages_come_in_answers_of_a_limit(system: SystemRig, client: AsyncClient) -> None:
    seen: list[Any] = []
    after: str | None = "0"
    while after is not None:
        url = f"/v1/kv-pages/talk%2Ffirst?limit=1&after={after}"
        page = (await system.ask("GET", url)).json
        assert len(page["data"]) == 1
        seen, after = seen + page["data"], page["next"]
    assert seen == (await client.kv.pages("talk/first"))["data"]
    assert len(seen) == 4


@run_by(with_shared_files, "tmp_path")
async def test_tokens_are_shown_with_positions_and_text(
    system: SystemRig, client: AsyncClient
) -> None:
    first = await client.kv.tokens("talk/first", limit=20, text=True)
    assert (first["first"], len(first["tokens"]), first["next"]) == (0, 20, "20")
    assert first["positions"] == list(range(20))
    assert TEXT.startswith("".join(first["texts"] or ()))
    rest = await client.kv.tokens("talk/first", 20, 4_096, text=True)
    assert rest["next"] is None
    assert "".join([*(first["texts"] or ()), *(rest["texts"] or ())]) == TEXT
    assert len(first["tokens"] + rest["tokens"]) == rest["len"]
    cut = await client.kv.tokens("cut")
    assert (cut["positions"], cut["texts"]) == (list(range(16, 40)), None)
    assert [run["program_name"] async for run in client.runs.list()] == ["share"], "no run is kept"


@run_by(with_files, "tmp_path")
async def test_tokens_of_a_file_on_disk_have_no_text_without_a_tokenizer(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.kv.upload("up", bare(2_000), rebuild=True)
    shown = await client.kv.tokens("up", 1_990, 4_096, text=True)
    assert shown["tokens"] == [n % 1_000 for n in range(1_990, 2_000)]
    assert (shown["texts"], shown["next"], shown["len"]) == (None, None, 2_000)
    assert (await client.kv.stat("up"))["tier"] == "disk", "it was not loaded"
    pages = await client.kv.pages("up")
    assert [(run["pages"], run["tier"]) for run in pages["data"]] == [(125, "disk")]


@run_by(with_shared_files, "tmp_path")
async def test_prefixes_are_a_tree_with_hits(system: SystemRig, client: AsyncClient) -> None:
    (part,) = (await client.kv.prefixes())["data"]
    assert (part["parent"], part["hits"], part["more"], part["text"]) == (None, 0, 0, None)
    assert (await client.run("match", input=TEXT))["exit_code"] == 0
    shown = await client.kv.prefixes(text=True)
    upper = shown["data"][0]
    assert upper["hits"] == 1
    assert TEXT.startswith(upper["text"] or "?")
    assert len(upper["tokens"]) == 32
    assert (shown["complete"], sum(each["pages"] for each in shown["data"])) == (
        True, shown["pages"]
    )  # fmt: skip
    assert (await client.run("match", input=TEXT[:100]))["exit_code"] == 0
    parts = (await client.kv.prefixes())["data"]
    assert [each["hits"] for each in parts[:2]] == [2, 1]
    assert parts[1]["parent"] == parts[0]["id"]


@run_by(with_shared_files, "tmp_path")
async def test_another_tenant_is_shown_nothing(system: SystemRig, client: AsyncClient) -> None:
    async with system.tenant() as stranger:
        for asked in (stranger.kv.pages, stranger.kv.tokens):
            for path in ("talk/first", "public/default/talk/first"):
                assert await refusal(asked(path)) == (404, "not-found")
        assert await stranger.kv.prefixes(text=True) == {
            "pages": 0, "complete": True, "data": [], "page_tokens": 16
        }  # fmt: skip
        await stranger.programs.upload(SHARE_WASM, name="share")
        assert (await stranger.run("share", input=TEXT))["exit_code"] == 0
        theirs = await stranger.kv.pages("talk/first")
        ours = await client.kv.pages("talk/first")
        assert theirs == ours, "the same text in other pages"
        assert (await stranger.kv.prefixes())["pages"] == (await client.kv.prefixes())["pages"]


@pytest.mark.parametrize(
    "url",
    [
        "/v1/kv-pages/x?after=-1", "/v1/kv-pages/x?limit=0", "/v1/kv-tokens/x?limit=4097",
        "/v1/kv-tokens/x?after=x", "/v1/kv-tokens/x?text=2", "/v1/prefixes?depth=65",
        "/v1/prefixes?limit=501", "/v1/kv-pages/a%2F%2Fb",
    ],
)  # fmt: skip
@run_by(with_files, "tmp_path")
async def test_wrong_parameters_are_refused(system: SystemRig, _: AsyncClient, *, url: str) -> None:
    assert (await system.ask("GET", url)).status == 400
