"""What every provider with `LoadBalancerTransfer` does."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.cloud import FailedPrecondition, NotFound, Service
from ccm.testing.contract_balancers import ensured
from ccm.testing.probes import CLUSTER


async def check_transfer(balancer: Any, former: Service, service: Service) -> None:
    """Another Service takes over the load balancer of a former Service, with its addresses."""
    with pytest.raises(NotFound):
        await balancer.transfer_load_balancer(CLUSTER, former, service)
    before = await ensured(balancer, former, [])

    for _ in range(2):  # the repetition changes nothing
        await balancer.transfer_load_balancer(CLUSTER, former, service)
        assert await balancer.get_load_balancer(CLUSTER, former) is None
        assert await balancer.get_load_balancer(CLUSTER, service) == before
    name = balancer.get_load_balancer_name(CLUSTER, service)
    assert [one.name for one in await balancer.list_load_balancers(CLUSTER)] == [name]
    assert await ensured(balancer, service, []) == before

    await ensured(balancer, former, [])
    with pytest.raises(FailedPrecondition):
        await balancer.transfer_load_balancer(CLUSTER, former, service)
    assert len(await balancer.list_load_balancers(CLUSTER)) == 2
