"""Damaged model folders: each is refused in one sentence, soon, and in little memory."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.executor.refusals import (
    MEMORY_KIB_MAX,
    TINY,
    Check,
    fresh,
    linked_model,
    refused_server,
)
from tests.support.requirements import requires

WEIGHTS = "model.safetensors"
HEAD = "model.embed_tokens.weight"

Damage = Callable[[Path], object]


def file(name: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: fresh(folder / name).write_bytes(data)


def gone(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def pipe(name: str) -> Damage:
    return lambda folder: os.mkfifo(fresh(folder / name))


def folder_at(name: str) -> Damage:
    return lambda folder: fresh(folder / name).mkdir()


def link(name: str, target: str) -> Damage:
    return lambda folder: fresh(folder / name).symlink_to(target)


def edited(name: str, edit: Callable[[dict[str, Any]], object], number: str = "") -> Damage:
    """Edit a JSON file; the text "NUMBER" becomes `number`, which Python would write otherwise."""

    def damage(folder: Path) -> None:
        values = json.loads((folder / name).read_text())
        edit(values)
        fresh(folder / name).write_text(json.dumps(values).replace('"NUMBER"', number))

    return damage


def settings(name: str, **changes: Any) -> Damage:
    return edited(name, lambda values: values.update(changes))


def config(**changes: Any) -> Damage:
    return settings("config.json", **changes)


def raw(key: str, number: str) -> Damage:
    return edited("config.json", lambda values: values.update({key: "NUMBER"}), number)


def head(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Weights with another head, which may have another length."""

    def damage(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        entries = json.loads(data[8 : 8 + length])
        change(entries)
        changed = json.dumps(entries).encode()
        whole = struct.pack("<Q", len(changed)) + changed + data[8 + length :]
        fresh(folder / WEIGHTS).write_bytes(whole)

    return damage


def length(value: int, rest: bytes = b"{}") -> Damage:
    return file(WEIGHTS, struct.pack("<Q", value) + rest)


def cut(size: int) -> Damage:
    def damage(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()[:size]
        fresh(folder / WEIGHTS).write_bytes(data)

    return damage


def sparse(name: str, size: int) -> Damage:
    def damage(folder: Path) -> None:
        fresh(folder / name).touch()
        os.truncate(folder / name, size)

    return damage


def index(places: Any) -> Damage:
    return file("model.safetensors.index.json", json.dumps({"weight_map": places}))


def template(text: str) -> Damage:
    return file("chat_template.jinja", text)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

CASES: dict[str, tuple[Damage, str]] = {
    # --- config.json
    "no config": (gone("config.json"), "config.json is missing"),
    "config is no JSON": (file("config.json", "{"), "config.json cannot be read"),
    "config is a list": (file("config.json", "[]"), "config.json is not a JSON object"),
    "config is not UTF-8": (file("config.json", b"\xff\xfe{}"), "config.json cannot be read"),
    "config is deep": (file("config.json", "[" * 200_000), "nested too deep"),
    "config is huge": (sparse("config.json", 1 << 33), "more than the 4194304 bytes"),
    "config is a pipe": (pipe("config.json"), "config.json is not a regular file"),
    "config is a folder": (folder_at("config.json"), "config.json is not a regular file"),
    "config is a loop": (link("config.json", "config.json"), "config.json cannot be read"),
    "config is a device": (link("config.json", "/dev/zero"), "config.json is not a regular file"),
    "architecture is a list": (config(model_type=["llama"]), "not ['llama']"),
    "architecture is long": (config(model_type="l" * 100_000), "model_type must be one of llama"),
    "size is negative": (config(vocab_size=-1), "vocab_size must be a positive integer, not -1"),
    "size is a fraction": (config(num_hidden_layers=6.5), "must be a positive integer, not 6.5"),
    "size is beyond a float": (raw("intermediate_size", "1" + 400 * "0"), "at most 1048576"),
    "size is NaN": (raw("head_dim", "NaN"), "head_dim must be a positive integer, not nan"),
    "size has 5000 digits": (raw("vocab_size", 5000 * "9"), "config.json cannot be read"),
    "number is NaN": (raw("rms_norm_eps", "NaN"), "rms_norm_eps must be a positive number"),
    "number is infinite": (raw("rms_norm_eps", "Infinity"), "from 1e-20 to 1e+12, not inf"),
    "number is beyond a float": (
        raw("rms_norm_eps", "1" + 400 * "0"), "rms_norm_eps must be a positive number",
    ),
    "context is beyond a float": (
        raw("max_position_embeddings", "1" + 400 * "0"), "max_position_embeddings is 1000",
    ),
    "context divides out of range": (
        raw("rope_parameters", '{"rope_type": "yarn", "original_max_position_embeddings": 1%s}'
            % ("0" * 400)), "original_max_position_embeddings is 1000",
    ),
    "logarithm of one": (
        config(rope_parameters={"rope_type": "yarn", "rope_theta": 1}), "rope_theta must exceed 1",
    ),
    "bos is outside": (
        settings("generation_config.json", bos_token_id=4096),
        "model: bos_token_id [4096] is outside the vocabulary of 4096",
    ),
    "eos is outside": (
        settings("generation_config.json", eos_token_id=4096), "model: eos_token_id [4096] is out",
    ),
    # --- The weights
    "no weights": (gone(WEIGHTS), "model.safetensors is missing"),
    "weights are empty": (file(WEIGHTS, b""), "it has 0 bytes"),
    "weights are cut": (cut(1 << 20), "not a safetensors file: its tensors have"),
    "weights are cut in the head": (cut(100), "it has 100 bytes, and its header claims"),
    "head is too long": (length((1 << 64) - 1), "its header claims 18446744073709551615"),
    "head is no JSON": (length(4, b"{abc"), "model.safetensors cannot be read"),
    "head is large": (
        length(30 << 20, b'{"a":[' + b"[]," * (10 << 20) + b"[]]}"), "model.safetensors",
    ),
    "tensors overlap": (
        head(lambda e: e[HEAD].update(data_offsets=[2, 2 + 2 * 4096 * 256])), "begins at",
    ),
    "dtype is unknown": (head(lambda e: e[HEAD].update(dtype="F3")), "the unknown dtype 'F3'"),
    "dtype is quantized": (
        head(lambda e: e[HEAD].update(dtype="I16")), "is I16: quantized, not supported",
    ),
    "tensor has another name": (
        head(lambda e: e.update(other=e.pop("model.norm.weight"))), "no tensor model.norm.weight",
    ),
    "tensor has another shape": (
        head(lambda e: e[HEAD].update(shape=[256, 4096])),
        "shape (256, 4096), config.json implies (4096, 256)",
    ),
    "shape is negative": (head(lambda e: e[HEAD].update(shape=[-1, 256])), "shape [-1, 256]"),
    "shape overflows": (head(lambda e: e[HEAD].update(shape=[1 << 61] * 8)), "its dtype and shape"),
    "entry is no object": (head(lambda e: e.update(odd=7)), "'odd' is 7"),
    "weights are a pipe": (pipe(WEIGHTS), "model.safetensors is not a regular file"),
    "weights are a broken link": (link(WEIGHTS, "nowhere"), "a link to a file that is missing"),
    "shards are missing": (index({HEAD: "model-2.safetensors"}), "model-2.safetensors is missing"),
    "index leads outside": (index({HEAD: "../x.safetensors"}), "a file outside its directory"),
    "index is a list": (index([1]), "has no weight_map"),
    # --- The tokenizer
    "no tokenizer": (gone("tokenizer.json"), "tokenizer.json is missing"),
    "tokenizer is no JSON": (file("tokenizer.json", "{"), "tokenizer.json cannot be read"),
    "tokenizer has no model": (file("tokenizer.json", "{}"), "not a tokenizer"),
    "tokenizer is another's": (
        edited("tokenizer.json", lambda t: t["model"]["vocab"].update(another=70_000)),
        "70001 tokens, and config.json a vocab_size of",
    ),
    "tokenizer is huge": (sparse("tokenizer.json", 1 << 32), "more than the 67108864 bytes"),
    "tokenizer takes much memory": (
        file("tokenizer.json", b'{"a":[' + b"{}," * (20 << 20) + b"{}]}"),
        "tokenizer.json takes more memory than is supported",
    ),
    "tokenizer has no merges": (
        edited("tokenizer.json", lambda t: t["model"].pop("merges")),
        "the tokenizers library cannot read",
    ),
    "added tokens are text": (
        settings("tokenizer.json", added_tokens="<s>"), "added_tokens must be a list of objects",
    ),
    # --- The chat template, and optional files
    "template is wrong": (template("{% if %}"), "the chat template cannot be compiled"),
    "template never ends": (template(ENDLESS), "the chat template takes more processor time"),
    "template takes much memory": (template("{{ 'a' * 10**12 }}"), "the chat template"),
    "template makes much": (template("{% for a in range(9999) %}{{ 'a' * 9999 }}{% endfor %}"),
                            "makes more than 8388608 characters"),
    "template is not UTF-8": (file("chat_template.jinja", b"\xff"), "jinja cannot be read"),
    "template is a pipe": (pipe("chat_template.jinja"), "template.jinja is not a regular file"),
    "template is a folder": (folder_at("chat_template.jinja"), "jinja is not a regular file"),
    "template has no text": (
        settings("tokenizer_config.json", chat_template=3), "the chat template must be text",
    ),
    "optional file is a loop": (
        link("special_tokens_map.json", "special_tokens_map.json"), "_map.json cannot be read",
    ),
    "folder is empty": (empty, "config.json is missing"),
}  # fmt: skip


def damaged(tmp_path: Path, damage: Damage) -> Path:
    """Return a damaged copy of the tiny model."""
    folder = linked_model(tmp_path / "model")
    damage(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_damaged_model_is_refused_in_one_sentence(tmp_path: Path, check: Check, case: str) -> None:
    damage, words = CASES[case]
    assert words in check(damaged(tmp_path, damage))


def test_model_without_damage_is_accepted(tmp_path: Path, check: Check) -> None:
    assert check(damaged(tmp_path, lambda _: None)) == ""


def test_template_that_refuses_the_trial_is_accepted(tmp_path: Path, check: Check) -> None:
    refusing = template("{{ raise_exception('two messages at least') }}")
    assert check(damaged(tmp_path, refusing)) == ""


@requires("user", os.geteuid() != 0, "root may read every file")
def test_file_without_read_permission_is_named(tmp_path: Path, check: Check) -> None:
    def unreadable(folder: Path) -> None:
        shutil.copy(TINY / "config.json", fresh(folder / "config.json"))
        (folder / "config.json").chmod(0)

    assert "config.json cannot be read" in check(damaged(tmp_path, unreadable))


SERVED = ["config is a list", "weights are cut", "tokenizer has no merges", "template never ends"]


@pytest.mark.parametrize("case", SERVED)
def test_server_with_a_damaged_model_says_it_once_and_ends(tmp_path: Path, case: str) -> None:
    damage, words = CASES[case]
    folder = damaged(tmp_path, damage)
    lines, memory = refused_server(tmp_path, folder)
    assert words in lines[-1]
    assert "\n".join(lines).count(str(folder)) == 1
    assert memory < MEMORY_KIB_MAX
