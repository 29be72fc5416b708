"""KV files of models that this server had before and does not serve now: no kernel knows them."""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from symphony_runtime.gateway.config import GatewayConfig

_BROKEN = "broken"  # what a kernel could not read: <first 16 digits of the tenant's>-<name>


@dataclass(frozen=True, slots=True)
class UnservedKV:
    """The directories of KV files in `data_dir` but those `served` (none: it is not known)."""

    data_dir: Path
    served: Sequence[Path]

    @classmethod
    def of(cls, config: GatewayConfig) -> "UnservedKV":
        return cls(config.data_dir, config.kv_directories)

    def forget_tenant(self, tenant: str) -> None:
        """Delete all files of a tenant in them; blocks. OSError."""
        for path in self._paths(tenant):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def has(self, tenant: str) -> bool:
        """Return whether a tenant has files in them; blocks. OSError."""
        return any(path.is_file() or any(path.iterdir()) for path in self._paths(tenant))

    def _paths(self, tenant: str) -> Iterator[Path]:
        """Yield the tenant's directory in each, and its files that were set aside."""
        if not self.served:
            return
        name = hashlib.sha256(tenant.encode()).hexdigest()
        for kv in (self.data_dir / "kv", *self.data_dir.glob("models/*/kv")):
            if kv not in self.served:
                if (kv / name).is_dir():
                    yield kv / name
                yield from (kv / _BROKEN).glob(f"{name[:16]}-*")
