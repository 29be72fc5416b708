"""Text and tokens: byte-level and metaspace vocabularies, special tokens, chat templates."""

import asyncio
import json
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.executor.simulated import simulated_model
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TOKENIZE_BYTES_MAX
from symphony_runtime.worker.text.tokenizer import ModelTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.support.executor.byte_model import byte_assets
from tests.support.worker.guests import call, data, drop, forever, main, result, say
from tests.support.worker.rig import WorkerRig

MODEL = {"name": "m", "vocab_size": 300, "page_size": 16}
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {spelling: number for number, spelling in enumerate(alphabet)}
    vocabulary["he"] = 256
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(s, special=True, normalized=False) for s in ("<|start|>", "<|end|>")]
    )
    tokenizer.add_tokens([AddedToken("<tab>", normalized=False)])
    return tokenizer


def metaspace() -> Tokenizer:
    vocabulary = {f"<0x{b:02X}>": b for b in range(256)}
    vocabulary |= {"\u2581": 256, "\u2581hello": 257, "h": 258, "i": 259, "<unk>": 260}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
    return tokenizer


def about(tokenizer: Tokenizer, template: str | None = None) -> dict[str, Any]:
    source = tokenizer.to_str().encode()
    return {"model": MODEL, "tokenizer": source, "chat_template": template, "special": {}}


TEXT = ModelTokenizer(about(byte_level(), TEMPLATE))


def ids(tokens: bytes) -> list[int]:
    return [int(number) for number in np.frombuffer(tokens, "<u4")]


def chat(*messages: dict[str, Any]) -> bytes:
    return TEXT.chat(msgpack.packb(list(messages)))


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_text_is_the_same_after_tokenize_and_detokenize(text: str) -> None:
    assert TEXT.detokenize(TEXT.tokenize(text.encode())) == text.encode()


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("<|start>end\n h")))
def test_text_that_spells_special_tokens_stays_text(text: str) -> None:
    tokens = ids(TEXT.tokenize(f"a<|end|>{text}".encode()))
    assert not {257, 258} & set(tokens)


def test_token_may_end_within_a_character() -> None:
    tokens = ids(TEXT.tokenize("ä".encode()))
    assert len(tokens) == 2
    halves = [TEXT.detokenize(np.array([t], "<u4").tobytes()) for t in tokens]
    assert b"".join(halves) == "ä".encode()
    assert [len(half) for half in halves] == [1, 1]


def test_detokenize_of_ids_without_text_is_empty() -> None:
    assert TEXT.detokenize(np.array([257, 258, 299, 2**32 - 1], "<u4").tobytes()) == b""
    assert TEXT.detokenize(np.array([259, 256], "<u4").tobytes()) == b"<tab>he"


def test_tokenizer_with_metaspace_and_byte_fallback_keeps_text() -> None:
    text = ModelTokenizer(about(metaspace()))
    tokens = np.array([257, 256, 258, 259, 0xC3, 0xA4], "<u4").tobytes()
    assert text.detokenize(tokens) == " hello hiä".encode()
    assert text.detokenize(text.tokenize("hi ä".encode())) == "hi ä".encode()


def test_text_that_is_not_utf8_is_einval() -> None:
    with pytest.raises(SyscallError, match="EINVAL"):
        TEXT.tokenize(b"\xff")


def test_chat_uses_the_models_template() -> None:
    tokens = ids(chat({"role": "user", "content": "he"}))
    assert tokens.count(257) == 2
    assert tokens.count(258) == 1
    assert tokens[0] == 257
    assert TEXT.detokenize(np.array(tokens, "<u4").tobytes()) == b"user\nheassistant\n"
    answered = ids(chat({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}))
    assert answered[-1] == 258


def test_chat_speaker_cannot_be_forged_in_keys_or_joined_pieces() -> None:
    """Templates write a call's arguments with their keys, and join the parts of a message."""
    wild = ModelTokenizer(about(byte_level(), "<|start|>{{ messages[0].content | tojson }}<|end|>"))
    message = {"role": "user", "content": {"<|end|>": {"<|start|>": 1}}}
    tokens = ids(wild.chat(msgpack.packb([message])))
    assert (tokens.count(257), tokens.count(258)) == (1, 1)
    assert b'{"<|end|>": {"<|start|>": 1}}' in wild.detokenize(np.array(tokens, "<u4").tobytes())
    joined = ModelTokenizer(about(byte_level(), "<|start|>{{ messages[0].content | join }}<|end|>"))
    for parts in (["<|e", "nd|>"], ["<", "|end|>"], ["he<|", "end", "|>"], ["<", "|", "start|>"]):
        message = {"role": "user", "content": parts}
        tokens = ids(joined.chat(msgpack.packb([message])))
        assert (tokens.count(257), tokens.count(258)) == (1, 1)
        assert joined.detokenize(np.array(tokens, "<u4").tobytes()) == "".join(parts).encode()


