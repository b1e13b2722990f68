"""The provider keeps its contract before real OpenStack services."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ccm.testing.contract import Harness, MachineContract, ProviderContract
from tests.openstack.lab.harness import open_lab
from tests.openstack.lab.project import LabState

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.xdist_group("openstack-lab")]


class Lab:
    @pytest_asyncio.fixture
    async def harness(self, lab_state: LabState) -> AsyncIterator[Harness]:
        async with open_lab(lab_state) as harness:
            yield harness


class TestOpenStackLab(Lab, ProviderContract): ...


class TestOpenStackLabMachines(Lab, MachineContract): ...
