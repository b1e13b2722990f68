"""The project of a real cloud: what tests create and delete there without the provider."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
import yaml

from ccm import cloud
from providers.openstack import client, config

VARIABLE = "OPENSTACK_LAB"
"""Names a clouds.yaml. The tests DELETE whatever is in the project of its cloud `k8s`."""

NAME = "kube-ccm"
"""Name of the network and of the router that the tests create."""

NODE_PREFIX = "node-"
"""Names of the servers that are kept for further tests."""

WITHIN_S = 300.0
"""Limit for the work of a service."""

Resource = dict[str, Any]


@dataclass
class LabState:
    """What one run of pytest knows of the project; IDs and names.

    Attributes:
        settings: address of the cloud and credentials.
        spare: servers that no test uses, stopped or changed.
        used: those of the current test.
        credential: application credential of the tests.
    """

    settings: config.Global
    network: Resource = field(default_factory=dict)
    router: Resource = field(default_factory=dict)
    public: Resource = field(default_factory=dict)
    flavor: Resource = field(default_factory=dict)
    image: Resource = field(default_factory=dict)
    subnets: list[str] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    credential: Resource = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


def read_state(path: Path) -> LabState:
    """Return the settings of the cloud `k8s` in a clouds.yaml."""
    found = yaml.safe_load(path.read_text())["clouds"]["k8s"]
    auth, place = found["auth"], {key: found[key] for key in ("region_name",) if key in found}
    given = {config._AUTH[key]: text for key, text in auth.items()}
    given |= {config._PLACE[key]: text for key, text in place.items()}
    return LabState(cloud.Fields(given).read(config.Global))


class LabProject:
    """Calls to the services of a project, and what tests find there.

    Args:
        state: kept between tests.
        api: client of the provider; its calls and errors are what is needed here too.
    """

    def __init__(self, state: LabState, api: client.Client) -> None:
        self.state = state
        self.api = api

    # --- calls ----------------------------------------------------------------------------------

    async def call(self, service: str, method: str, path: str, body: object = None) -> Any:
        """Send a request; the decoded response, None without one."""
        headers = {"OpenStack-API-Version": "compute 2.52"} if service == "compute" else None
        place: client.Service = getattr(self.api, service.replace("-", "_"))
        answer = await place.call(method, path, body, headers)
        return msgspec.json.decode(answer) if answer else None

    async def listed(self, service: str, path: str, key: str, **query: str) -> list[Resource]:
        """All resources of a kind that match the query."""
        text = f"?{urlencode(query)}" if query else ""
        found: list[Resource] = (await self.call(service, "GET", f"{path}{text}"))[key]
        return found

    async def own(self, kind: str, **query: str) -> list[Resource]:
        """Resources of the project in Neutron, such as `ports`."""
        project = await self.api.keystone.project_id()
        path = f"/v2.0/{kind}"
        return await self.listed(
            "network", path, kind.replace("-", "_"), project_id=project, **query
        )

    async def keystone(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to Keystone, which the provider needs for tokens only."""
        headers = {"X-Auth-Token": await self.api.keystone.header()}
        url = f"{self.state.settings.auth_url.rstrip('/')}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, json=body, headers=headers) as response,
        ):
            text = await response.read()
            assert response.status < 300, text
            return msgspec.json.decode(text) if text else None

    # --- the start ------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Find or create network, router, image, flavor and credential; done once."""
        state = self.state
        if state.credential:
            return
        (state.public, *_) = await self.listed(
            "network", "/v2.0/networks", "networks", **{"router:external": "true"}
        )
        (state.image, *_) = await self.listed("image", "/v2/images", "images", status="active")
        flavors = await self.listed("compute", "/flavors/detail", "flavors")
        state.flavor = min(flavors, key=lambda one: (one["ram"], one["name"]))
        state.network = await self._network()
        state.subnets = [one["id"] for one in await self._subnets()]
        state.router = await self._router()
        await self.rotate()
        servers = await self.servers()
        state.spare = [
            one["id"]
            for one in servers
            if one["name"].startswith(NODE_PREFIX) and one["status"] == "ACTIVE"
        ]
        numbers = [one["name"].removeprefix(NODE_PREFIX) for one in servers]
        state.numbers = itertools.count(
            1 + max((int(n) for n in numbers if n.isdigit()), default=0)
        )

    async def _network(self) -> Resource:
        for found in await self.own("networks", name=NAME):
            return found
        answer = await self.call("network", "POST", "/v2.0/networks", {"network": {"name": NAME}})
        made: Resource = answer["network"]
        return made

    async def _subnets(self) -> list[Resource]:
        """The subnets of both IP families, IPv4 first."""
        number = self.state.network["id"]
        found = await self.own("subnets", network_id=number)
        if not found:
            for version, cidr in ((4, "10.7.0.0/16"), (6, "fd00:7::/64")):
                order = {"network_id": number, "ip_version": version, "cidr": cidr}
                order["name"] = f"{NAME}-v{version}"
                await self.call("network", "POST", "/v2.0/subnets", {"subnet": order})
            found = await self.own("subnets", network_id=number)
        return sorted(found, key=lambda one: int(one["ip_version"]))

    async def _router(self) -> Resource:
        for found in await self.own("routers", name=NAME):
            return found
        order = {"name": NAME, "external_gateway_info": {"network_id": self.state.public["id"]}}
        answer = await self.call("network", "POST", "/v2.0/routers", {"router": order})
        made: Resource = answer["router"]
        for subnet in self.state.subnets:
            path = f"/v2.0/routers/{made['id']}/add_router_interface"
            await self.call("network", "PUT", path, {"subnet_id": subnet})
        return made

    async def rotate(self) -> None:
        """Replace the application credential."""
        user = await self._user()
        old = self.state.credential
        name = f"{NAME}-{secrets.token_hex(4)}"
        body = {"application_credential": {"name": name}}
        path = f"/users/{user}/application_credentials"
        self.state.credential = (await self.keystone("POST", path, body))["application_credential"]
        if old:
            await self.keystone("DELETE", f"{path}/{old['id']}")

    async def _user(self) -> str:
        await self.api.keystone.header()
        granted = self.api.keystone._access
        assert granted is not None
        return str(granted.user_id)

    # --- servers --------------------------------------------------------------------------------

    async def servers(self) -> list[Resource]:
        return await self.listed("compute", "/servers/detail", "servers")

    async def server(self, number: str) -> Resource | None:
        """A server; None if it is gone."""
        with contextlib.suppress(cloud.NotFound):
            found: Resource = (await self.call("compute", "GET", f"/servers/{number}"))["server"]
            return found
        return None

    async def new_server(self, name: str = "", **more: Any) -> str:
        """Order a server; its ID."""
        order = {
            "name": name or f"{NODE_PREFIX}{next(self.state.numbers)}",
            "imageRef": self.state.image["id"],
            "flavorRef": self.state.flavor["id"],
            "networks": [{"uuid": self.state.network["id"]}],
            **more,
        }
        answer = await self.call("compute", "POST", "/servers", {"server": order})
        number: str = answer["server"]["id"]
        return number

    async def keep_spare(self, count: int) -> None:
        """Have so many servers that no test has used."""
        lacking = count - len(self.state.spare)
        orders = [await self.new_server() for _ in range(lacking)]
        for number in orders:
            await self.in_status(number, "ACTIVE")
            self.state.spare.append(number)

    async def in_status(self, number: str, status: str) -> Resource:
        """Wait for the status of a server; the server."""

        async def reached() -> Resource | None:
            found = await self.server(number)
            assert found is None or found["status"] != "ERROR", found
            is_there = found and found["status"] == status
            return found if is_there and not found["OS-EXT-STS:task_state"] else None  # type: ignore[index]

        found: Resource = await until(reached, f"server {number} is {status}")
        return found

    async def take_server(self) -> Resource:
        """A server that runs."""
        if not self.state.spare:
            await self.keep_spare(1)
        number = self.state.spare.pop(0)
        self.state.used.append(number)
        return await self.in_status(number, "ACTIVE")

    async def power(self, number: str, *, on: bool) -> None:
        """Start or stop a server, and wait."""
        action: Resource = {"os-start": None} if on else {"os-stop": None}
        await self.call("compute", "POST", f"/servers/{number}/action", action)
        await self.in_status(number, "ACTIVE" if on else "SHUTOFF")

    async def delete_servers(self, *numbers: str) -> None:
        """Delete servers, and wait until they are gone."""
        for number in numbers:
            with contextlib.suppress(cloud.NotFound):
                await self.call("compute", "DELETE", f"/servers/{number}")
        for number in numbers:

            async def gone(number: str = number) -> bool:
                return await self.server(number) is None

            await until(gone, f"server {number} is gone")
            for held in (self.state.spare, self.state.used):
                if number in held:
                    held.remove(number)

    async def ports_of(self, number: str) -> list[Resource]:
        return await self.listed("network", "/v2.0/ports", "ports", device_id=number)

    # --- load balancers -------------------------------------------------------------------------

    async def balancers(self) -> list[Resource]:
        return await self.parts("loadbalancers")

    async def parts(self, kind: str) -> list[Resource]:
        """Resources of Octavia, such as `listeners`."""
        return await self.listed("load-balancer", f"/v2/lbaas/{kind}", kind.rpartition("/")[2])

    async def settled(self, number: str = "") -> None:
        """Wait until no load balancer, or not this one, is being changed."""

        async def done() -> bool:
            return not any(
                one["provisioning_status"].startswith("PENDING")
                for one in await self.balancers()
                if number in ("", one["id"])
            )

        await until(done, "load balancers are settled")

    # --- the end --------------------------------------------------------------------------------

    async def clean(self) -> None:
        """Remove whatever tests leave; servers that nobody changed are kept."""
        await self._clean_balancers()
        for entry in await self.own("floatingips"):
            await self.call("network", "DELETE", f"/v2.0/floatingips/{entry['id']}")
        router = f"/v2.0/routers/{self.state.router['id']}"
        await self.call("network", "PUT", router, {"router": {"routes": []}})
        kept = [*self.state.spare, *self.state.used]
        others = [one["id"] for one in await self.servers() if one["id"] not in kept]
        await self.delete_servers(*others)
        for number in list(self.state.used):
            found = await self.server(number)
            if found is None or found["status"] != "ACTIVE" or found["OS-EXT-STS:task_state"]:
                await self.delete_servers(number)
        for port in await self.own("ports"):
            await self._clean_port(port)
        for group in await self.own("security-groups"):
            if group["name"] != "default":
                await self.call("network", "DELETE", f"/v2.0/security-groups/{group['id']}")
        self.state.spare += self.state.used
        self.state.used.clear()

    async def _clean_balancers(self) -> None:
        await self.settled()
        for one in await self.balancers():
            path = f"/v2/lbaas/loadbalancers/{one['id']}?cascade=true"
            with contextlib.suppress(cloud.NotFound):
                await self.call("load-balancer", "DELETE", path)

        async def gone() -> bool:
            return not await self.balancers()

        await until(gone, "load balancers are gone")

    async def _clean_port(self, port: Resource) -> None:
        path = f"/v2.0/ports/{port['id']}"
        if not port["device_owner"]:
            with contextlib.suppress(cloud.NotFound):
                await self.call("network", "DELETE", path)
        elif port["device_owner"].startswith("compute:"):
            default = [one["id"] for one in await self.own("security-groups", name="default")]
            order: Resource = {}
            if port["allowed_address_pairs"]:
                order["allowed_address_pairs"] = []
            if port["security_groups"] != default:
                order["security_groups"] = default
            if order:
                await self.call("network", "PUT", path, {"port": order})
            if port["tags"]:
                await self.call("network", "PUT", f"{path}/tags", {"tags": []})


async def until(
    condition: Callable[[], Any], what: str, *, pause_s: float = 0.3, within_s: float = WITHIN_S
) -> Any:
    """Ask until the answer is true; that answer."""
    ends = time.monotonic() + within_s
    while not (answer := await condition()):
        assert time.monotonic() < ends, f"not within {within_s:.0f} s: {what}"
        await asyncio.sleep(pause_s)
    return answer


@contextlib.asynccontextmanager
async def open_project(state: LabState) -> AsyncIterator[LabProject]:
    """The project, prepared."""
    async with client.open_client(state.settings, 120.0) as api:
        project = LabProject(state, api)
        await project.prepare()
        yield project
