"""The operator's limits of runs and tenants.

    [limits]                            # of every tenant: default and maximum
    cpu_ms = 30_000
    wall_ms = {default = 600_000, max = 3_600_000}

    [tenants.research.limits]           # of one tenant
    cpu_ms = 600_000

A number is both the default and the maximum. A tenant's quotas, which administrators set at run
time, override its table here, and that overrides `limits`. The limits themselves are in
`symphony_kernel.protocol.limit_table`; `python -m tools.limits_page` writes
docs/reference/limits.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from symphony_kernel.protocol.limit_table import (
    BY_NAME,
    COMPILER_LIMITS,
    KERNEL_TENANT_LIMITS,
    LIMITS,
    RUN_LIMITS,
    WORKER_TENANT_LIMITS,
    Limit,
)

_KEYS = {"default", "max"}
_TENANT_KEYS = {"limits"}


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit's default and maximum; None: no limit."""

    default: int | None
    most: int | None


Bounds = Mapping[str, Bound]
USUAL: Bounds = {limit.name: Bound(limit.default, limit.default) for limit in LIMITS}


class LimitRefusedError(ValueError):
    """A run asks for more or less than a limit allows, or not for an integer."""

    def __init__(self, name: str, least: int, most: int) -> None:
        super().__init__(f"`limits.{name}` must be an integer from {least} to {most}")
        self.name, self.least, self.most = name, least, most


@dataclass(frozen=True)
class TenantLimits:
    """The limits of a tenant and its runs."""

    bounds: Bounds = field(default_factory=lambda: USUAL)

    def most(self, name: str) -> int | None:
        """Return the tenant's maximum, None for no limit."""
        return self.bounds[name].most

    def at_most(self, name: str) -> int:
        """Return the tenant's maximum of a limit that every tenant has."""
        most = self.bounds[name].most
        assert most is not None, name
        return most

    def choose(self, wanted: Mapping[str, Any]) -> dict[str, int]:
        """Return all limits of a run that asks for these.

        Raises:
            LimitRefusedError: one is not an integer within its bounds.
            KeyError: a run has no such limit.
        """
        chosen = dict(self._defaults)
        for name, value in wanted.items():
            if name not in chosen:
                raise KeyError(name)
            least, most = BY_NAME[name].least, self.at_most(name)
            if type(value) is not int or not least <= value <= most:
                raise LimitRefusedError(name, least, most)
            chosen[name] = value
        return chosen

    def of_kernel(self) -> dict[str, int | None]:
        """Return the tenant's limits that the kernel enforces."""
        most = {name: self.bounds[name].most for name in KERNEL_TENANT_LIMITS}
        disk, durable = self.bounds["disk_bytes"].most, self.at_most("kv_durable_bytes")
        return most if disk is None else most | {"kv_durable_bytes": min(disk, durable)}

    def of_worker(self, run: Mapping[str, int]) -> dict[str, int]:
        """Return the limits of a run that a worker enforces, with its tenant's."""
        return {**run, **{name: self.at_most(name) for name in WORKER_TENANT_LIMITS}}

    def of_compiler(self) -> dict[str, int]:
        """Return the limits of compiling the tenant's programs."""
        return {name: self.at_most(name) for name in COMPILER_LIMITS}

    def view(self) -> dict[str, Any]:
        """Return the limits as `GET /v1/limits` shows them."""
        return {
            limit.name: {
                "default": self.bounds[limit.name].default,
                "maximum": self.bounds[limit.name].most,
                "of": limit.scope.name.lower(),
            }
            for limit in LIMITS
        }

    @cached_property
    def _defaults(self) -> dict[str, int]:
        defaults = {limit.name: self.bounds[limit.name].default for limit in RUN_LIMITS}
        return {name: default for name, default in defaults.items() if default is not None}


class Limits:
    """The limits of all tenants. `quotas` returns those of a tenant at run time."""

    def __init__(
        self,
        server: Bounds | None = None,
        tenants: Mapping[str, Bounds] | None = None,
        quotas: Callable[[str], Mapping[str, int]] = lambda _tenant: {},
    ) -> None:
        self._server = {**USUAL, **(server or {})}
        self._tenants = tenants or {}
        self._quotas = quotas
        self._known: dict[str, tuple[Mapping[str, int], TenantLimits]] = {}

    def of(self, tenant: str) -> TenantLimits:
        """Return a tenant's limits: the same object until they change."""
        quotas = self._quotas(tenant)
        known = self._known.get(tenant)
        if known is None or known[0] != quotas:
            bounds = {**self._server, **self._tenants.get(tenant, {})}
            bounds |= {name: Bound(most, most) for name, most in quotas.items() if name in bounds}
            known = self._known[tenant] = dict(quotas), TenantLimits(bounds)
        return known[1]


# --- The operator's tables ---------------------------------------------------------------------
def parse_limits(values: object, what: str = "limits") -> dict[str, Bound]:
    """Return the bounds in a table of limits. ValueError: the message is for the operator."""
    if not isinstance(values, dict):
        raise ValueError(f"{what} must be a table")
    return {name: _bound(f"{what}.{name}", name, value) for name, value in values.items()}


def parse_tenants(values: object) -> dict[str, dict[str, Bound]]:
    """Return the bounds of each tenant in the table `tenants`.

    Raises ValueError: the message is for the operator.
    """
    if not isinstance(values, dict):
        raise ValueError("tenants must be a table")
    found = {}
    for tenant, said in values.items():
        if not isinstance(said, dict) or set(said) - _TENANT_KEYS:
            raise ValueError(f"tenants.{tenant} must be a table with `limits`")
        found[tenant] = parse_limits(said.get("limits", {}), f"tenants.{tenant}.limits")
    return found


def _bound(what: str, name: str, value: object) -> Bound:
    limit = BY_NAME.get(name)
    if limit is None:
        raise ValueError(f"{what}: there is no such limit; there are {', '.join(BY_NAME)}")
    if limit.ceiling is None:
        raise ValueError(f"{what} is always {limit.default} and cannot be set")
    if not isinstance(value, dict):
        most = _number(what, limit, value)
        return Bound(most, most)
    if set(value) - _KEYS or "max" not in value or not limit.by_run:
        raise ValueError(
            f"{what} must be a number, or for a run's limit {{default = .., max = ..}}"
        )
    most = _number(f"{what}.max", limit, value["max"])
    default = _number(f"{what}.default", limit, value.get("default", min(most, limit.default or 0)))
    if default > most:
        raise ValueError(f"{what}: the default, {default}, is above the maximum, {most}")
    return Bound(default, most)


def _number(what: str, limit: Limit, value: object) -> int:
    ceiling = limit.ceiling
    assert ceiling is not None
    if not isinstance(value, int) or isinstance(value, bool) or not limit.least <= value <= ceiling:
        raise ValueError(
            f"{what} must be an integer from {limit.least} to {ceiling}; it is {value!r}"
        )
    return value
