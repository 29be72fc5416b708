"""`--model org/name`: the hub's real client against a hub on a local port."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.cli.serving.hub import HubModel, choose_files, parse_hub_name

from tests.support.server.hub import COMMIT, Hub, running_hub

SETTINGS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
OTHERS = ("README.md", "pytorch_model.bin", "original/model.safetensors", "onnx/model.onnx")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FOLDER = {name: name.encode() for name in (*SETTINGS, *OTHERS, "model.safetensors")}
GGUFS = {
    f"some-{kind}.gguf": kind.encode() * 40_000 for kind in ("Q4_K_M", "Q4_K_S", "Q8_0", "f16")
}
SPLIT = {f"big/big-Q6_K-0000{n}-of-00003.gguf": str(n).encode() for n in (1, 2, 3)}

PORTION = 10 << 20  # bytes that the client writes at a time

# Each line of input is a model's name; each of output a path or an error, and what was said.
_LOCATOR = """
import json, sys
from pathlib import Path
from symphony_runtime.cli.serving.hub import locate_model
from symphony_runtime.cli.output import CommandError
for line in sys.stdin:
    said = []
    try:
        found, error = locate_model(json.loads(line), Path(), said.append), None
    except CommandError as refused:
        found, error = None, str(refused)
    print(json.dumps([found, error, said]), flush=True)
"""

Locate = Callable[[str], tuple[str | None, str | None, list[str]]]


@contextmanager
def locator(home: Path, url: str, **environment: str) -> Iterator[Locate]:
    """A process that locates models with a cache and a hub: the client reads both at import."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING_FACE"))}
    process = subprocess.Popen(
        [sys.executable, "-c", _LOCATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=home, env={**kept, "HF_HOME": str(home), "HF_ENDPOINT": url,
                       "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", **environment},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    sending, answers = process.stdin, process.stdout

    def locate(name: str) -> tuple[str | None, str | None, list[str]]:
        sending.write(json.dumps(name) + "\n")
        sending.flush()
        found: tuple[str | None, str | None, list[str]] = json.loads(answers.readline())
        return found

    try:
        yield locate
    finally:
        process.communicate()


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    repositories: dict[str, dict[str, bytes]] = {
        "org/folder": FOLDER,
        "org/sharded": {
            **{name: name.encode() for name in (*SETTINGS, *SHARDS, *OTHERS)},
            "model.safetensors.index.json": b"{}",
        },
        "org/gguf": {**GGUFS, "mmproj-f16.gguf": b"m", "README.md": b"r"},
        "org/both": {**FOLDER, **GGUFS},
        "org/split": SPLIT,
        "org/gated": FOLDER,
        "org/pickled": {"config.json": b"{}", "pytorch_model.bin": b""},
    }
    with running_hub(Hub(repositories, gated=frozenset({"org/gated"}))) as found:
        yield found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def locate(hub: Hub, home: Path) -> Iterator[Locate]:
    with locator(home, hub.url) as found:
        yield found


def found(answer: tuple[str | None, str | None, list[str]]) -> Path:
    path, error, said = answer
    assert path is not None, error
    assert len(said) == 1
    return Path(path)


def test_folder_of_safetensors_is_downloaded_without_other_files(hub: Hub, locate: Locate) -> None:
    hub.requests.clear()
    path = found(locate("org/folder"))
    wanted = sorted([*SETTINGS, "model.safetensors"])
    assert hub.downloaded() == wanted
    assert sorted(p.name for p in path.iterdir()) == wanted
    assert path.name == COMMIT
    assert (path / "config.json").read_bytes() == b"config.json"
    assert found(locate("org/folder@other")) == path
    assert hub.downloaded() == []


def test_shards_are_downloaded_with_their_index(hub: Hub, locate: Locate) -> None:
    hub.requests.clear()
    locate("org/sharded")
    assert hub.downloaded() == sorted([*SETTINGS, *SHARDS, "model.safetensors.index.json"])


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("org/gguf", "some-Q4_K_M.gguf"),  # of several, as llama.cpp has it
        ("org/gguf:q8_0", "some-Q8_0.gguf"),
        ("org/both:f16", "some-f16.gguf"),
        ("org/both@main/some-Q4_K_S.gguf", "some-Q4_K_S.gguf"),
    ],
)
def test_one_gguf_file_is_downloaded(hub: Hub, locate: Locate, name: str, file: str) -> None:
    hub.requests.clear()
    path = found(locate(name))
    assert path.name == file
    assert path.read_bytes() == GGUFS[file]
    assert hub.downloaded() in ([file], [])  # another test may have


