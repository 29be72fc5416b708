"""What `symphony doctor` says of the disk and of compilers."""

from pathlib import Path

import pytest
from symphony_runtime.cli.doctor import _assemblyscript, _data_dir, _model

from tests.support.faults.small_disk import fill, small_disk

MIB = 1 << 20


def test_doctor_on_a_full_disk_says_what_is_free_and_what_holds_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        folder = disk / "data"
        told = _data_dir(folder)  # which a server has yet to make
        assert (told.good, told.needed) == (True, True)
        assert f"{folder}, 64 MiB free; 16 MiB are reserved" in told.words
        (folder / "programs").mkdir(parents=True)
        (folder / "programs" / "one").write_bytes(bytes(3 * MIB))
        fill(disk, leave=MIB)
        told = _data_dir(folder)
        assert not told.good
        assert f"{folder}, 1 MiB free" in told.words
        assert "programs: 3 MiB" in told.words


@pytest.mark.parametrize(("version", "good"), [("v16.20.2", False), ("v18.19.0", True)])
def test_doctor_asks_for_a_node_that_runs_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, good: bool
) -> None:
    node = tmp_path / "node"
    node.write_text(f"#!/bin/sh\necho {version}\n")
    node.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = _assemblyscript()
    assert (told.good, told.needed) == (good, False)
    assert f"node {version}" in told.words
    assert ("18 or newer" in told.words) is not good


def test_doctor_knows_each_form_of_a_models_name(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    assert not _model(str(file)).good
    file.touch()
    assert _model(str(file)).good
    assert "config.json, tokenizer.json, *.safetensors missing" in _model("./none").words
    hub = _model("org/name@main:Q8_0")
    assert hub.good
    assert "at the Hugging Face Hub" in hub.words
