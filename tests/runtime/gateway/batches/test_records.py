"""Batches in the database of any kind: who may change one, and that a change happens once."""

from dataclasses import replace
from functools import partial

import pytest
from symphony_kernel.protocol.limits import TENANT_BATCHES_KEPT_MAX
from symphony_runtime.config.limits import Limits
from symphony_runtime.gateway.batches.records import (
    Batch,
    NotOwnerError,
    Progress,
    Tokens,
    abandoned_batches,
    cancel_batch,
    count_batches,
    find_batch,
    insert_batch,
    list_batches,
    store_results,
    store_status,
    take_batch,
)
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.files.records import counts_of, hide_file
from symphony_runtime.gateway.files.store import Files
from symphony_runtime.gateway.storage.store import Store

from tests.support.gateway.stores import count_rows, with_store
from tests.support.run_by import run_by

ENDPOINT = "/v1/completions"


async def insert(store: Store, number: int = 1, live_max: int = 10, boot: int = 1) -> Batch:
    """Store a batch with an input of its own, as its owner knows it."""
    upload = await Files(store, Limits(), boot, now_ms).open_upload("t")
    file = await upload.finish("a", "batch", None)
    batch = Batch(f"batch_{number}", "t", number, boot, ENDPOINT, file.id, 10_000)
    assert await store.write(partial(insert_batch, batch=batch, live_max=live_max)) is None
    return batch


async def found(store: Store, batch: Batch) -> Batch:
    known = await store.read(partial(find_batch, tenant="t", batch_id=batch.id))
    assert known is not None
    return known


def with_results(batch: Batch, output: bytes, errors: bytes, line: int) -> Batch:
    return replace(
        batch,
        version=batch.version + 1,
        output_bytes=batch.output_bytes + len(output),
        error_bytes=batch.error_bytes + len(errors),
        progress=Progress(line, 10 * line, (line + 3,), line, 1, Tokens(9, 8, line, 6)),
    )


async def content(store: Store, batch: Batch, *, failed: bool) -> bytes:
    files = Files(store, Limits(), 1, now_ms)
    file = batch.result_file(failed=failed)
    return b"".join([piece async for piece in files.content(file.id)])


@run_by(with_store, "tmp_path", "store_url")
async def test_results_stored_twice_are_there_once(store: Store) -> None:
    batch = await insert(store)
    first = with_results(batch, b"one\n", b"bad\n", 2)
    for _ in range(2):  # as after a connection that broke in a commit
        await store.write(lambda c: store_results(c, first, b"one\n", b"bad\n"))
    second = with_results(first, b"two\n", b"", 3)
    await store.write(lambda c: store_results(c, second, b"two\n", b""))
    assert await content(store, batch, failed=False) == b"one\ntwo\n"
    assert await content(store, batch, failed=True) == b"bad\n"
    assert await found(store, batch) == second
    with pytest.raises(NotOwnerError):  # it is older than what is stored
        await store.write(lambda c: store_results(c, first, b"one\n", b"bad\n"))
    files, size = await store.read(partial(counts_of, tenant="t"))
    assert (files, size) == (3, 12)


@run_by(with_store, "tmp_path", "store_url")
async def test_batch_taken_by_another_refuses_its_former_owner(store: Store) -> None:
    batch = await insert(store)
    take = partial(take_batch, batch_id=batch.id, owner=1)
    assert await store.write(partial(take, boot=2))
    assert not await store.write(partial(take, boot=3)), "the second is too late"
    late = with_results(batch, b"x", b"", 2)
    with pytest.raises(NotOwnerError):
        await store.write(lambda c: store_results(c, late, b"x", b""))
    with pytest.raises(NotOwnerError):
        await store.write(lambda c: store_status(c, late, 1))
    assert await content(store, batch, failed=False) == b""
    taken = await found(store, batch)
    assert (taken.boot, taken.resumes, taken.version) == (2, 1, 1)


@run_by(with_store, "tmp_path", "store_url")
async def test_batch_of_an_owner_that_is_gone_or_silent_is_abandoned(store: Store) -> None:
    now = 1_000_000
    for name, boot in (("here", 1), ("there", 2)):
        await Members(store, name, boot, lambda: now).record_start()
    first, second = await insert(store, 1, boot=1), await insert(store, 2, boot=2)
    left = await store.read(partial(abandoned_batches, before_ms=now - 1))
    assert left == ([] if store.shared else [(first.id, 1)]), "a file has one gateway"
    await Members(store, "there", 3, lambda: now).record_start()
    if store.shared:
        assert await store.read(partial(abandoned_batches, before_ms=None)) == [(second.id, 2)]
        silent = await store.read(partial(abandoned_batches, before_ms=now + 1))
        assert set(silent) == {(first.id, 1), (second.id, 2)}