def test_parts_of_a_split_file_are_downloaded_together(hub: Hub, locate: Locate) -> None:
    hub.requests.clear()
    path = found(locate("org/split"))
    assert path.name == "big-Q6_K-00001-of-00003.gguf"
    assert hub.downloaded() == sorted(SPLIT)


def test_broken_download_continues_where_it_ended(hub: Hub, locate: Locate) -> None:
    data = random.Random(1).randbytes(PORTION + (2 << 20))
    hub.repositories["org/large"] = {"large.gguf": data}
    hub.cut["large.gguf"] = PORTION + (1 << 20)
    hub.requests.clear()
    assert found(locate("org/large")).read_bytes() == data
    ranges = [each for method, path, each in hub.requests if method == "GET" and "resolve" in path]
    assert ranges == ["", f"bytes={PORTION}-"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/nothing", "is no folder or file here, and http.* shows no repository org/nothing"),
        ("org/folder@odd", "org/folder at http.* has no revision odd"),
        ("org/gated", "org/gated is gated: accept its terms at http.*set HF_TOKEN"),
        ("org/pickled", "has no GGUF file and no config.json with model.safetensors"),
        ("org/folder:Q8_0", "org/folder has no GGUF file"),
        ("org/gguf:Q5_K", "names 0 of org/gguf's GGUF files.*: some-Q4_K_M.gguf, some-Q4_K_S"),
        ("org/gguf/other.gguf", "names 0 of org/gguf's GGUF files"),
        ("org/a--b..c", "is no folder or file here"),
    ],
)
def test_model_that_the_hub_does_not_have_is_refused_in_words(
    locate: Locate, name: str, words: str
) -> None:
    path, error, _ = locate(name)
    assert path is None
    assert error is not None
    assert re.search(words, error), error


def test_cache_is_served_without_a_network(hub: Hub, home: Path, locate: Locate) -> None:
    online = found(locate("org/folder")), found(locate("org/gguf:Q8_0"))
    with locator(home, hub.url, HF_HUB_OFFLINE="1") as offline:
        answers = offline("org/folder"), offline("org/gguf:Q8_0")
        assert tuple(map(found, answers)) == online
        assert "from the cache, as http" in answers[0][2][0]
        _, error, _ = offline("org/elsewhere")
        assert error is not None
        assert "not in the cache" in error
        assert "download it elsewhere with `hf download`" in error
    with locator(home, "http://127.0.0.1:9") as unreachable:
        assert found(unreachable("org/folder")) == online[0]


# -- Without a process ---------------------------------------------------------------------------
def test_names_are_parsed_into_their_parts(tmp_path: Path) -> None:
    def parsed(name: str) -> Any:
        return parse_hub_name(name, tmp_path)

    assert parsed("org/name") == HubModel("org/name", "org/name")
    assert parsed("o/n@refs/pr/1").revision == "refs/pr/1"
    assert parsed("o/n@v1:Q4_0") == HubModel("o/n@v1:Q4_0", "o/n", "v1", "Q4_0")
    assert parsed("o/n@v1/a/b.gguf") == HubModel("o/n@v1/a/b.gguf", "o/n", "v1", None, "a/b.gguf")
    for path in ("tiny", "./o/n", "/o/n", "../o/n", "~/o/n", "o/n/p", "model.gguf", "o/"):
        assert parsed(path) is None, path
    (tmp_path / "o" / "n").mkdir(parents=True)
    assert parsed("o/n") is None


def test_choice_is_a_whole_part_of_a_name() -> None:
    names = ["a-Q4_K_M.gguf", "a-Q4_K.gguf", "sub/a.Q4_0.gguf", "IQ4_NL/a.gguf"]
    for choice, file in (("Q4_K", names[1]), ("q4_0", names[2]), ("IQ4_NL", names[3])):
        assert choose_files(HubModel("", "o/n", choice=choice), names) == [file]
