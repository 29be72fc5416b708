import pytest
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.fairness.weights import TenantWeights
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TENANT_WEIGHT_MAX


def weight_of(queue: FairQueue, tenant: str) -> float:
    return queue._tenant(tenant).weight


def test_what_an_operator_says_goes_before_the_options_until_it_is_taken_back() -> None:
    queue = FairQueue()
    shares = TenantWeights(queue.set_tenant_weight, {"research": 2.0})
    assert [weight_of(queue, tenant) for tenant in ("research", "acme")] == [2.0, 1.0]
    shares.set("research", 8)
    shares.set("acme", 0.5)
    assert [weight_of(queue, tenant) for tenant in ("research", "acme")] == [8, 0.5]
    assert [shares.weight(tenant) for tenant in ("research", "acme", "new")] == [8, 0.5, 1.0]
    shares.set("research", None)
    shares.set("acme", None)
    assert [weight_of(queue, tenant) for tenant in ("research", "acme")] == [2.0, 1.0]


@pytest.mark.parametrize("weight", [0, -1, float("nan"), 5e-324, TENANT_WEIGHT_MAX, "2", True, [2]])
def test_what_is_no_weight_is_refused(weight: object) -> None:
    queue = FairQueue()
    shares = TenantWeights(queue.set_tenant_weight, {})
    with pytest.raises(SyscallError) as error:
        shares.set("acme", weight)
    assert error.value.errno is Errno.EINVAL
    assert weight_of(queue, "acme") == 1.0
