"""The console's views in a real browser show what a real server's real runs did."""

from pathlib import Path

from symphony import AsyncClient

from tests.e2e import programs as guests
from tests.support.browser import find_browser, open_tab
from tests.support.console import NEEDS, Console, console
from tests.support.examples import EXAMPLES, built
from tests.support.server.server import RunningServer

pytestmark = NEEDS


async def test_views_of_a_tenant_show_its_runs_programs_and_files(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(built(EXAMPLES / "completion").read_bytes(), "completion")
    await client.programs.upload(guests.SAVE_WASM, "save")
    await client.programs.upload(guests.HANG_WASM, "hang")
    ended = await client.run("completion", input="def f(", trace=True)
    await client.run("save")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("overview", "Tokens a second", "worker-0", "seccomp", "ready")
        await shown.show("runs", "completion", "exited")
        await shown.show(f"runs/{ended['id']}", ended["output"].splitlines()[0], "128 generated",
                         "Timeline", "Time by kind")  # fmt: skip
        assert await shown.until("document.querySelector('canvas.timeline')?.width > 0")
        await shown.show("programs", "completion", "compute with the model", "Upload")
        (file, *_) = [file async for file in client.kv.list()]
        folder, _, name = file["path"].rpartition("/")
        await shown.show("files", f"{folder}/", name)
        await shown.show(f"files/{file['path']}", "tokens in", "device", "Download")
        assert shown.hosts() == {server.url.removeprefix("http://")}


async def test_playground_streams_the_model_and_a_program(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(built(EXAMPLES / "completion").read_bytes(), "completion")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("playground", "What runs", "compare two")
        await shown.fill("textarea", "read a file")
        await shown.click("Run")
        await shown.sees("first piece after", "in all")
        assert await shown.until("document.querySelector('pre.tail').textContent.length > 10")
        await shown.fill("select", "completion")
        await shown.fill("textarea", "def f(")
        await shown.click("Run")
        await shown.sees("exited", "the run", "tokens, ended by")
        assert "return" in await shown.text()


async def test_live_run_is_cancelled_from_its_view(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    run = await client.start("hang")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show(f"runs/{run}", "running", "Message to the program")
        await shown.click("Cancel")
        await shown.sees("killed", "it was cancelled")
    assert (await client.runs.get(run))["status"] == "killed"


async def test_operator_adds_a_tenant_with_a_key_that_works(
    server: RunningServer, tmp_path: Path
) -> None:
    async with console(server, server.admin_key, tmp_path) as shown:
        await shown.show("operators", "Least share", "default")
        assert "Playground" not in await shown.text()
        await shown.fill(".filters input", "console-made")
        await shown.click("Add a tenant")
        await shown.sees("console-made")
        await shown.show("operators/keys%20console-made", "The tenant has no key.")
        await shown.click("Make a key")
        key = await shown.until("document.querySelector('.shown-once code')?.textContent")
        await shown.show("operators/usage", "Generated")
        await shown.show("operators/audit", "createTenantKey")
    async with AsyncClient(server.url, key, retries=0) as made:
        assert [run async for run in made.runs.list()] == []


async def test_wrong_key_is_told_and_not_kept(server: RunningServer, tmp_path: Path) -> None:
    program = find_browser()
    assert program is not None
    async with open_tab(program, tmp_path) as tab:
        await tab.open(f"{server.url}/")
        shown = Console(tab, server.url)
        await shown.fill("#key", "sym_nobody")
        await shown.click("Open")
        await shown.sees("(401)")
        assert await tab.evaluate("sessionStorage.length") == 0
        assert await tab.evaluate("document.querySelector('#key') !== null")
