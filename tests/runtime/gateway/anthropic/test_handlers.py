"""Models, and keys, as Anthropic's clients ask for them."""

from symphony import AsyncClient
from wasmtime import wat2wasm

from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by

VERSION = {"anthropic-version": "2023-06-01"}
MEMORY = '(memory (export "memory") 1)'
PROGRAM = f'(module {MEMORY} (func (export "lip_main") (result i32) i32.const 0))'


@run_by(with_system, "tmp_path")
async def test_models_have_the_form_of_the_client(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(wat2wasm(PROGRAM), name="mine")
    theirs = await system.ask("GET", "/v1/models", headers=VERSION)
    name = system.kernel._executor.model.name
    context = system.kernel._executor.model.max_context
    assert theirs.json["has_more"] is False
    assert (theirs.json["first_id"], theirs.json["last_id"]) == (name, "mine")
    model, program = theirs.json["data"]
    assert (model["id"], model["type"], model["max_input_tokens"]) == (name, "model", context)
    assert model["created_at"].endswith("Z")
    assert (program["id"], program["max_input_tokens"]) == ("mine", None)
    for each in (model, program):
        one = await system.ask("GET", f"/v1/models/{each['id']}", headers=VERSION)
        assert one.json == each
    ours = await system.ask("GET", "/v1/models")
    assert [each["id"] for each in ours.json["data"]] == [name, "mine"]
    assert ours.json["object"] == "list"
    assert (await system.ask("GET", f"/v1/models/{name}")).json["object"] == "model"
