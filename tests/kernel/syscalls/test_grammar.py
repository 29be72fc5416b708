"""Constraints in the kernel: what is sampled under them, and what they are a function of."""

import asyncio
import json
import re
from typing import Any

import jsonschema
import msgpack
import numpy as np
import pytest
from symphony_kernel import tiny_model
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    CONSTRAINT_BYTES_MAX,
    CONSTRAINT_WORDS_MAX,
    INSTANCE_CONSTRAINTS_MAX,
    TENANT_COMPILES_MAX,
)
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.constrained import (
    EOS,
    JSON_SCHEMA,
    LARK,
    LENGTH,
    PERSON,
    PROMPT,
    REGEX,
    KernelRig,
    assets,
    constraint,
    generated,
    ids_of,
    kernel_with_text,
    preds,
    refused,
    sampled,
    schema,
    text_of,
    with_text,
)
from tests.support.kernel.rig import A, B, ids, options, start, tokens
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

DATE = rb"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]"


# -- What is sampled -----------------------------------------------------------------------------
@run_by(with_text)
async def test_text_under_a_schema_is_an_instance_of_it(rig: KernelRig) -> None:
    handle = await constraint(rig.worker, JSON_SCHEMA, schema(PERSON))
    rig.worker.create(1, *range(B, B + 6))
    found = await asyncio.gather(*(generated(rig, seed, handle, B + seed) for seed in range(6)))
    for given in found:
        assert given[-1] == EOS
        jsonschema.validate(json.loads(text_of(given)), PERSON)


@pytest.mark.parametrize(
    ("kind", "text", "matches"),
    [
        (REGEX, DATE, rb"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]"),
        (LARK, b'start: "<" WORD ("," WORD)~0..2 ">"\nWORD: /[a-c]{1,3}/', rb"<[a-c,]{1,11}>"),
    ],
)
@run_by(with_text)
async def test_text_under_a_grammar_matches_as_a_whole(
    rig: KernelRig, *, kind: int, text: bytes, matches: bytes
) -> None:
    handle = await constraint(rig.worker, kind, text)
    rig.worker.create(1, *range(B, B + 8))
    for seed in range(8):
        given = await generated(rig, seed, handle, B + seed)
        assert re.fullmatch(matches.decode(), text_of(given)), text_of(given)


@run_by(with_text)
async def test_constrained_text_is_the_same_alone_and_in_a_batch(rig: KernelRig) -> None:
    handle = await constraint(rig.worker, JSON_SCHEMA, schema(PERSON))
    alone = await generated(rig, 3, handle)
    files = range(B, B + 5)
    rig.worker.create(1, *files)
    others = [generated(rig, file, handle, file) for file in files[:2]]
    plain = rig.worker.generate(1, files[3], PROMPT, max=80)
    together = await asyncio.gather(generated(rig, 3, handle, files[2]), *others)
    assert together[0] == alone
    assert await plain.end == b""
    assert await preds(rig.worker, files[4], PROMPT, 300, seed=3, constraint=handle) == alone


@run_by(with_text)
async def test_bias_and_allow_choose_among_allowed_tokens(rig: KernelRig) -> None:
    handle = await constraint(rig.worker, REGEX, b"[ab]{4}")
    (b,) = ids_of("b")
    given = await generated(rig, 1, handle, bias={b: 40.0}, max=3)
    assert set(text_of(given)) == {"b"}
    rig.worker.create(1, B)
    mask = np.zeros(4096, np.uint8)
    mask[ids_of("z")] = 1
    packed = np.packbits(mask, bitorder="little").tobytes()
    made = rig.worker.generate(1, B, PROMPT, constraint=handle, allow=packed)
    assert await made.end == -Errno.EINVAL
    assert not made.records


@run_by(with_text)
async def test_distribution_under_a_constraint_covers_allowed_tokens(rig: KernelRig) -> None:
    handle = await constraint(rig.worker, REGEX, b"a|b")
    (a,), (b,), (c,) = ids_of("a"), ids_of("b"), ids_of("c")
    asked = options(get={"of": [a, b, c]}, constraint=handle)
    found = await rig.worker.pred(1, A, PROMPT, asked)
    assert isinstance(found, bytes)
    odds = np.exp(np.frombuffer(found, "<f4"))
    assert odds[2] == 0.0
    assert odds[:2].sum() == pytest.approx(1.0, rel=1e-4)


