"""The clouds of the guides: a fake of each provider's cloud, and the reader's own values for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccm.testing import fake_api
from providers.hcloud.testing import __main__ as hcloud_program
from providers.hcloud.testing import server as hcloud
from providers.openstack.testing import __main__ as openstack_program
from providers.openstack.testing import server as openstack
from providers.stackit.testing import __main__ as stackit_program
from providers.stackit.testing import server as stackit
from providers.stackit.testing import state


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideCloud:
    """A running fake of a cloud.

    Attributes:
        fill: text of a guide -> its replacement, as a reader fills in the values of an account.
        files: name -> content of the files that a reader has from the vendor.
        environment: variables that lead clients to the fake instead of the real cloud.
        running: function that returns name -> ID of the running servers.
        balancers: function that returns the names of the load balancers.
    """

    fill: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    running: Callable[[], Mapping[str, str]] = dict
    balancers: Callable[[], Sequence[str]] = list


@contextlib.asynccontextmanager
async def _hcloud(nodes: Sequence[str]) -> AsyncIterator[GuideCloud]:
    service = hcloud.Service()
    hcloud_program.populate(service, nodes)
    servers, balancers = service.cloud.servers, service.cloud.load_balancers
    async with hcloud.serve(service) as url:
        yield GuideCloud(
            fill={"<API token>": service.token},
            environment={"HCLOUD_ENDPOINT": url},
            running=lambda: _named(servers, "running"),
            balancers=lambda: [balancer["name"] for balancer in balancers.values()],
        )


@contextlib.asynccontextmanager
async def _openstack(nodes: Sequence[str]) -> AsyncIterator[GuideCloud]:
    service = openstack.Service()
    openstack_program.populate(service, nodes)
    world = service.cloud
    ids = {
        "<ID of the external network>": (world.networks, "public"),
        "<ID of the network of the nodes>": (world.networks, openstack_program.NETWORK),
        "<ID of the subnet of the nodes>": (world.subnets, f"{openstack_program.NETWORK}-v4"),
        "<ID of the router>": (world.routers, "k8s"),
    }
    number, secret = service.identity.app_credential
    async with fake_api.serve(service) as url:
        yield GuideCloud(
            fill={
                "https://keystone.example.com:5000/v3": f"{url}/identity/v3",
                "<ID of the application credential>": number,
                "<secret of the application credential>": secret,
                **{place: _id(things, name) for place, (things, name) in ids.items()},
            },
            running=lambda: _named(world.servers, "ACTIVE"),
            balancers=lambda: [balancer["name"] for balancer in world.balancers.values()],
        )


@contextlib.asynccontextmanager
async def _stackit(nodes: Sequence[str]) -> AsyncIterator[GuideCloud]:
    service = stackit.Service()
    stackit_program.populate(service, nodes)
    world = service.cloud
    async with fake_api.serve(service) as url:
        # Only the cloud config has the URL of the load balancer API.
        apis = f"    iaasApi: {url}{stackit.IAAS}\n    loadBalancerApi: {url}{stackit.BALANCERS}\n"
        region = "  region: eu01\n"
        yield GuideCloud(
            fill={
                "<project ID>": state.PROJECT,
                "<ID of the network of the nodes>": stackit.NETWORK,
                region: f"{region}  apiEndpoints:\n{apis}",
            },
            files={"key.json": service.account.key.decode()},
            environment={
                "STACKIT_TOKEN_BASEURL": f"{url}/token",
                "STACKIT_IAAS_ENDPOINT": f"{url}{stackit.IAAS}",
            },
            running=lambda: _named(world.servers, "ACTIVE"),
            balancers=lambda: [*world.balancers],
        )


CLOUDS: Mapping[
    str, Callable[[Sequence[str]], contextlib.AbstractAsyncContextManager[GuideCloud]]
] = {"hcloud": _hcloud, "openstack": _openstack, "stackit": _stackit}
"""Name of a provider -> function that serves a fake of its cloud, with servers of these names."""


def _named(servers: Mapping[Any, Mapping[str, Any]], status: str) -> Mapping[str, str]:
    return {one["name"]: str(one["id"]) for one in servers.values() if one["status"] == status}


def _id(things: Mapping[str, Mapping[str, Any]], name: str) -> str:
    return next(number for number, thing in things.items() if thing["name"] == name)
