"""Where each model's roles meet and keep their files."""

from pathlib import Path

import pytest
from safetensors.numpy import save_file
from symphony_runtime.config.models import ModelChoice
from symphony_runtime.config.serve import ServeOptions
from symphony_runtime.supervisor.models import kv_directories, model_places
from symphony_runtime.supervisor.supervisor import role_specs

A, B = ModelChoice("a", "/models/a"), ModelChoice("b", "/models/org-b")


def keep(data_dir: Path, model: str) -> None:
    """Write a KV file of a model, as far as its owner is asked for."""
    (data_dir / "kv" / "0f").mkdir(parents=True, exist_ok=True)
    save_file({}, data_dir / "kv" / "0f" / "1e.safetensors", {"model": model})


def test_one_model_has_the_directory_whatever_its_name(tmp_path: Path) -> None:
    for model in (ModelChoice("", "tiny"), A, B):
        assert kv_directories(tmp_path, [model]) == {model.name: tmp_path / "kv"}
    assert not (tmp_path / "kv").exists()


@pytest.mark.parametrize(
    ("made_by", "owner"), [(None, "a"), ("a", "a"), ("b", "b"), ("org-b", "b"), ("gone", "a")]
)
def test_files_stay_with_the_model_that_they_are_of(
    tmp_path: Path, made_by: str | None, owner: str
) -> None:
    if made_by is not None:
        keep(tmp_path, made_by)
    first = kv_directories(tmp_path, [A, B])
    assert first[owner] == tmp_path / "kv"
    assert len(set(first.values())) == 2
    keep(tmp_path, "a" if owner == "b" else "b")  # what is in it does not matter any more
    assert kv_directories(tmp_path, [B, A]) == first
    for model in (A, B):
        assert kv_directories(tmp_path, [model]) == {model.name: first[model.name]}
    third = ModelChoice("c/../d", "tiny")
    places = kv_directories(tmp_path, [third, A, B])
    assert places[third.name] == tmp_path / "models" / "c%2F..%2Fd" / "kv"
    assert {name: places[name] for name in "ab"} == first


def test_broken_files_do_not_hide_the_owner(tmp_path: Path) -> None:
    keep(tmp_path, "b")
    for name, data in (("0a", b""), ("0b", b"\xff" * 64), ("0c", b"\x02\0\0\0\0\0\0\0[]")):
        (tmp_path / "kv" / "0f" / f"{name}.safetensors").write_bytes(data)
    assert kv_directories(tmp_path, [A, B])["b"] == tmp_path / "kv"


def test_each_model_has_a_kernel_and_workers_of_its_own(tmp_path: Path) -> None:
    models = {"a": "/models/a", "b": "tiny"}
    options = ServeOptions(workers=2, data_dir=tmp_path, model=models)
    run = tmp_path / "run"
    places = model_places(options, run)
    assert [place.worker_names for place in places] == [
        ["worker-0", "worker-1"], ["worker-2", "worker-3"]
    ]  # fmt: skip
    assert len({place.socket for place in places} | {str(run / "gateway.sock")}) == 3
    specs = {spec.name: spec.config for spec in role_specs(options, run)}
    gateway = specs.pop("gateway")
    for name, (kernel, workers) in {
        "a": ("kernel", ["worker-0", "worker-1"]), "b": ("kernel-1", ["worker-2", "worker-3"])
    }.items():  # fmt: skip
        config = specs.pop(kernel)
        assert (config["name"], config["model"]) == (name, models[name])
        assert set(config["secrets"]) == {"gateway", *workers}
        for worker in workers:
            assert specs[worker]["kernel_socket"] == config["socket"]
            assert specs.pop(worker)["secret"] == config["secrets"][worker]
        told = {"name": name, "kernel": kernel, "socket": config["socket"], "workers": workers}
        assert told in gateway["models"]
    assert not specs
    *_, alone = role_specs(ServeOptions(), run)
    assert alone.config["models"] == []
