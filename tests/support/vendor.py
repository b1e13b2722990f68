"""A provider before the fake of its cloud: what the tests of all vendors share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

from ccm import cloud
from ccm.testing import machine_probes, probes
from ccm.testing.contract import Harness, Made
from ccm.testing.contract_balancers import ensured
from ccm.testing.fake_api import Exchange, Fault


def faults(operation: str, **codes: str) -> Mapping[str, Fault]:
    """The faults of the contract: those with a code of the API, and those of the wire."""
    wire: Any = ("drop", "garbage", "empty", "hang")
    return {
        **{kind: Fault(kind=kind, operation=operation) for kind in wire},
        **{name: Fault(code=code, operation=operation) for name, code in codes.items()},
    }


class VendorHarness(Harness):
    """Moves a fake of a cloud from behind, and never over its HTTP API.

    Attributes:
        any_call: pattern of the operations that faults are for.
        any_write: pattern of the operations that change something.
        service: the fake.
        project: the provider with the settings of the contract suite, where a fixture opened it.
    """

    any_call = "*"
    any_write = "[!G]*"  # calls that only read are GET
    service: Any

    def __init__(self, service: Any, url: str) -> None:
        self.service = service
        self.url = url
        self.project: Any = None
        self._made = 0

    @property
    def balancer(self) -> Any:
        """The load balancers of `project`."""
        return self.project.load_balancer

    async def nodes(self, count: int) -> list[cloud.Node]:
        """Make servers; their nodes."""
        return await probes.nodes(self.project, self, count)

    async def in_vain(self, *args: Any, project: cloud.Cloud | None = None) -> None:
        """Prove that ensuring once more writes nothing."""
        before = self.service.writes
        await ensured(balancer_of(project or self.project), *args)
        assert self.service.writes == before

    async def surprise(self, made: Made) -> None:
        await self.fail(Fault(kind="novelty", operation=self.any_call))

    async def fail(self, how: Any) -> None:
        self.service.script.add(how)

    async def heal(self) -> None:
        self.service.heal()

    async def writes(self) -> int:
        return int(self.service.writes)

    async def lose_answer(self, number: int) -> None:
        fault = Fault(kind="drop", operation=self.any_write, skip=number - 1, count=1, applied=True)
        await self.fail(fault)

    async def refuses_machine_id(self, provider_id: str) -> None:
        """Prove that no call about a machine with this provider ID gets to the cloud."""
        group = machine_probes.machines_of(self.project, self)
        req = group.request(group.identity(), provider_id)
        driver = group.driver
        for ask in (driver.get_machine_status, driver.delete_machine, driver.initialize_machine):
            with pytest.raises(cloud.InvalidArgument):
                await ask(req)
        assert self.service.requests == 0

    async def slow_load_balancers(self, *, slow: bool) -> None:
        self.service.settings.balancer_s = 60.0 if slow else 0.0
        if not slow:
            self.service.cloud.settle(all_of_them=True)

    async def slow_vms(self, *, slow: bool) -> None:
        settings = self.service.settings
        settings.boot_s = settings.removal_s = 300.0 if slow else 0.0
        if not slow:
            self.service.cloud.settle(all_of_them=True)

    async def shrink_pages(self, size: int) -> None:
        self.service.settings.page_size = size


def balancer_of(project: cloud.Cloud) -> Any:
    assert project.load_balancer is not None
    return project.load_balancer


@pytest.fixture
def seen() -> list[Exchange]:
    """Every call of a test and its answer."""
    return []


@pytest.fixture
def service(vendor: tuple[ModuleType, type[VendorHarness]], seen: list[Exchange]) -> Any:
    """The fake."""
    return vendor[0].Service(witness=seen.append)


@pytest_asyncio.fixture
async def endpoint(
    vendor: tuple[ModuleType, type[VendorHarness]], service: Any
) -> AsyncIterator[str]:
    """Where it is."""
    async with vendor[0].serve(service) as url:
        yield url


@pytest_asyncio.fixture
async def harness(
    vendor: tuple[ModuleType, type[VendorHarness]], service: Any, endpoint: str
) -> AsyncIterator[VendorHarness]:
    """The hand behind the fake, and the provider before it."""
    made = vendor[1](service, endpoint)
    async with made.open() as made.project:
        yield made