async def test_tiny_model_gives_the_same_text_ahead_and_stepwise() -> None:
    """On the real executor, where look-ahead steps follow each other without the loop."""
    executor = TorchExecutor.load(tiny_model.path(), threads=1)
    async with kernel_with_text(executor) as rig:
        worker = await start(rig)
        handle = await constraint(worker, JSON_SCHEMA, schema(PERSON))
        prompt = tokens(*ids_of("Once there was a bird"))
        worker.create(1, B, B + 1, B + 2)
        made = [
            worker.generate(1, file, prompt, max=200, constraint=handle, get=sampled(seed))
            for file, seed in ((A, 3), (B, 4), (B + 1, 5))
        ]
        plain = worker.generate(1, B + 2, prompt, max=60)
        for each in (*made, plain):
            assert await each.end == b""
        for each in made:
            jsonschema.validate(json.loads(text_of(each.ids)), PERSON)
        worker.create(1, B + 3)
        stepwise = await preds(worker, B + 3, prompt, 200, seed=4, constraint=handle)
        assert stepwise == made[1].ids


# -- Whose state it is ---------------------------------------------------------------------------
@run_by(with_text)
async def test_fork_continues_its_files_text(rig: KernelRig) -> None:
    worker = rig.worker
    handle = await constraint(worker, REGEX, b"(x[0-9]){3}|(y[0-9]){3}")
    begun = await preds(worker, A, PROMPT, 2, constraint=handle)
    assert re.fullmatch(r"[xy]\d?.*", text_of(begun))
    worker.tell(1, Op.KV_FORK, B, A)
    last = tokens(begun[-1])
    there = await preds(worker, A, last, 300, seed=7, constraint=handle)
    forked = await preds(worker, B, last, 300, seed=8, constraint=handle)
    for rest in (there, forked):
        assert re.fullmatch(r"(x\d){3}|(y\d){3}", text_of(begun + rest))


@run_by(with_text)
async def test_truncate_takes_a_text_back(rig: KernelRig) -> None:
    worker = rig.worker
    handle = await constraint(worker, REGEX, b"q[a-f]{6}")
    whole = await preds(worker, A, PROMPT, 300, constraint=handle)
    assert await worker.call(1, Op.KV_TRUNCATE, A, LENGTH + 1) == 0
    again = await preds(worker, A, tokens(whole[1]), 300, constraint=handle)
    assert again == whole[2:], "the same seed and positions"
    # Behind the prompt's last token the text begins, wherever else it was before.
    assert await worker.call(1, Op.KV_TRUNCATE, A, LENGTH - 1) == 0
    anew = await preds(worker, A, PROMPT[-4:], 300, constraint=handle)
    assert anew == whole


@run_by(with_text)
async def test_since_begins_a_text_at_its_entry(rig: KernelRig) -> None:
    worker = rig.worker
    handle = await constraint(worker, REGEX, b"abc[0-9]{2}")
    prompt = tokens(*ids_of("a b"), *ids_of("abc"))
    begun = len(ids_of("a b"))
    digits = await preds(worker, A, prompt, 1, constraint=handle, since=begun)
    assert text_of(digits)[0].isdigit()
    assert await worker.pred(1, A, PROMPT, options(constraint=handle, since=9999)) == (
        -Errno.EINVAL
    )
    # What was said is so from now on; what does not fit is said, too, and changes nothing.
    length = await worker.call(1, Op.KV_LEN, A)
    wrong = await worker.pred(1, A, tokens(*ids_of("z")), options(constraint=handle))
    assert wrong == -Errno.EINVAL
    assert await worker.call(1, Op.KV_LEN, A) == length
    rest = await preds(worker, A, tokens(*digits), 9, constraint=handle)
    assert re.fullmatch(r"abc\d\d", "abc" + text_of(digits + rest))


@run_by(with_text)
async def test_generation_continues_the_text_of_one_before(rig: KernelRig) -> None:
    handle = await constraint(rig.worker, REGEX, b"([a-c][0-9]){6}")
    first = await generated(rig, 1, handle, max=4)
    made = await rig.worker.complete(
        1, A, tokens(first[-1]), max=100, constraint=handle, get=sampled(2)
    )
    assert re.fullmatch(r"([a-c]\d){6}", text_of(first + made.ids))


