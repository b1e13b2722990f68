"""The journal's access to VMs of Machines that contain their provider spec themselves."""

from __future__ import annotations

import pytest
from msgspec import structs

from ccm.cloud.errors import FailedPrecondition
from ccm.machines.journal import MachineAccess
from ccm.runtime.orphans import Finding
from tests.unit.kubermatic.test_machines import ALL, Kubermatic

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("journal-02")
async def test_vm_is_looked_up_as_long_as_its_machine_exists() -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        assert world.shared is not None
        access = MachineAccess(world.shared)
        (entry,) = await access.listed()

        look = await access.look(entry)
        assert (look.finding, look.resource_id) == (Finding.MARKED, entry.resource_id)

        owner = structs.replace(entry.owner, uid="former")
        with pytest.raises(FailedPrecondition, match="does not exist"):
            await access.look(structs.replace(entry, owner=owner))
