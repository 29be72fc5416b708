import hashlib
import json
from pathlib import Path
from typing import cast

import pytest
import symphony
from symphony.programs.program import Program
from symphony.programs.source import with_manifest


@symphony.program
async def doubled(n: int) -> int:
    """Return it twice."""
    return 2 * n


@symphony.program(name="other", server="http://127.0.0.1:9")
async def named(n: int) -> int:
    return n


async def test_program_called_is_its_function() -> None:
    assert await doubled(3) == 6
    assert doubled.__doc__ == "Return it twice."
    assert (doubled.name, named.name) == ("doubled", "other")


def test_version_is_the_digest_of_the_module() -> None:
    source = Path(__file__).read_bytes()
    assert doubled.version == named.version == f"sha256:{hashlib.sha256(source).hexdigest()}"
    assert doubled.input_schema["$defs"]["doubled"]["required"] == ["n"]
    assert doubled.output_schema == {"type": "integer"}


def test_deployed_source_begins_with_its_manifest() -> None:
    first, rest = doubled.deployed_source.split("\n", 1)
    manifest = json.loads(first.removeprefix("# symphony: "))
    assert (manifest["description"], rest) == ("Return it twice.", doubled.source)
    assert manifest["output_schema"] == {"type": "integer"}
    assert manifest["permissions"] == []
    own = "#!/usr/bin/env python\n# mine\n# symphony: {}\nx = 1\n"
    assert with_manifest(own, {}) == own
    assert with_manifest("x = 1  # symphony: no\n", {}) == "# symphony: {}\nx = 1  # symphony: no\n"


def test_function_that_is_not_async_is_refused() -> None:
    def plain(n: int) -> int:
        return n

    with pytest.raises(TypeError, match="plain must be an `async def`"):
        symphony.program(plain)  # type: ignore[arg-type]


async def test_server_that_is_not_there_is_an_attach_error() -> None:
    program = cast("Program[[int], int]", named)
    with pytest.raises(symphony.AttachError, match="no key is known"):
        await program.run(1)