@run_by(with_text)
async def test_pred_without_keep_begins_no_text(rig: KernelRig) -> None:
    worker = rig.worker
    handle = await constraint(worker, REGEX, b"[a-c][0-9]")
    looked = await worker.pred(1, A, PROMPT, options(constraint=handle, keep=False))
    assert text_of(ids(looked))[0] in "abc"
    (token,) = ids(await worker.pred(1, A, PROMPT + PROMPT, options(constraint=handle)))
    assert text_of([token])[0] in "abc"


# -- Mistakes ------------------------------------------------------------------------------------
MISTAKES = [
    (JSON_SCHEMA, b'{"type": "object",\n "properties" 3}', "line 2 column 15"),
    (
        JSON_SCHEMA,
        schema({"properties": {"a/b": {"anyOf": [{"type": "string"}, {"type": "intger"}]}}}),
        "#/properties/a~1b/anyOf/1: Invalid type: intger",
    ),
    (JSON_SCHEMA, schema({"items": {"$ref": "#/$defs/nobody"}}), "#/items: Pointer"),
    (JSON_SCHEMA, b"7", "an object"),
    (REGEX, b"ab(c[d", "column 5: unclosed character class"),
    (REGEX, b"(?!a)b", "column 1: look-around"),
    (LARK, b'start: foo "a"\nfoo: bar', 'line 2, column 6: unknown name: "bar"'),
    (JSON_SCHEMA, schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "no text"),
]
HOSTILE = {
    "deep rules": (
        LARK,
        "\n".join(
            ["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(9000)), 'r9000: "a"']
        ).encode(),
    ),
    "deep brackets": (REGEX, b"(" * 5_000 + b"a" + b")" * 5_000),
    "deep schema": (JSON_SCHEMA, b'{"items":' * 2_000 + b"{}" + b"}" * 2_000),
    "products": (
        JSON_SCHEMA,
        schema(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"{i}_{j}": {"type": "string"}}} for j in range(8)]}
                    for i in range(12)
                ]
            }
        ),
    ),
    "relevance": (LARK, rb"start: T" + b"\n" + rb"T: /.*a.{12}.*/ & ~/.*c.{11}.*/ & /.*d.{9}/"),
}


@run_by(with_text)
async def test_invalid_constraint_is_refused_with_its_place(rig: KernelRig) -> None:
    for kind, text, words in MISTAKES:
        errno, told = await refused(rig.worker, kind, text)
        assert (errno, words in told) == (Errno.EINVAL, True), told
    for name, (kind, text) in HOSTILE.items():
        errno, told = await refused(rig.worker, kind, text)
        assert errno in (Errno.EFBIG, Errno.EINVAL), name
        assert 0 < len(told.encode()) <= CONSTRAINT_WORDS_MAX
    # And it is well.
    assert await constraint(rig.worker, REGEX, b"a+") > 0


@run_by(with_text)
async def test_invalid_constraint_arguments_are_refused(rig: KernelRig) -> None:
    worker = rig.worker
    call = worker.call
    assert await call(1, Op.CONSTRAINT, 3, b"a") == -Errno.EINVAL
    assert await call(1, Op.CONSTRAINT, True, b"a") == -Errno.EINVAL
    assert await call(1, Op.CONSTRAINT, REGEX, "a") == -Errno.EINVAL
    assert await call(1, Op.CONSTRAINT, REGEX, b"\xff") == -Errno.EINVAL
    large = b"a" * (CONSTRAINT_BYTES_MAX + 1)
    assert await call(1, Op.CONSTRAINT, REGEX, large) == -Errno.EFBIG
    assert await call(1, Op.CONSTRAINT_CLOSE, 1) == -Errno.EBADF
    assert await worker.pred(1, A, PROMPT, options(constraint=1)) == -Errno.EBADF
    handle = await constraint(worker, REGEX, b"a")
    for given in ({"at": "all"}, {"parents": [-1] * LENGTH}, {"at": [0]}):
        asked = options(constraint=handle, **given)
        assert await worker.pred(1, A, PROMPT, asked) == -Errno.EINVAL
    assert await worker.pred(1, A, PROMPT, options(since=1)) == -Errno.EINVAL
    assert await call(1, Op.CONSTRAINT_CLOSE, handle) == 0
    assert await worker.pred(1, A, PROMPT, options(constraint=handle)) == -Errno.EBADF


@run_by(with_text)
async def test_constraints_of_an_instance_are_bounded(rig: KernelRig) -> None:
    await constraint(rig.worker, REGEX, b"a")
    calls = [(1, Op.CONSTRAINT, REGEX, b"a")] * INSTANCE_CONSTRAINTS_MAX
    found = await asyncio.gather(*rig.worker.calls(*calls))
    assert found[:-1] == list(range(2, INSTANCE_CONSTRAINTS_MAX + 1))
    assert found[-1] == -Errno.EDQUOT
    await start(rig, 2)
    assert await rig.worker.call(2, Op.CONSTRAINT, REGEX, b"a") == 1