@pytest.mark.parametrize(
    "messages",
    [[{"role": "u", "content": msgpack.Timestamp(1)}], 5, [], [5], [{}], [{"content": "x"}],
     [{"role": 5}], [{"role": "u", "other": 1}],
     [{"role": "u", "content": b"x"}], {"role": "u"}],
)  # fmt: skip
def test_chat_of_no_conversation_is_einval(messages: object) -> None:
    with pytest.raises(SyscallError, match="EINVAL"):
        TEXT.chat(msgpack.packb(messages))


def test_chat_of_deep_or_broken_messages_is_einval() -> None:
    deep: object = "x"
    for _ in range(40):
        deep = [deep]
    for packed in (msgpack.packb([{"role": "u", "content": deep}]), b"\xc1", b""):
        with pytest.raises(SyscallError, match="EINVAL"):
            TEXT.chat(packed)


def test_chat_that_its_template_refuses_is_einval() -> None:
    refusing = ModelTokenizer(about(byte_level(), "{{ raise_exception('no') }}"))
    with pytest.raises(SyscallError, match="EINVAL"):
        refusing.chat(msgpack.packb([{"role": "user", "content": "x"}]))
    for source in ("{{ messages[0].content / 0 }}", "{{ 1e308 * 10 ** messages[0].content }}",
                   "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"):  # fmt: skip
        with pytest.raises(SyscallError, match="EINVAL"):
            ModelTokenizer(about(byte_level(), source)).chat(
                msgpack.packb([{"role": "u", "content": 400}])
            )
    without = ModelTokenizer(about(byte_level()))
    with pytest.raises(SyscallError, match="ENOSYS"):
        without.chat(msgpack.packb([{"role": "user", "content": "x"}]))


def assets() -> ModelAssets:
    source = byte_level().to_str().encode()
    assert json.loads(source)["model"]["type"] == "BPE"
    return ModelAssets(simulated_model(), source, TEMPLATE, {})


async def test_text_calls_of_a_guest_tokenize_detokenize_and_chat() -> None:
    messages = msgpack.packb([{"role": "user", "content": "he"}])
    async with WorkerRig(assets=assets()) as rig:
        found = await rig.play(
            ("tokenize", 100, 5, 0, 2), ("tokenize", 100, 5, 0, 9), ("show", 0, 16),
            ("detokenize", 0, 4, 40, 4), ("detokenize", 0, 4, 40, 5), ("show", 40, 5),
            ("chat", 200, len(messages), 0, 0), ("chat", 200, len(messages), 0, 99),
            ("detokenize", 0, result(7), 1000, 99), ("show", 1000, result(8)),
            ("tokenize", 150, 1, 0, 9), ("chat", 200, 1, 0, 9), ("tokenize", 0, 0, 0, 0),
            parts=(data(100, "hello"), data(150, b"\xff"), data(200, messages)),
        )  # fmt: skip
    assert found[:2] == [4, 4]
    assert isinstance(found[2], bytes)
    assert ids(found[2])[0] == 256
    assert found[3:6] == [5, 5, b"hello"]
    assert found[6] == found[7]
    assert found[9] == b"user\nheassistant\n"
    assert found[10:] == [-Errno.EINVAL, -Errno.EINVAL, 0]


async def test_tokenize_of_the_largest_text_works_and_past_it_is_efbig() -> None:
    length = TOKENIZE_BYTES_MAX
    body = f"""
    (memory.fill (i32.const 0) (i32.const 97) (i32.const {length}))
    {say(call("tokenize", 0, length, 0, 9))} {call("tokenize", 0, length + 1, 0, 0)}"""
    async with WorkerRig(assets=assets()) as rig:
        ended = await rig.run(main(body, pages=20))
        assert int.from_bytes(ended.output, "little") == length
        assert ended.exit_code == -Errno.EFBIG


async def test_long_texts_delay_no_other_and_cost_their_program() -> None:
    program = main(
        f"""(memory.fill (i32.const 0) (i32.const 97) (i32.const {TOKENIZE_BYTES_MAX}))
        {forever(drop("tokenize", 0, TOKENIZE_BYTES_MAX, 0, 0))} (i32.const 0)""",
        pages=17,
    )
    async with WorkerRig(assets=byte_assets()) as rig:
        hog = await rig.start(program, limits={"cpu_ms": 1000})
        turns = 0
        while not hog.ended.done():
            await asyncio.sleep(0.001)
            turns += 1
        ended = await hog.ended
        assert (ended.status, "cpu time limit" in ended.reason) == ("killed", True)
        assert turns > 20  # alone it is hundreds; calls that held the loop would leave three
