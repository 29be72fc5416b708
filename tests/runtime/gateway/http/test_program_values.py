"""The input of a run is checked against its program's schema before the run starts."""

from typing import Any

from symphony import AsyncClient

from tests.support.gateway.declared import MIRROR_WASM, NUMBERS, PERSON, declared
from tests.support.gateway.system import SystemRig, refused, with_system
from tests.support.run_by import run_by


@run_by(with_system, "tmp_path")
async def test_input_that_does_not_fit_starts_no_run(
    system: SystemRig, client: AsyncClient
) -> None:
    program = await client.programs.upload(declared(MIRROR_WASM, input_schema=PERSON), "person")
    for given, path, words in (
        ({"name": 1}, "/name", "`input/name` must be a string; it is an integer"),
        ('{"name": 1}', "/name", "`input/name` must be a string; it is an integer"),
        ("", "", "`input` is a text that is not JSON"),
        ("{", "", "`input` is a text that is not JSON"),
        ('"text"', "", "`input` must be an object; it is a string"),
        ([], "", "`input` must be an object; it is a list"),
        ({"name": "x", "k/": 1}, "/k~1", "is unknown; there are name, age"),
        (r'{"name": "x", "\ud800": 1}', "/?", "is unknown; there are name, age"),
    ):  # fmt: skip
        error = await refused(client.run(program["id"], input=given))
        assert (error.status, error.problem["type"]) == (400, "urn:symphony:problem:bad-input")
        assert error.problem["path"] == path
        assert words in error.problem["detail"]
    assert [run async for run in client.runs.list()] == []
    error = await refused(client.start("person", input={}))  # detached, likewise
    assert error.status == 400
    for fitting in ({"name": "x", "age": 3}, '{"name": "x"}'):
        assert (await client.run("person", input=fitting))["exit_code"] == 0


@run_by(with_system, "tmp_path")
async def test_string_input_is_text_where_the_schema_says_so(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(
        declared(MIRROR_WASM, input_schema={"type": "string", "maxLength": 3}), "t"
    )
    assert (await client.run("t", input="[1,"))["output"] == "[1,"
    assert (await refused(client.run("t", input="long"))).problem["path"] == ""
    await client.programs.upload(MIRROR_WASM, "free")
    assert (await client.run("free", input="{"))["output"] == "{"


@run_by(with_system, "tmp_path")
async def test_check_of_a_large_input_is_charged_to_its_tenant(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(declared(MIRROR_WASM, input_schema=NUMBERS), "list")
    charged: list[tuple[str, float]] = []
    charge = system.gateway.services.cpu_reporter.charge

    def noted(tenant: str, seconds: float) -> None:
        charged.append((tenant, seconds))
        charge(tenant, seconds)

    system.gateway.services.cpu_reporter.charge = noted  # type: ignore[method-assign]
    large: Any = [1] * 20_000
    error = await refused(client.run("list", input=[*large, "x"]))
    assert error.problem["path"] == "/20000"
    assert sum(seconds for tenant, seconds in charged if tenant == "default") > 0.01


@run_by(with_system, "tmp_path")
async def test_check_that_takes_too_long_is_refused(system: SystemRig, client: AsyncClient) -> None:
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    bomb = {"$ref": "#/$defs/d0", "$defs": {**twice, "d40": {}}}
    await client.programs.upload(declared(MIRROR_WASM, input_schema=bomb), "bomb")
    error = await refused(client.run("bomb", input=1))
    assert error.problem["detail"] == "`input` cannot be checked: it takes too many steps"


@run_by(with_system, "tmp_path")
async def test_manifest_is_in_the_program_s_view(system: SystemRig, client: AsyncClient) -> None:
    shown = await client.programs.upload(
        declared(MIRROR_WASM, description="d", input_schema=PERSON), "a"
    )
    assert (shown["description"], shown["input_schema"]) == ("d", PERSON)
    assert shown["output_schema"] is None
    assert await client.programs.get("a") == shown
    assert [program async for program in client.programs.list()] == [shown]
    await client.programs.upload(MIRROR_WASM, "b")
    assert (await client.programs.get("b"))["description"] is None
    error = await refused(
        client.programs.upload(declared(MIRROR_WASM, input_schema={"type": "x"}), "c")
    )
    assert error.problem["type"] == "urn:symphony:problem:program-refused"
    assert error.problem["problems"][0].startswith("the manifest: `input_schema/type` must be one")
