"""The driver of the simulated cloud beyond the contract (`tests/contract/test_sim.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from ccm import cloud
from providers import sim
from providers.sim import server, world

WHO = cloud.Identity(cluster="c1", namespace="pools", pool="workers", name="m-1", uid="u-1")


class Asking:
    """Requests about one machine of one cluster."""

    def __init__(self, driver: sim.machines.SimMachines) -> None:
        self.driver = driver
        self.credentials = cloud.Credentials({"token": b"a-tokens-text"})

    def request(self, provider_id: str = "", **fields: Any) -> cloud.MachineRequest:
        given = {"identity": WHO, "provider_spec": {}, "credentials": self.credentials}
        return cloud.MachineRequest(provider_id=provider_id, **{**given, **fields})

    async def create(self, **fields: Any) -> cloud.MachineInfo:
        return await self.driver.create_machine(self.request(user_data=b"hi", **fields))


@pytest_asyncio.fixture
async def asking(url: str) -> AsyncIterator[Asking]:
    async with sim.open_machines(cloud.Context(environ={"SIM_URL": url})) as opened:
        assert isinstance(opened.machines, sim.machines.SimMachines)
        yield Asking(opened.machines)


@pytest.mark.parametrize(
    ("credentials", "told"),
    [
        ({}, "the credentials lack the key `token`"),
        ({"token": b" \n"}, "the credentials lack the key `token`"),
        ({"token": b"hunter2\xff"}, "must be one line"),
        ({"token": b"hunter2\nX-Admin: 1"}, "token of the credentials must be one line"),
        ({"token": b"hunter2" * 43_000}, "it has 301000 bytes"),
    ],
    ids=lambda value: repr(value)[:24],
)
async def test_invalid_credentials_are_refused_and_not_shown(
    asking: Asking, credentials: Mapping[str, bytes], told: str
) -> None:
    given = cloud.Credentials(credentials)
    (problem,) = await asking.driver.validate_spec({}, given, live=False)

    assert problem.field == "secretRef"
    assert told in problem.message
    with pytest.raises(cloud.InvalidArgument) as raised:
        await asking.driver.create_machine(asking.request(credentials=given))
    assert "hunter2" not in f"{problem} {raised.value} {raised.value.__cause__!r}"


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"machineType": 4, "zone": ""}, ["machineType", "zone"]),
        ({"sise": "big"}, ["sise"]),
        ({"labels": {"kube-ccm/cluster": "mine"}}, ["labels"]),
        ({"dataVolumes": [1, 0]}, ["dataVolumes"]),
        ({"allowedAddresses": ["10.0.0.0/8", "x"]}, ["allowedAddresses"]),
    ],
)
async def test_invalid_spec_fields_are_reported(
    asking: Asking, spec: Mapping[str, Any], fields: list[str]
) -> None:
    problems = await asking.driver.validate_spec(spec, asking.credentials, live=False)

    assert [one.field for one in problems] == fields
    with pytest.raises(cloud.InvalidArgument):
        await asking.create(provider_spec=spec)


async def test_volumes_of_a_remaining_vm_are_not_deleted(
    asking: Asking, service: server.Service
) -> None:
    """A manually written provider ID makes the driver delete another VM."""
    await asking.create(provider_spec={"dataVolumes": [10, 20]})
    other = service.world.put(world.Instance(name="other"))

    request = asking.request(f"sim://{other.id}", is_imported=True)
    await asking.driver.delete_machine(request)

    assert [one.name for one in service.world.snapshot()] == ["m-1"]
    assert len(service.worlds.volumes.list()) == 2


async def test_url_in_a_secret_does_not_select_the_cloud(
    asking: Asking, service: server.Service
) -> None:
    other = server.Service()
    async with server.serve(other) as elsewhere:
        given = {**asking.credentials, "url": elsewhere.encode()}
        await asking.create(credentials=cloud.Credentials(given))

    assert (len(service.world.snapshot()), other.calls.total()) == (1, 0)


@pytest.mark.parametrize("url", ["", "nowhere", "ftp://x"])
async def test_url_of_the_cloud_is_required(url: str) -> None:
    with pytest.raises(cloud.ConfigError, match="SIM_URL is"):
        async with sim.open_machines(cloud.Context(environ={"SIM_URL": url})):
            pass


async def test_live_validation_tests_the_credentials(asking: Asking) -> None:
    wrong = cloud.Credentials({**asking.credentials, "token": b"other"})

    (problem,) = await asking.driver.validate_spec({}, wrong, live=True)

    assert problem.field == "secretRef"
    assert await asking.driver.validate_spec({}, wrong, live=False) == []
