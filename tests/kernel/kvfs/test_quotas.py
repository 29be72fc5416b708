"""Accounts: the one that pays for a page, and for how long."""

import numpy as np
import pytest
from symphony_kernel.kvfs.quotas import Quotas
from symphony_kernel.protocol.errno import Errno, KernelBug

from tests.support.kernel.page_device import ManualTime
from tests.support.refusals import refused

PAGES = 8
MANY = 1 << 20


def pages(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(numbers, np.int32)


def references(*held: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    counts = np.zeros(PAGES, np.int32)
    counts[list(held)] = 1
    return counts


def test_page_counts_in_all_accounts_above() -> None:
    quotas = Quotas(PAGES, ManualTime())
    tenant = quotas.open("tenant", None, 4, MANY)
    run = quotas.open("run", tenant, 3, MANY)
    other = quotas.open("other", tenant, 3, MANY)
    quotas.charge(run, pages(0, 1))
    quotas.charge(other, pages(2))
    assert (tenant.pages, run.pages, other.pages) == (3, 2, 1)
    assert (tenant.own, run.own, other.own) == (0, 2, 1)
    quotas.allow(run, 1)
    for account, n in ((run, 2), (other, 2)):
        assert refused(quotas.allow, account, n) is Errno.EDQUOT
    quotas.refund(pages(1, 2))
    assert (tenant.pages, run.pages, other.pages) == (1, 1, 0)
    quotas.check_integrity(references(0))


def test_closed_accounts_pages_go_to_the_nearest_open_one() -> None:
    quotas = Quotas(PAGES, ManualTime())
    tenant = quotas.open("tenant", None, MANY, MANY)
    run = quotas.open("run", tenant, MANY, MANY)
    child = quotas.open("child", run, MANY, MANY)
    quotas.charge(child, pages(0, 1))
    quotas.charge(run, pages(2))
    quotas.close(run)
    assert (tenant.own, tenant.pages, run.pages) == (1, 3, 2)
    assert run.live() is tenant
    quotas.close(child)
    assert child.live() is tenant
    assert (tenant.own, tenant.pages, run.pages, child.pages) == (3, 3, 0, 0)
    again = quotas.open("again", tenant, MANY, MANY)
    quotas.charge(again, pages(5))
    quotas.check_integrity(references(0, 1, 2, 5))
    quotas.refund(pages(0, 1, 2, 5))
    quotas.check_integrity(references())


def test_usage_of_entries_is_integrated_over_time() -> None:
    time = ManualTime()
    quotas = Quotas(PAGES, time)
    tenant = quotas.open("tenant", None, MANY, MANY)
    run = quotas.open("run", tenant, MANY, MANY)
    time.seconds = 1.0
    quotas.charge(run, pages(0, 1))
    time.seconds = 3.0
    quotas.refund(pages(1))
    time.seconds = 4.0
    assert quotas.close(run) == 1000 * 16 * (2 * 2 + 1)


def test_audit_finds_a_page_without_an_account() -> None:
    quotas = Quotas(PAGES, ManualTime())
    tenant = quotas.open("tenant", None, MANY, MANY)
    quotas.charge(tenant, pages(0))
    with pytest.raises(KernelBug, match="not the same pages"):
        quotas.check_integrity(references(0, 1))
    tenant.own += 1
    with pytest.raises(KernelBug, match="counts 2 pages and pays for 1"):
        quotas.check_integrity(references(0))