@run_by(with_text)
async def test_slow_grammars_end_their_own_generations_only(rig: KernelRig) -> None:
    """An ambiguous grammar, an expression with very many states, and an honest stream."""
    worker = rig.worker
    ambiguous = await constraint(worker, LARK, b'start: e\ne: e e | "a" | e e e | ""\n')
    heavy = await constraint(worker, REGEX, b"((a{1,100}){1,100}){1,100}")
    worker.create(1, B, B + 1, B + 2)
    bad = [
        worker.generate(1, B, PROMPT, max=60, constraint=ambiguous, bias={EOS: -1e9}),
        worker.generate(1, B + 1, PROMPT, max=60, constraint=heavy, bias={EOS: -1e9}),
    ]
    good = await worker.complete(1, A, PROMPT, max=60)
    assert len(good.ids) == 60
    assert [await each.end for each in bad] == [-Errno.EFBIG, -Errno.EFBIG]
    worker.create(1, B + 3)
    alone = await worker.complete(1, B + 3, PROMPT, max=60)
    assert alone.ids == good.ids


@run_by(with_text)
async def test_cancelled_generation_leaves_its_text(rig: KernelRig) -> None:
    worker = rig.worker
    handle = await constraint(worker, REGEX, b"[a-z]{300}")
    made = worker.generate(1, A, PROMPT, constraint=handle, get=sampled(4), ahead=2)
    await wait_until(lambda: len(made.records) >= 3)
    made.cancel()
    assert await made.end == -Errno.ECANCELED
    assert await worker.call(1, Op.KV_TRUNCATE, A, LENGTH + 2) == 0
    last = tokens(made.ids[2])
    again = await worker.complete(1, A, last, constraint=handle, get=sampled(4), max=5)
    assert text_of(made.ids[:3] + again.ids).isalpha()


@run_by(with_text)
async def test_hostile_grammars_delay_no_other_tenant(rig: KernelRig) -> None:
    def deep(number: int) -> bytes:
        rules = [f"r{i}: r{i + 1} r{i + 1}" for i in range(9000 + number)]
        return "\n".join(["start: r0", *rules, f'r{9000 + number}: "a"']).encode()

    worker = rig.worker
    asked = worker.calls(
        *((1, Op.CONSTRAINT, LARK, deep(number)) for number in range(TENANT_COMPILES_MAX + 4))
    )
    await start(rig, 2, tenant="other")
    await worker.complete(1, A, PROMPT, max=30)
    # The other tenant's turn comes behind the one that is compiled now.
    assert await constraint(worker, REGEX, b"a+", instance=2) == 1
    answers = [each.result() for each in asked if each.done()]
    assert len(answers) < len(asked) // 2
    found = [msgpack.unpackb(each)[0] for each in answers if isinstance(each, bytes)]
    assert found.count(Errno.EAGAIN) == 3, "one is compiled, so many wait"
    assert {*found} <= {Errno.EAGAIN, Errno.EFBIG}


async def test_constrained_texts_under_pressure_are_the_same() -> None:
    """Requests wait in the memory queue, and pages are recomputed in front of them."""

    async def texts(pages: int) -> tuple[list[Any], dict[str, Any]]:
        device = SimulatedExecutor(
            RealClock(), pages, assets().model, CostModel(fixed_us=100.0), hashed=True
        )
        places = TierConfig(pages_a_frame=64, poison=True, host_slots=4)
        async with kernel_with_text(device, KernelOptions(places=places)) as rig:
            worker = await start(rig)
            handle = await constraint(worker, REGEX, b"([a-f]{1,3}[0-9])*")
            made = []
            for number in range(8):
                worker.create(1, B + number)
                made.append(generated(rig, number, handle, B + number, bias={EOS: -50.0}, max=70))
            found = await asyncio.gather(*made)
            stepwise = [await preds(worker, A, PROMPT, 40, constraint=handle, bias={EOS: -50.0})]
            return found + stepwise, await rig.gateway.statistics()

    wide, roomy = await texts(512)
    tight, small = await texts(18)
    assert tight == wide
    assert roomy["preemptions"] == 0 < small["preemptions"]
