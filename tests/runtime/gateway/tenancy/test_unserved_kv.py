"""Files of a tenant that no kernel of this server knows."""

import hashlib
from pathlib import Path

from symphony_runtime.gateway.tenancy.unserved_kv import UnservedKV


def write(kv: Path, tenant: str) -> tuple[Path, Path]:
    """Write a file of a tenant, and one that a kernel has set aside; return both."""
    name = hashlib.sha256(tenant.encode()).hexdigest()
    paths = kv / name / "file.safetensors", kv / "broken" / f"{name[:16]}-file.safetensors"
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"said")
    return paths


def test_files_of_models_that_are_not_served_go_with_their_tenant(tmp_path: Path) -> None:
    served, before, named = tmp_path / "kv", tmp_path / "models/a/kv", tmp_path / "models/b/kv"
    mine = [path for kv in (before, named) for path in write(kv, "acme")]
    others = [*write(served, "acme"), *write(before, "other"), *write(named, "other")]
    unserved = UnservedKV(tmp_path, [served])
    assert unserved.has("acme")
    unserved.forget_tenant("acme")
    assert not any(path.exists() for path in mine)
    assert all(path.exists() for path in others)
    assert not unserved.has("acme")
    assert unserved.has("other")
    unserved.forget_tenant("acme")  # again


def test_first_directory_counts_where_another_model_has_it(tmp_path: Path) -> None:
    mine = write(tmp_path / "kv", "acme")
    served = tmp_path / "models" / "b" / "kv"
    UnservedKV(tmp_path, [served]).forget_tenant("acme")
    assert not any(path.exists() for path in mine)


def test_nothing_is_touched_where_the_served_ones_are_not_known(tmp_path: Path) -> None:
    mine = write(tmp_path / "kv", "acme")
    unserved = UnservedKV(tmp_path, [])
    assert not unserved.has("acme")
    unserved.forget_tenant("acme")
    assert all(path.exists() for path in mine)
