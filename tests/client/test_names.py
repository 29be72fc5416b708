"""What `import symphony` gives."""

import subprocess
import sys

import pytest
import symphony


@pytest.mark.parametrize("name", symphony.__all__)
def test_name_is_there(name: str) -> None:
    assert getattr(symphony, name) is not None


def test_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="'symphony' has no attribute 'nothing'"):
        symphony.nothing  # noqa: B018


def test_client_alone_loads_nothing_of_programs() -> None:
    code = "import sys, symphony; print([m for m in sys.modules if 'symphony.sdk' in m])"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout == "[]\n"
