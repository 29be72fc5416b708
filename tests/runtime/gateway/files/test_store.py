"""Files in the database of any kind: their counts, and what a start cleans up."""

from functools import partial

import pytest
from symphony_runtime.config.limits import Limits
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.files.records import (
    PART_BYTES,
    FileGoneError,
    append_bytes,
    counts_of,
    finish_file,
    hide_files_of,
)
from symphony_runtime.gateway.files.store import Files
from symphony_runtime.gateway.storage.store import Store

from tests.support.gateway.stores import count_rows, with_store
from tests.support.gateway.system import refusal
from tests.support.run_by import run_by


def files_of(store: Store, boot: int = 1) -> Files:
    return Files(store, Limits(), boot, now_ms)


async def content_of(files: Files, file_id: str, at: int = 0) -> bytes:
    return b"".join([piece async for piece in files.content(file_id, at)])


@run_by(with_store, "tmp_path", "store_url")
async def test_content_begins_at_any_offset(store: Store) -> None:
    files = files_of(store)
    data = bytes(range(251)) * 3_000
    upload = await files.open_upload("t")
    for at in range(0, len(data), 50_000):
        await upload.write(data[at : at + 50_000])
    file = await upload.finish("a", "batch", None)
    assert (file.bytes, file) == (len(data), await files.get("t", file.id))
    for at in (0, 1, PART_BYTES, 300_000, len(data) - 1, len(data)):
        assert await content_of(files, file.id, at) == data[at:]


@run_by(with_store, "tmp_path", "store_url")
async def test_uploads_of_an_earlier_start_are_deleted_and_no_others(store: Store) -> None:
    await Members(store, "here", 1, now_ms).record_start()
    left = await files_of(store, 1).open_upload("t")
    await left.write(b"x" * PART_BYTES)
    done = await files_of(store, 1).open_upload("t")
    await done.finish("a", "batch", None)
    await Members(store, "here", 2, now_ms).record_start()
    files = files_of(store, 2)
    now = await files.open_upload("t")
    await now.write(b"y" * PART_BYTES)
    await files.sweep()
    assert await store.read(partial(counts_of, tenant="t")) == (2, PART_BYTES)
    assert await count_rows(store, "file_parts") == 1
    assert await refusal(left.write(b"x" * PART_BYTES)) == (404, "not-found")
    assert (await now.finish("b", "batch", None)).bytes == PART_BYTES


@run_by(with_store, "tmp_path", "store_url")
async def test_tenant_that_is_forgotten_keeps_no_file(store: Store) -> None:
    files = files_of(store)
    for tenant in ("t", "t", "u"):
        upload = await files.open_upload(tenant)
        await upload.write(b"x" * 700_000)
        await upload.finish("a", "batch", None)
    await files.forget_tenant("t")
    assert await store.read(partial(counts_of, tenant="t")) == (0, 0)
    assert await store.read(partial(counts_of, tenant="u")) == (1, 700_000)
    assert await count_rows(store, "files") == 1


@run_by(with_store, "tmp_path", "store_url")
async def test_bytes_for_a_file_that_is_gone_or_grew_are_refused(store: Store) -> None:
    upload = await files_of(store).open_upload("t")
    file = upload.file
    append = partial(append_bytes, file=file, body=b"x", status="uploading", quota=None)
    await store.write(partial(append, at=0))
    with pytest.raises(FileGoneError):
        await store.write(partial(append, at=0))  # a byte is there already
    await store.write(partial(hide_files_of, tenant="t"))
    with pytest.raises(FileGoneError):
        await store.write(partial(append, at=1))
    with pytest.raises(FileGoneError):
        await store.write(partial(finish_file, file=file))
    assert await store.read(partial(counts_of, tenant="t")) == (1, 1)
