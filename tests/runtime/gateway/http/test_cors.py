"""Pages of the origins that the operator names may call the server; others may not."""

from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_runtime.cli.main import main
from symphony_runtime.config.serve import OptionsError, read_options

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by

PAGE = "https://page.example"
OTHER = "https://other.example"


def preflight(origin: str) -> dict[str, Any]:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization, content-type"}  # fmt: skip
    return {"headers": asked, "key": "none"}


def allowed(headers: Any) -> str | None:
    found: str | None = headers.get("Access-Control-Allow-Origin")
    return found


@run_by(with_system, "tmp_path", cors_origins=[PAGE, "http://localhost:3000"])
async def test_page_of_an_allowed_origin_may_call(system: SystemRig, client: AsyncClient) -> None:
    for path in ("/v1/completions", "/v1/kv/a/b", "/nothing"):
        answer = await system.ask("OPTIONS", path, **preflight(PAGE))
        assert (answer.status, answer.body) == (204, b"")
        assert allowed(answer.headers) == PAGE
        assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        assert answer.headers["Access-Control-Allow-Headers"] == "authorization, content-type"
        assert "Access-Control-Allow-Credentials" not in answer.headers
    program = await client.programs.upload(guests.HELLO_WASM)
    for stream in (False, True):
        path, body = f"/v1/programs/{program['id']}/runs", {"stream": stream}
        answer = await system.ask("POST", path, json=body, headers={"Origin": PAGE})
        assert (answer.status, allowed(answer.headers)) == (200, PAGE)
        assert "X-Run-Id" in answer.headers["Access-Control-Expose-Headers"]
    for path, key in (("/v1/models", "wrong"), ("/nothing", None)):
        answer = await system.ask("GET", path, key=key, headers={"Origin": PAGE})
        assert (answer.status >= 400, allowed(answer.headers)) == (True, PAGE)


@run_by(with_system, "tmp_path", cors_origins=[PAGE])
async def test_page_of_another_origin_may_not_call(system: SystemRig, _: AsyncClient) -> None:
    for origin in (OTHER, PAGE + ":444", PAGE.replace("https", "http"), "null"):
        answer = await system.ask("OPTIONS", "/v1/completions", **preflight(origin))
        assert (answer.status, allowed(answer.headers)) == (405, None)
        answer = await system.ask("GET", "/v1/models", headers={"Origin": origin})
        assert (answer.status, allowed(answer.headers)) == (200, None)
        assert answer.headers["Vary"] == "Origin", "caches must not mix them"
    plain = await system.ask("OPTIONS", "/v1/models", headers={"Origin": PAGE})
    assert plain.status == 405, "no preflight"


@run_by(with_system, "tmp_path", cors_origins=["*"])
async def test_star_allows_every_origin(system: SystemRig, _: AsyncClient) -> None:
    answer = await system.ask("OPTIONS", "/v1/completions", **preflight(OTHER))
    assert (answer.status, allowed(answer.headers)) == (204, OTHER)


@run_by(with_system, "tmp_path")
async def test_server_without_origins_says_nothing_of_cors(
    system: SystemRig, _: AsyncClient
) -> None:
    answer = await system.ask("OPTIONS", "/v1/completions", **preflight(PAGE))
    assert answer.status == 405
    answer = await system.ask("GET", "/v1/models", headers={"Origin": PAGE})
    assert not {"Vary", "Access-Control-Allow-Origin"} & set(answer.headers)


@pytest.mark.parametrize("origin", ["page.example", PAGE + "/", PAGE + "/a", "https://*.a", ""])
def test_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(OptionsError, match="is no origin"):
        read_options(None, {"cors_origins": [PAGE, origin]})


def test_origins_are_a_list_in_the_file_and_commas_in_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "symphony.toml"
    file.write_text(f'cors_origins = ["{PAGE}", "{OTHER}"]\n')
    assert read_options(file, {}).cors_origins == [PAGE, OTHER]
    assert main(["serve", "--cors-origins", f"{PAGE},{OTHER}/x"]) != 0
    assert f"'{OTHER}/x' is no origin" in capsys.readouterr().err
