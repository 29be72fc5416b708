import asyncio
import logging
from pathlib import Path

import pytest
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy import audit as audit_module
from symphony_runtime.gateway.tenancy.audit import (
    ADMIN,
    DENIED,
    Audit,
    AuditedRequest,
    AuditQuery,
    Bounds,
    prune_audit,
)
from symphony_runtime.gateway.tenancy.authentication import Role, new_key

from tests.support.faults.disks import full_disk
from tests.support.gateway.stores import count_rows, with_sqlite, with_store
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

NOW = 1_795_262_400_000


def denied(address: str = "::1", action: str = "listRuns", status: int = 401) -> AuditedRequest:
    return AuditedRequest(None, address, action, "/v1/runs", status)


@run_by(with_store, "tmp_path", "store_url")
async def test_audit_lists_changes_with_their_key_newest_first(store: Store) -> None:
    audit = Audit(store, lambda: NOW)
    text, key = new_key(None, Role.ADMIN, "mine", None)
    for number in range(3):
        audit.record_change(
            AuditedRequest(key, "::1", "createTenant", "/v1/admin/tenants", 201, f"t{number}")
        )
    notes = await audit.page(AuditQuery(), 10)
    assert [note["detail"] for note in notes] == ["t2", "t1", "t0"]
    assert {(n["kind"], n["key"], n["status"], n["times"]) for n in notes} == {
        (ADMIN, key.id, 201, 1)
    }
    assert text not in repr(notes)
    assert text.split("_", 2)[2] not in repr(notes)
    behind = notes[0]["at_ms"], notes[0]["id"]
    assert await audit.page(AuditQuery(before=behind), 10) == notes[1:]


@run_by(with_store, "tmp_path", "store_url")
async def test_denials_that_are_alike_share_a_note(store: Store) -> None:
    audit = Audit(store, lambda: NOW)
    for _ in range(1_000):
        audit.record_refusal(denied())
    audit.record_refusal(denied(status=403))
    audit.record_refusal(denied(action="getRun"))
    before = store.statistics()["writes"]
    notes = await audit.page(AuditQuery(kind=DENIED), 10)
    assert store.statistics()["writes"] - before == 1
    assert sorted((n["action"], n["status"], n["times"]) for n in notes) == [
        ("getRun", 401, 1), ("listRuns", 401, 1_000), ("listRuns", 403, 1)
    ]  # fmt: skip


@run_by(with_store, "tmp_path", "store_url")
async def test_denials_of_many_addresses_cost_few_notes(store: Store) -> None:
    audit = Audit(store, lambda: NOW)
    for number in range(5_000):
        audit.record_refusal(denied(f"10.0.{number >> 8}.{number & 255}"))
    notes = await audit.page(AuditQuery(), 10_000)
    assert len(notes) < 300
    assert sum(note["times"] for note in notes) == 5_000


@run_by(with_store, "tmp_path", "store_url")
async def test_old_notes_go_and_denials_push_out_no_changes(store: Store) -> None:
    now = NOW
    audit = Audit(store, lambda: now)
    for number in range(6):
        now = NOW + number
        audit.record_change(AuditedRequest(None, "", "a", "", 200, str(number)))
        audit.record_refusal(denied(str(number)))
        await audit.flush()
    few = Bounds(admin=5, strangers=2)
    await store.write(lambda c: prune_audit(c, few, NOW))
    assert [n["detail"] for n in await audit.page(AuditQuery(ADMIN), 10)] == list("54321")
    assert [n["address"] for n in await audit.page(AuditQuery(DENIED), 10)] == ["5", "4"]
    await store.write(lambda c: prune_audit(c, few, NOW + 4))
    assert [n["detail"] for n in await audit.page(AuditQuery(ADMIN), 10)] == ["5", "4"]


