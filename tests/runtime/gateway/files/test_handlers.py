"""`/v1/files` over HTTP: what is stored, for whom, and within which bounds."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from symphony import AsyncClient
from symphony_kernel.protocol.limits import TENANT_UNREAD_BYTES_MAX
from symphony_runtime.config.limits import parse_limits
from symphony_runtime.gateway.files.records import PART_BYTES, READ_BYTES, counts_of

from tests.support.gateway.batches import upload
from tests.support.gateway.stores import count_rows
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

_MIB = 1 << 20

FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--b--\r\n'
)


async def kept(system: SystemRig, tenant: str = "default") -> tuple[int, int]:
    """Return the files that a tenant keeps and their bytes, which must be those of the tables."""
    store = system.gateway.services.store
    found = await store.read(lambda c: counts_of(c, tenant))
    files = await count_rows(store, f"files WHERE tenant = '{tenant}'")
    sql = (
        "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM file_parts p JOIN files f ON f.id = p.file"
        " WHERE f.tenant = ?"
    )
    (size,) = await store.read(lambda c: c.execute(sql, (tenant,)).fetchone())
    again = await store.read(lambda c: counts_of(c, tenant))
    assert found != again or found == (files, int(size))
    return found


@run_by(with_system, "tmp_path")
async def test_file_is_stored_listed_sent_and_deleted(system: SystemRig, _: AsyncClient) -> None:
    data = bytes(range(256)) * 4_096  # four parts
    assert len(data) > 2 * PART_BYTES > READ_BYTES
    file = (await upload(system, data)).json
    assert file | {"id": "", "created_at": 0} == {
        "id": "", "object": "file", "bytes": len(data), "created_at": 0, "expires_at": None,
        "filename": "input.jsonl", "purpose": "batch", "status": "processed",
        "status_details": None,
    }  # fmt: skip
    path = f"/v1/files/{file['id']}"
    assert (await system.ask("GET", path)).json == file
    content = await system.ask("GET", f"{path}/content")
    assert content.body == data
    assert content.headers["Content-Length"] == str(len(data))
    assert (await system.ask("GET", "/v1/files")).json["data"] == [file]
    assert await kept(system) == (1, len(data))
    deleted = await system.ask("DELETE", path)
    assert deleted.json == {"id": file["id"], "object": "file", "deleted": True}
    assert await kept(system) == (0, 0)
    assert await count_rows(system.gateway.services.store, "file_parts") == 0
    for method, at in (("GET", path), ("GET", f"{path}/content"), ("DELETE", path)):
        answer = await system.ask(method, at)
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")


@run_by(with_system, "tmp_path")
async def test_files_are_listed_in_pages_by_age_and_purpose(
    system: SystemRig, _: AsyncClient
) -> None:
    ids = []
    for number in range(5):
        purpose = "user_data" if number == 2 else "batch"
        ids.append((await upload(system, b"x", purpose)).json["id"])
        await asyncio.sleep(0.002)

    async def listed(query: str) -> tuple[list[str], bool]:
        page = (await system.ask("GET", f"/v1/files{query}")).json
        found = [file["id"] for file in page["data"]]
        ends = (found[0], found[-1]) if found else (None, None)
        assert (page["first_id"], page["last_id"]) == ends
        return found, page["has_more"]

    assert await listed("") == (ids[::-1], False)
    assert await listed("?order=asc&limit=2") == (ids[:2], True)
    assert await listed(f"?order=asc&limit=3&after={ids[1]}") == (ids[2:], False)
    assert await listed(f"?limit=2&after={ids[3]}") == ([ids[2], ids[1]], True)
    assert await listed("?purpose=user_data") == ([ids[2]], False)
    assert await listed("?purpose=batch_output") == ([], False)
    for query in ("?after=file-1", "?limit=0", "?order=up"):
        assert (await system.ask("GET", f"/v1/files{query}")).status == 400


@run_by(with_system, "tmp_path")
async def test_files_of_another_tenant_look_like_none(system: SystemRig, _: AsyncClient) -> None:
    file = (await upload(system, b"secret")).json["id"]
    key = await system.add_tenant("acme")
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        theirs = await system.ask(method, f"/v1/files/{file}{path}", key=key)
        none = await system.ask(method, f"/v1/files/file-{'0' * 24}{path}", key=key)
        assert theirs.status == none.status == 404
        assert theirs.body.replace(file.encode(), b"") == none.body.replace(
            b"file-" + b"0" * 24, b""
        )
    assert (await system.ask("GET", "/v1/files", key=key)).json["data"] == []
    assert (await system.ask("GET", f"/v1/files?after={file}", key=key)).status == 400
    assert (await system.ask("GET", f"/v1/files/{file}/content")).body == b"secret"


async def chunks(count: int, sent: list[int]) -> AsyncIterator[bytes]:
    for _ in range(count):
        sent[0] += _MIB
        yield b"x" * _MIB


@run_by(with_system, "tmp_path", limits=parse_limits({"file_bytes": 2 * _MIB}))
async def test_file_that_is_too_large_is_refused_while_it_comes_in(
    system: SystemRig, _: AsyncClient
) -> None:
    assert (await upload(system, b"x" * 2 * _MIB)).status == 200
    known = await upload(system, b"x" * (2 * _MIB + (65 << 10)))
    assert (known.status, known.json["error"]["code"]) == (413, "too_large")
    # As a file of 4 GB would come: its end is not known at its beginning.
    sent = [0]
    with contextlib.suppress(aiohttp.ClientError):  # the connection is closed while it sends
        assert (await upload(system, chunks(4_096, sent))).status == 413
    assert sent[0] < 64 * _MIB, "it stops near the limit, not at the end"
    await wait_until(lambda: is_kept(system, (1, 2 * _MIB)))


async def is_kept(system: SystemRig, wanted: tuple[int, int]) -> bool:
    return await kept(system) == wanted


@run_by(with_system, "tmp_path", limits=parse_limits({"files": 3, "files_kept_bytes": _MIB}))
async def test_files_over_the_quota_are_refused_until_some_are_deleted(
    system: SystemRig, _: AsyncClient
) -> None:
    large = await upload(system, b"x" * (_MIB + 1))
    assert (large.status, large.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert await kept(system) == (0, 0)
    files = [(await upload(system, b"x")).json["id"] for _ in range(3)]
    assert (await upload(system, b"x")).status == 429
    assert (await system.ask("DELETE", f"/v1/files/{files[0]}")).status == 200
    assert (await upload(system, b"x")).status == 200
    # At once: not one more than the quota gets in.
    await system.ask("DELETE", f"/v1/files/{files[1]}")
    several = await asyncio.gather(*(upload(system, b"x" * _MIB) for _ in range(4)))
    assert {answer.status for answer in several} == {429}
    assert await kept(system) == (2, 2)
    hits = system.gateway.services.runs.metrics.tenants()["default"].limits
    assert hits["files"] >= 1
    assert hits["files_kept_bytes"] >= 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": "batch", "unknown": "1"}, "unknown"),
        ({"purpose": "batch", "expires_after[seconds]": "3600"}, "anchor"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "seconds"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at",
             "expires_after[seconds]": "1"},
            "3600",
        ),
        ({"purpose": "x" * 2_000}, "bytes"),
        ({str(number): "" for number in range(20)}, "fields"),
    ],
)  # fmt: skip
@run_by(with_system, "tmp_path")
async def test_form_with_wrong_fields_is_refused_and_leaves_nothing(
    system: SystemRig, _: AsyncClient, *, fields: dict[str, str], words: str
) -> None:
    for first in (True, False):  # the file before the fields, and behind them
        form = aiohttp.FormData()
        if first:
            form.add_field("file", b"x", filename="a")
        for name, value in fields.items():
            form.add_field(name, value)
        if not first:
            form.add_field("file", b"x", filename="a")
        answer = await system.ask("POST", "/v1/files", data=form)
        assert answer.status == 400
        assert words in answer.json["error"]["message"]
    assert await kept(system) == (0, 0)


@pytest.mark.parametrize(
    ("content", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b"--c\r\n\r\nx\r\n--c--\r\n"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--\r\n"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n',
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nno end',
        ),
        ("multipart/form-data; boundary=b", b"--b\r\n" + b"a: b\r\n" * 10_000),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n"
         b"\r\n--c\r\n\r\nx\r\n--c--\r\n--b--\r\n"),
        ("multipart/form-data; boundary=b", b"--b--\r\n"),
        ("multipart/form-data; boundary=b", b"\n" * 16 + FORM),
        # The parser reads 32 bytes of this field, and asserts that a boundary fits in them.
        (f"multipart/form-data; boundary={'b' * 60}", b"--" + b"b" * 60 + b"\r\n"
         b'Content-Disposition: form-data; name="_charset_"\r\n\r\nx\r\n'),
    ],
)  # fmt: skip
@run_by(with_system, "tmp_path")
async def test_body_that_is_no_form_is_refused(
    system: SystemRig, _: AsyncClient, *, content: str, body: bytes
) -> None:
    headers = {"Content-Type": content}
    answer = await system.ask("POST", "/v1/files", data=body, headers=headers)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    assert await kept(system) == (0, 0)


@run_by(with_system, "tmp_path")
async def test_form_behind_a_few_lines_is_taken(system: SystemRig, _: AsyncClient) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await system.ask("POST", "/v1/files", data=b"\r\n" * 15 + FORM, headers=headers)
    assert (answer.status, answer.json["bytes"]) == (200, 1)


@run_by(with_system, "tmp_path")
async def test_expired_file_is_deleted(system: SystemRig, _: AsyncClient) -> None:
    ends = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = (await upload(system, b"x", **ends)).json
    assert file["expires_at"] - file["created_at"] == 3_600
    other = (await upload(system, b"y")).json["id"]
    files = system.gateway.files
    now_ms = files.now_ms
    files.now_ms = lambda: now_ms() + 3_599_000
    await files.sweep()
    assert await kept(system) == (2, 2)
    files.now_ms = lambda: now_ms() + 3_601_000
    await files.sweep()
    assert await kept(system) == (1, 1)
    assert (await system.ask("GET", f"/v1/files/{file['id']}")).status == 404
    assert (await system.ask("GET", f"/v1/files/{other}")).status == 200


@run_by(with_system, "tmp_path")
async def test_upload_that_is_cut_off_leaves_nothing(system: SystemRig, _: AsyncClient) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b"x" * _MIB
        await wait_until(lambda: has_rows(system))
        raise ConnectionAbortedError

    with pytest.raises(Exception, match=r".*"):
        await upload(system, half())
    await wait_until(lambda: is_kept(system, (0, 0)))


async def has_rows(system: SystemRig) -> bool:
    return (await kept(system))[1] > 0


@run_by(with_system, "tmp_path", slow_grace_seconds=0.2)
async def test_upload_that_stops_is_refused_in_time(system: SystemRig, _: AsyncClient) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"x" * 1_000
        await asyncio.sleep(10)

    with contextlib.suppress(aiohttp.ClientError):  # the connection is closed while it sends
        assert (await upload(system, stuck())).status == 408
    assert system.gateway.services.slow.uploads.cut == 1
    await wait_until(lambda: is_kept(system, (0, 0)))


@run_by(with_system, "tmp_path")
async def test_content_waits_for_a_reader_that_does_not_read(
    system: SystemRig, _: AsyncClient
) -> None:
    """20 MiB for a client that reads nothing: a few hundred KiB wait in the gateway."""
    file = (await upload(system, b"x" * 20 * _MIB)).json["id"]
    connection = socket.create_connection(("127.0.0.1", system.gateway.port))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    head = f"GET /v1/files/{file}/content HTTP/1.1\r\nHost: x\r\n"
    connection.sendall(f"{head}Authorization: Bearer {system.key}\r\n\r\n".encode())
    readers = system.gateway.services.slow.readers
    await wait_until(lambda: readers.unread)
    assert readers.unread < 1 << 18 < TENANT_UNREAD_BYTES_MAX
    connection.close()


@run_by(with_system, "tmp_path")
async def test_files_count_to_the_disk_usage_of_their_tenant(
    system: SystemRig, _: AsyncClient
) -> None:
    disk = system.gateway.services.store.disk
    before = disk.held("default")
    await upload(system, b"x" * _MIB)
    await wait_until(lambda: disk.held("default") >= before + _MIB)


@run_by(with_system, "tmp_path", limits=parse_limits({"disk_bytes": 40 * _MIB}))
async def test_upload_over_the_disk_budget_is_refused(system: SystemRig, _: AsyncClient) -> None:
    answer: Any = await upload(system, b"x" * 41 * _MIB)
    assert (answer.status, answer.json["error"]["code"]) == (429, "rate_limit_exceeded")
    await wait_until(lambda: is_kept(system, (0, 0)))
