"""The providers of the Hetzner Cloud, OpenStack and STACKIT keep the provider contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ccm.testing.contract import Harness, MachineContract, ProviderContract
from providers.hcloud.testing import server as hcloud
from providers.openstack.testing import server as openstack
from providers.stackit.testing import server as stackit
from tests.hcloud.harness import HcloudHarness
from tests.openstack.harness import OpenStackHarness
from tests.stackit.harness import StackitHarness


class Hcloud:
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = hcloud.Service()
        async with hcloud.serve(service) as url:
            yield HcloudHarness(service, url)


class OpenStack:
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = openstack.Service()
        async with openstack.serve(service) as url:
            yield OpenStackHarness(service, url)


class Stackit:
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = stackit.Service()
        async with stackit.serve(service) as url:
            yield StackitHarness(service, url)


@pytest.mark.row(
    *["hcloud-node-01", "hcloud-node-02", "hcloud-node-03", "hcloud-node-04"],
    *[
        "hcloud-balancer-01",
        "hcloud-balancer-02",
        "hcloud-balancer-03",
        "hcloud-balancer-04",
        "hcloud-balancer-05",
    ],
    *["hcloud-route-01"],
    *["hcloud-call-02", "hcloud-call-03"],
)
class TestHcloud(Hcloud, ProviderContract): ...


@pytest.mark.row("hcloud-machine-01")
class TestHcloudMachines(Hcloud, MachineContract): ...


class TestOpenStack(OpenStack, ProviderContract): ...


class TestOpenStackMachines(OpenStack, MachineContract): ...


@pytest.mark.row(
    *["stackit-node-01", "stackit-node-03", "stackit-node-04", "stackit-node-06"],
    *[
        "stackit-balancer-01",
        "stackit-balancer-02",
        "stackit-balancer-03",
        "stackit-balancer-04",
        "stackit-balancer-05",
    ],
    *["stackit-auth-03"],
    *["stackit-call-02"],
)
class TestStackit(Stackit, ProviderContract): ...


@pytest.mark.row("stackit-machine-01")
class TestStackitMachines(Stackit, MachineContract): ...