@run_by(with_store, "tmp_path", "store_url")
async def test_cancelled_batch_keeps_what_its_owner_stored(store: Store) -> None:
    batch = await insert(store)
    running = replace(batch, version=1, status="in_progress", times={"in_progress_at": 5}, total=9)
    await store.write(lambda c: store_status(c, running, 1))
    assert not await store.write(lambda c: cancel_batch(c, batch, 7)), "it has changed since"
    assert await store.write(lambda c: cancel_batch(c, running, 7))
    known = await found(store, batch)
    assert (known.status, known.times) == ("cancelling", {"in_progress_at": 5, "cancelling_at": 7})
    assert not await store.write(lambda c: cancel_batch(c, known, 8)), "it is cancelled already"


@run_by(with_store, "tmp_path", "store_url")
async def test_ended_batch_shows_its_files_with_their_end(store: Store) -> None:
    batch = replace(await insert(store), output_seconds=3_600)
    done = with_results(batch, b"one\n", b"", 2)
    await store.write(lambda c: store_results(c, done, b"one\n", b""))
    files = Files(store, Limits(), 1, now_ms)
    output = batch.result_file(failed=False).id
    assert await files.find("t", output) is None, "not while it grows"
    assert (await found(store, batch)).view()["output_file_id"] is None
    end = replace(done, version=2, status="completed", times={"completed_at": 9})
    for _ in range(2):
        await store.write(lambda c: store_status(c, end, 5_000))
    file = await files.find("t", output)
    assert file is not None
    assert (file.bytes, file.expires_ms) == (4, 5_000 + 3_600_000)
    view = (await found(store, batch)).view()
    assert (view["output_file_id"], view["error_file_id"]) == (output, None)
    assert view["completed_at"] == 9


@run_by(with_store, "tmp_path", "store_url")
async def test_input_of_a_live_batch_stays(store: Store) -> None:
    batch = await insert(store)
    hide = partial(hide_file, tenant="t", file_id=batch.input_file)
    assert not await store.write(hide)
    end = replace(batch, version=1, status="failed")
    await store.write(lambda c: store_status(c, end, 1))
    assert await store.write(hide)
    again = replace(batch, id="batch_2")
    assert await store.write(partial(insert_batch, batch=again, live_max=10)) == "file"


@run_by(with_store, "tmp_path", "store_url")
async def test_batches_are_bounded_live_and_ended(store: Store) -> None:
    batch = await insert(store)
    another = replace(batch, id="batch_2", created_ms=2)
    assert await store.write(partial(insert_batch, batch=another, live_max=1)) == "batches"
    columns = (
        "id, tenant, created_ms, boot, version, status, endpoint, input_file, expires_ms, times,"
        " metadata, errors, output_bytes, error_bytes, total, completed, failed, line, start, done,"
        " resumes"
    )
    for number in range(TENANT_BATCHES_KEPT_MAX + 5):
        values = (f"batch_old{number:05d}", "t", -number, 1, 0, "failed", ENDPOINT, "f", 0, "{}",
                  "null", "[]", 0, 0, 0, 0, 0, 1, 0, "[]", 0)  # fmt: skip
        sql = f"INSERT INTO batches ({columns}) VALUES ({', '.join('?' * 21)})"
        store.write(partial(lambda c, s, v: c.execute(s, v).rowcount, s=sql, v=values))
    assert await store.write(partial(insert_batch, batch=another, live_max=2)) is None
    assert await count_rows(store, "batches") == TENANT_BATCHES_KEPT_MAX + 2
    counts = await store.read(count_batches)
    assert counts == {"validating": 2, "failed": TENANT_BATCHES_KEPT_MAX}
    page = await store.read(lambda c: list_batches(c, "t", None, 3))
    assert [each.id for each in page] == ["batch_2", "batch_1", "batch_old00000"]
    rest = await store.read(lambda c: list_batches(c, "t", page[1], 2))
    assert [each.id for each in rest] == ["batch_old00000", "batch_old00001"]
