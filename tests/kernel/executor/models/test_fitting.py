"""Models that do not fit into memory are refused before their weights are read."""

import contextlib
import json
import logging
import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from symphony_kernel.config import Configuration, make_executor
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.fitting import MemoryNeeds
from symphony_kernel.executor.models.shapes import tensor_shapes
from symphony_kernel.executor.models.tensor_headers import read_headers
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.platform.memory import attainable_bytes

from tests.support.executor.refusals import TINY, fresh, linked_model, refused_server
from tests.support.requirements import lacking, requires

MIB = 1 << 20


def large_model(folder: Path, size: int) -> Path:
    """Make a model whose bfloat16 weights have at least so many bytes, in a sparse file."""
    linked_model(folder)
    values = json.loads((TINY / "config.json").read_text())
    values |= {"hidden_size": 8_192, "intermediate_size": 1 << 15, "num_hidden_layers": 1}
    fresh(folder / "config.json").write_text(json.dumps(values))
    layer = 2 * sum(
        math.prod(shape) for name, shape in tensor_shapes(load_config(folder)) if "layers.0" in name
    )
    values["num_hidden_layers"] = -(-size // layer)
    (folder / "config.json").write_text(json.dumps(values))
    head, at = {}, 0
    for name, shape in tensor_shapes(load_config(folder)):
        end = at + 2 * math.prod(shape)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    written = json.dumps(head).encode()
    weights = fresh(folder / "model.safetensors")
    weights.write_bytes(struct.pack("<Q", len(written)) + written)
    os.truncate(weights, 8 + len(written) + at)
    return folder


def serve(folder: Path, model: Path | str, *options: str, group: Path | None = None) -> str:
    """Start a server that refuses its model; return its last line, the only one about weights."""
    lines, _ = refused_server(folder, model, *options, group=group)
    assert "\n".join(lines).count("the weights take") == 1
    return lines[-1]


@contextlib.contextmanager
def cgroup(limit: int) -> Iterator[Path]:
    """Make a cgroup with so much memory; skip the test where the system does not allow it."""
    for mounted, name in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        folder = Path("/sys/fs/cgroup") / mounted / f"symphony-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / name).exists():
                (folder / name).write_text(str(limit))
                yield folder
                return
        finally:
            folder.rmdir()
    lacking("cgroup", "no cgroup can be made here")


# --- A server ------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_weights_larger_than_memory_are_refused(tmp_path: Path, device: str) -> None:
    if device == "auto" and torch.cuda.is_available():
        lacking("no-gpu", "the device is a GPU here")
    there = attainable_bytes()
    assert there is not None
    model = large_model(tmp_path / "large", 2 * there)
    words = serve(tmp_path, model, "--device", device)
    taken = re.search(f"{model}: the weights take ([0-9]+) MiB", words)
    assert taken is not None
    assert int(taken[1]) > 1.9 * there / MIB
    assert "(as bfloat16), and this machine, or its cgroup, can give" in words


def test_pool_larger_than_memory_is_refused(tmp_path: Path) -> None:
    words = serve(tmp_path, "tiny", "--pool-bytes", str(1 << 50), "--device", "cpu")
    assert f"and pool_bytes {1 << 50}, " in words


def test_weights_larger_than_the_cgroups_limit_are_refused(tmp_path: Path) -> None:
    model = large_model(tmp_path / "large", 1 << 30)
    with cgroup(900 * MIB) as group:
        words = serve(tmp_path, model, "--device", "cpu", group=group)
    size = int(words.rpartition("can give ")[2].removesuffix(" MiB"))
    assert 500 < size <= 900


# --- What is counted -----------------------------------------------------------------------------
def needs(**more: object) -> MemoryNeeds:
    plain = MemoryNeeds(TINY, load_config(TINY), "float32")
    return replace(plain, **more)  # type: ignore[arg-type]


def products() -> int:
    """Numbers in the matrices of the embedded model, the head's (which is the embedding) too."""
    shapes = [each.shape for each in read_headers(TINY).values()]
    return sum(math.prod(shape) for shape in shapes if len(shape) == 2)


def test_model_that_just_fits_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    page = 2 * 6 * 2 * 64 * 16  # K and V: layers, heads, their width, entries; of four bytes
    for more, weights, pool in (
        ({"pool_bytes": 10 * 4 * page + 5}, 4 * products(), 10 * 4 * page),
        ({"dtype": "bfloat16", "pool_bytes": MIB}, 2 * products(), MIB // (2 * page) * 2 * page),
        ({"quantize": "int8", "pool_bytes": 4 * page}, products(), 4 * page),
        ({"ranks": 2, "pool_bytes": 4 * page}, 4 * products(), 2 * 4 * page),
    ):
        asked = needs(**more)
        asked.check_host(weights + pool)
        with pytest.raises(CheckpointError, match=f"pool_bytes {asked.pool_bytes}"):
            asked.check_host(weights + pool - 1)
        with pytest.raises(CheckpointError, match="the weights take"):
            asked.check_host(weights - 1)
    needs(pool_bytes=1 << 50).check_host(None)  # where the system does not say
    assert not caplog.records


def test_pool_of_the_default_size_warns_and_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    needs().check_host(4 * products())
    assert "the page pool up to 2047 MiB" in caplog.text
    with pytest.raises(CheckpointError):
        needs().check_host(4 * products() - 1)


def test_device_needs_the_embedding_and_the_ranks_shard() -> None:
    pool = 4 * 2 * 6 * 2 * 64 * 16
    alone = needs(pool_bytes=pool)
    alone.check_device(4 * products() + pool)
    with pytest.raises(CheckpointError, match="the device has free"):
        alone.check_device(4 * products() + pool - 1)
    with pytest.raises(CheckpointError, match=f"pool_bytes {2 << 30}, "):  # the usual one
        needs().check_device(4 * products() + (2 << 30) - (2 << 20))
    embedding = 4 * 4096 * 256
    needs(pool_bytes=pool, ranks=2).check_device(
        (4 * products() - embedding) // 2 + embedding + pool
    )


def test_restarted_kernel_is_not_checked_again(tmp_path: Path) -> None:
    """The memory of the kernel before may not be free yet; a refusal would end the server."""
    there = attainable_bytes()
    assert there is not None
    model = str(large_model(tmp_path / "large", 2 * there))
    first = Configuration(tmp_path / "socket", {"gateway": b"x"}, model=model, device="cpu")
    with pytest.raises(CheckpointError, match="the weights take"):
        make_executor(first, RealClock(), lambda _: None)
    again = replace(first, ended=-9, device="abacus")
    with pytest.raises(CheckpointError, match="abacus"):
        make_executor(again, RealClock(), lambda _: None)


@pytest.mark.gpu
@requires("gpu", torch.cuda.is_available(), "torch finds no NVIDIA GPU here")
def test_pool_larger_than_the_devices_memory_is_refused(tmp_path: Path) -> None:
    asked = Configuration(
        tmp_path / "socket", {"gateway": b"x"}, device="cuda", dtype="bf16", pool_bytes=1 << 50
    )
    with pytest.raises(CheckpointError, match=f"pool_bytes {1 << 50}.*the device has free"):
        make_executor(asked, RealClock(), lambda _: None)
