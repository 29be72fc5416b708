"""Limits as operators and runs say them, and the page that describes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.protocol.limit_table import BY_NAME, LIMITS, REASONS, RUN_LIMITS, limit_of
from symphony_runtime.config.limits import (
    Bound,
    LimitRefusedError,
    Limits,
    TenantLimits,
    parse_limits,
    parse_tenants,
)
from symphony_runtime.config.serve import OptionsError, read_options
from symphony_runtime.gateway.config import GatewayConfig
from symphony_runtime.supervisor.supervisor import _gateway_config


def test_reason_of_each_limit_is_described_in_its_row() -> None:
    for words, name in REASONS:
        assert limit_of("killed", f"{words}: more") == name
        told = BY_NAME[name].effect
        assert words.split(":")[0] in told or words == "the run took longer", name
    assert limit_of("exited", "cpu time limit") is None
    assert limit_of("killed", "it was cancelled") is None
    assert limit_of("trapped", "stack overflow: the recursion is too deep") == "stack_bytes"


def test_run_without_limits_has_the_defaults() -> None:
    chosen = TenantLimits().choose({})
    assert chosen == {limit.name: limit.default for limit in RUN_LIMITS}
    assert TenantLimits().choose({"cpu_ms": 5}) == {**chosen, "cpu_ms": 5}


@pytest.mark.parametrize("limit", RUN_LIMITS, ids=lambda limit: limit.name)
def test_run_may_lower_each_limit_and_not_raise_it(limit: Any) -> None:
    tenant = TenantLimits()
    assert tenant.choose({limit.name: limit.least})[limit.name] == limit.least
    for wrong in (limit.default + 1, limit.least - 1, 1.5, True, "1", None):
        with pytest.raises(LimitRefusedError) as refused:
            tenant.choose({limit.name: wrong})
        assert refused.value.most == limit.default
        assert limit.name in str(refused.value)
        assert str(limit.default) in str(refused.value)
    with pytest.raises(KeyError):
        tenant.choose({"live_runs": 1})


def test_limits_table_sets_default_and_maximum() -> None:
    found = parse_limits({"cpu_ms": 5_000, "wall_ms": {"default": 10, "max": 20}, "live_runs": 3})
    assert found == {"cpu_ms": Bound(5_000, 5_000), "wall_ms": Bound(10, 20),
                     "live_runs": Bound(3, 3)}  # fmt: skip
    assert parse_limits({"wall_ms": {"max": 20}})["wall_ms"] == Bound(20, 20)


WRONG = [
    ({"cpus": 1}, "no such limit"),
    ({"cpu_ms": 0}, "from 1 to"),
    ({"cpu_ms": True}, "integer"),
    ({"cpu_ms": 1 << 60}, "from 1 to"),
    ({"cpu_ms": {"max": 5, "default": 6}}, "above the maximum"),
    ({"cpu_ms": {"default": 6}}, "max"),
    ({"cpu_ms": {"max": 5, "most": 6}}, "max"),
    ({"live_runs": {"max": 5}}, "a number"),
    ({"stack_bytes": 5}, "always"),
    ([], "table"),
]


@pytest.mark.parametrize(("values", "words"), WRONG)
def test_limits_table_with_a_mistake_is_refused(values: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_limits(values)


@pytest.mark.parametrize("values", [[], {"acme": 1}, {"acme": {"limit": {}}}])
def test_tenants_table_has_limits_by_tenant(values: Any) -> None:
    assert parse_tenants({"acme": {"limits": {"cpu_ms": 1}}}) == {"acme": {"cpu_ms": Bound(1, 1)}}
    with pytest.raises(ValueError, match="tenants"):
        parse_tenants(values)


def test_limits_of_a_tenant_come_from_quotas_then_its_table_then_all() -> None:
    quotas: dict[str, dict[str, int]] = {"acme": {}}
    limits = Limits(
        parse_limits({"cpu_ms": 1_000, "live_runs": 5}),
        parse_tenants({"acme": {"limits": {"cpu_ms": 2_000}}}),
        lambda tenant: quotas.get(tenant, {}),
    )
    assert limits.of("other").most("cpu_ms") == 1_000
    acme = limits.of("acme")
    assert (acme.most("cpu_ms"), acme.most("live_runs")) == (2_000, 5)
    assert limits.of("acme") is acme
    quotas["acme"] = {"cpu_ms": 3_000, "tokens_per_minute": 7}
    assert limits.of("acme").choose({"cpu_ms": 2_500})["cpu_ms"] == 2_500
    assert limits.of("acme").of_kernel()["tokens_per_minute"] == 7
    assert limits.of("acme").view()["cpu_ms"] == {"default": 3_000, "maximum": 3_000, "of": "run"}


def test_limits_of_the_file_reach_the_gateway(tmp_path: Path) -> None:
    path = tmp_path / "symphony.toml"
    path.write_text(
        "tenant_durable_bytes_max = 7\n[limits]\ncpu_ms = {default = 5, max = 9}\n"
        "[tenants.acme.limits]\nlive_runs = 3\n"
    )
    options = read_options(path, {"data_dir": tmp_path})
    line = json.loads(json.dumps(_gateway_config(options)))
    roles = {"socket": "s", "secrets": {}, "secret": "", "kernel_socket": "k"}
    config = GatewayConfig.parse(line | roles)
    assert config.limits == {"cpu_ms": Bound(5, 9), "kv_durable_bytes": Bound(7, 7)}
    assert config.tenants == {"acme": {"live_runs": Bound(3, 3)}}
    path.write_text("[limits]\ncpus = 3\n")
    with pytest.raises(OptionsError, match=r"limits.cpus: there is no such limit"):
        read_options(path, {})


def test_limit_names_are_valid_labels() -> None:
    assert all(limit.name.replace("_", "").isalpha() for limit in LIMITS)
    assert set(TenantLimits().view()) == {limit.name for limit in LIMITS}
