"""Metadata of servers before real services, with the settings that change them."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.testing.builders import node
from providers import openstack
from tests.openstack.harness import id_of
from tests.openstack.lab.harness import LabHarness
from tests.openstack.lab.project import NAME

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.xdist_group("openstack-lab")]

ORDER = "fd00:7::/64, 10.7.0.0/16"


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"address-sort-order": ORDER}, ["InternalIP", "InternalIP"]),
        ({"internal-network-name": NAME, "address-sort-order": ORDER}, ["InternalIP"] * 2),
        ({"internal-network-name": "none"}, []),
        ({"public-network-name": NAME, "ipv6-support-disabled": "true"}, ["ExternalIP"]),
    ],
)
async def test_addresses_and_provider_id_are_those_of_the_settings(
    harness: LabHarness, settings: dict[str, str], kinds: list[str]
) -> None:
    made = await harness.create()
    harness.extra["Networking"] = settings
    context = harness.context(environ={"OS_CCM_REGIONAL": "true"})
    async with openstack.open_cloud(context) as project:
        instances: Any = project.instances
        metadata = await instances.instance_metadata(node(made.name))

    assert metadata.provider_id == f"openstack://{made.region}/{id_of(made)}"
    assert (metadata.zone, metadata.instance_type) == (made.zone, made.instance_type)
    addresses = [one for one in metadata.addresses or () if one.type != "Hostname"]
    assert [one.type for one in addresses] == kinds
    assert {one.address for one in addresses} <= {one.address for one in made.addresses or ()}
    if "address-sort-order" in settings:
        assert [":" in one.address for one in addresses] == [True, False]
