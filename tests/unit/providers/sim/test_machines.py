"""The driver of the simulated cloud beyond the contract (`tests/contract/test_sim.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from ccm import cloud
from providers import sim

WHO = cloud.Identity(cluster="c1", namespace="pools", pool="workers", name="m-1", uid="u-1")
OTHER = cloud.Identity(cluster="c1", pool="workers", name="m-2", uid="u-2")
VOLUMES = {"dataVolumes": [10, 20]}
RANGES = {"allowedAddresses": ["10.244.0.0/24"]}


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

    async def records(self, **spec: Any) -> list[cloud.MachineRecord]:
        asked = cloud.ListMachinesRequest(
            cluster="c1", pool="workers", provider_spec=spec, credentials=self.credentials
        )
        return list(await self.driver.list_machines(asked))


@pytest_asyncio.fixture
async def asking(url: str) -> AsyncIterator[Asking]:
    async with sim.open_machines(cloud.Context(environ={"SIM_URL": url})) as opened:
        assert isinstance(opened.machines, sim.machines.SimMachines)
        yield Asking(opened.machines)


@pytest.mark.parametrize(
    ("credentials", "told"),
    [
        ({}, "the credentials lack token"),
        ({"token": b" \n"}, "the credentials lack token"),
        ({"token": b"hunter2\xff"}, "must be one line"),
        ({"token": b"hunter2\nX-Admin: 1"}, "token of the credentials must be one line"),
        ({"token": b"hunter2" * 43_000}, "and has 301000"),
    ],
    ids=lambda value: repr(value)[:24],
)
async def test_credentials_are_checked_and_not_told(
    asking: Asking, credentials: Mapping[str, bytes], told: str
) -> None:
    given = cloud.Credentials(credentials)
    (problem,) = await asking.driver.validate_spec({}, given, live=False)

    assert problem.field == "secretRef"
    assert told in problem.message
    with pytest.raises(cloud.InvalidArgument) as raised:
        await asking.driver.create_machine(asking.request(credentials=given))
    assert "hunter2" not in f"{problem} {raised.value} {raised.value.__cause__!r}"


@pytest.mark.parametrize("url", ["", "nowhere", "ftp://x"])
async def test_where_the_cloud_is_has_to_be_said(url: str) -> None:
    with pytest.raises(cloud.ConfigError, match="SIM_URL is"):
        async with sim.open_machines(cloud.Context(environ={"SIM_URL": url})):
            pass


async def test_a_live_check_tries_the_credentials(asking: Asking) -> None:
    wrong = cloud.Credentials({**asking.credentials, "token": b"other"})

    (problem,) = await asking.driver.validate_spec({}, wrong, live=True)

    assert problem.field == "secretRef"
    assert await asking.driver.validate_spec({}, wrong, live=False) == []