@run_by(with_store, "tmp_path", "store_url")
async def test_flood_of_denials_pushes_out_no_other_tenants_notes(store: Store) -> None:
    now = NOW
    audit = Audit(store, lambda: now)
    _, quiet = new_key("quiet", Role.TENANT, "", None)
    _, loud = new_key("loud", Role.TENANT, "", None)
    audit.record_refusal(AuditedRequest(quiet, "::1", "startRun", "/v1/programs/a/runs", 403))
    for batch in range(4):
        now = NOW + batch
        for number in range(300):
            audit.record_refusal(denied(f"10.0.{batch}.{number}"))
            audit.record_refusal(AuditedRequest(loud, "::1", f"route{number}", "/v1/runs", 403))
        await audit.flush()
    # Each source has its rows of the hour, and one for all further denials.
    notes = await audit.page(AuditQuery(), 10_000)
    by_tenant = {t: [n for n in notes if n["tenant"] == t] for t in (None, "quiet", "loud")}
    assert {t: len(each) for t, each in by_tenant.items()} == {
        None: 121, "quiet": 1, "loud": 121
    }  # fmt: skip
    for tenant in (None, "loud"):
        assert sum(note["times"] for note in by_tenant[tenant]) == 1_200
    # The notes that are kept are bounded for each source, too.
    few = Bounds(known=1_000, tenant=5, strangers=7)
    await store.write(lambda c: prune_audit(c, few, NOW - 3_600_000))
    notes = await audit.page(AuditQuery(DENIED), 10_000)
    assert len([n for n in notes if n["tenant"] is None]) == 7
    assert len([n for n in notes if n["tenant"] == "loud"]) == 5
    assert [n["key"] for n in notes if n["tenant"] == "quiet"] == [quiet.id]


@run_by(with_sqlite, "tmp_path")
async def test_notes_that_cannot_be_written_are_bounded_and_kept(store: Store) -> None:
    audit = Audit(store, lambda: NOW)
    await store.write(lambda c: c.execute("ALTER TABLE audit RENAME TO away") and None)
    for batch in range(3):
        for number in range(300):
            audit.record_refusal(denied(f"10.{batch}.0.{number}"))
        with pytest.raises(store.errors):
            await audit.flush()
    held = audit.take_batch()
    assert held is not None
    assert len(held.rows) == 257
    audit.restore_batch(held)
    await store.write(lambda c: c.execute("ALTER TABLE away RENAME TO audit") and None)
    notes = await audit.page(AuditQuery(), 10_000)
    assert sum(note["times"] for note in notes) == 900


@run_by(with_store, "tmp_path", "store_url")
async def test_audit_query_selects_a_tenants_notes(store: Store) -> None:
    audit = Audit(store, lambda: NOW)
    _, key = new_key("acme", Role.READ_ONLY, "", None)
    audit.record_refusal(AuditedRequest(key, "::1", "startRun", "/v1/\ud800", 403, "x" * 10_000))
    audit.record_refusal(denied())
    (note,) = await audit.page(AuditQuery(tenant="acme"), 10)
    assert (note["key"], note["tenant"], note["address"]) == (key.id, "acme", "::1")
    assert (note["target"], len(note["detail"])) == ("/v1/?", 512)


def test_notes_on_a_full_disk_are_kept_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_module, "_KEPT_MAX", 3)
    caplog.set_level(logging.ERROR)

    async def scenario(store: Store) -> None:
        audit = Audit(store, lambda: NOW)
        disk.fail()
        for number in range(5):
            audit.record_change(AuditedRequest(None, "", "createKey", "", 507, str(number)))
        audit.record_refusal(denied())
        for _ in range(3):
            with pytest.raises(store.errors):
                await audit.page(AuditQuery(), 10)
        assert audit.lost == 2
        disk.heal()
        assert [n["detail"] for n in await audit.page(AuditQuery(ADMIN), 10)] == list("210")
        assert [n["times"] for n in await audit.page(AuditQuery(DENIED), 10)] == [1]
        await audit.flush()
        assert [n["times"] for n in await audit.page(AuditQuery(), 10)] == [1] * 4

    with full_disk(tmp_path / "disk") as disk:
        with_sqlite(disk.folder, scenario)
    words = [record.getMessage() for record in caplog.records]
    assert sum("further ones are lost" in each for each in words) == 1
    assert sum("the audit log cannot be written yet" in each for each in words) == 1
    assert not [each for each in words if "never retrieved" in each]


def test_note_is_written_without_a_reader_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_BATCH_SECONDS", 0.02)

    async def scenario(store: Store) -> None:
        audit = Audit(store, lambda: NOW)
        writing = asyncio.create_task(audit.run())
        disk.fail()
        audit.record_change(AuditedRequest(None, "", "deleteTenant", "", 204))
        await asyncio.sleep(0.2)
        disk.heal()
        await wait_until(lambda: count_rows(store, "audit"), 5)
        writing.cancel()

    with full_disk(tmp_path / "disk") as disk:
        with_sqlite(disk.folder, scenario)
        with_store(disk.folder, "", scenario)
