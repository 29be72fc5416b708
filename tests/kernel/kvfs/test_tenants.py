"""A tenant with limits of its own, and which of them it has reached."""

from collections.abc import Callable

import pytest
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.quotas import UNLIMITED
from symphony_kernel.protocol.errno import LimitError
from symphony_kernel.protocol.limit_table import KERNEL_TENANT_LIMITS
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.kernel.page_device import extend, make_account, make_kvfs

PAGES = 8


def files(kvfs: KVFS) -> None:
    for _ in range(3):
        kvfs.create("t", kvfs.tenant("t").account)


def handles(kvfs: KVFS) -> None:
    for _ in range(3):
        kvfs.tenant("t").charge_handle()


def names(kvfs: KVFS) -> None:
    file = kvfs.create("t", kvfs.tenant("t").account)
    for number in range(3):
        kvfs.save(file, f"name-{number}", replace=False)


def device(kvfs: KVFS) -> None:
    file = kvfs.create("t", kvfs.tenant("t").account)
    extend(file, *range(2 * PAGE_TOKENS))
    extend(file, 1)


@pytest.mark.parametrize(
    ("limit", "most", "use"),
    [
        ("kv_files", 2, files),
        ("tenant_handles", 2, handles),
        ("kv_names", 2, names),
        ("kv_device_tokens", 2 * PAGE_TOKENS, device),
    ],
)
def test_tenant_past_its_own_limit_is_refused_and_counted(
    limit: str, most: int, use: Callable[[KVFS], None]
) -> None:
    kvfs = make_kvfs(PAGES)
    kvfs.limit("t", {limit: most})
    with pytest.raises(LimitError) as refused:
        use(kvfs)
    assert refused.value.limit == limit
    assert kvfs.tenant("t").account.hits == {limit: 1}
    other = make_kvfs(PAGES)
    other.limit("t", {limit: most})
    other.limit("t", {limit: None})
    use(other)
    assert other.tenant("t").account.hits == {}


def test_limit_of_a_run_is_reported_by_its_own_name() -> None:
    kvfs = make_kvfs(PAGES)
    file = kvfs.create("t", make_account(kvfs, pages=1))
    extend(file, *range(PAGE_TOKENS))
    with pytest.raises(LimitError) as refused:
        extend(file, 1)
    assert refused.value.limit == "kv_tokens"
    assert kvfs.tenant("t").account.hits == {"kv_tokens": 1}


def test_each_kernel_limit_changes_the_tenants_limits() -> None:
    kvfs = make_kvfs(PAGES)
    before = kvfs.tenant("t").limits
    for name in KERNEL_TENANT_LIMITS:
        assert kvfs.limit("t", {name: 3 * PAGE_TOKENS}).limits != before, name
    assert kvfs.limit("t", dict.fromkeys(KERNEL_TENANT_LIMITS)).limits == before
    assert before.tokens_per_minute == UNLIMITED
