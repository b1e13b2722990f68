"""First content of the lab: accounts, catalogue, zones, flavors, an image, an external network."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.openstack.lab.project import until

FACES = ("public", "internal", "admin")
TYPES: Mapping[str, tuple[str, str]] = {
    "glance": ("image", ""),
    "placement": ("placement", ""),
    "nova": ("compute", "/v2.1"),
    "neutron": ("network", ""),
    "octavia": ("load-balancer", ""),
}
"""Service -> type, and path of its URL."""

FLAVORS = (("m1.tiny", 1, 512), ("m1.small", 2, 2048))
CIDR, TAG = "203.0.113.0/24", "floating"
"""Range of the external network, and the tag of its subnet."""


@dataclass(frozen=True)
class Plan:
    """Where the services are, and what they are to be told."""

    auth_url: str
    region: str
    password: str
    urls: Mapping[str, str]
    zones: Sequence[str]


class _Admin:
    """Calls of the administrator."""

    def __init__(self, plan: Plan, session: aiohttp.ClientSession) -> None:
        self._plan = plan
        self._session = session

    async def call(self, service: str, method: str, path: str, **how: Any) -> Any:
        base = self._plan.auth_url if service == "keystone" else self._plan.urls[service]
        async with self._session.request(method, f"{base}{path}", **how) as response:
            assert response.status < 300, f"{method} {path}: {await response.text()}"
            is_json = response.content_type == "application/json"
            return await response.json() if is_json else None

    async def ensure(self, path: str, kind: str, name: str, **fields: Any) -> str:
        """Return the ID of a resource of Keystone, which is created if necessary."""
        listed = await self.call("keystone", "GET", path, params={"name": name})
        for found in listed[path.strip("/")]:
            return str(found["id"])
        body = {kind: {"name": name, **fields}}
        made = await self.call("keystone", "POST", path, json=body)
        return str(made[kind]["id"])


@contextlib.asynccontextmanager
async def _admin(plan: Plan) -> AsyncIterator[_Admin]:
    user = {"name": "admin", "domain": {"id": "default"}, "password": plan.password}
    auth = {
        "identity": {"methods": ["password"], "password": {"user": user}},
        "scope": {"project": {"name": "admin", "domain": {"id": "default"}}},
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{plan.auth_url}/auth/tokens", json={"auth": auth}) as response,
    ):
        session.headers["X-Auth-Token"] = response.headers["X-Subject-Token"]
        session.headers["OpenStack-API-Version"] = "compute 2.52"
        yield _Admin(plan, session)


async def identity(plan: Plan) -> None:
    """Create projects, users, roles and the catalogue."""
    async with _admin(plan) as admin:
        projects = {
            name: await admin.ensure("/projects", "project", name, domain_id="default")
            for name in ("service", "k8s")
        }
        roles = {
            name: await admin.ensure("/roles", "role", name)
            for name in ("admin", "service", "member", "load-balancer_member")
        }
        for name in (*TYPES, "k8s"):
            user = await admin.ensure(
                "/users", "user", name, domain_id="default", password=plan.password
            )
            is_service = name in TYPES
            project = projects["service" if is_service else "k8s"]
            names = ("admin", "service") if is_service else ("member", "load-balancer_member")
            for role in names:
                path = f"/projects/{project}/users/{user}/roles/{roles[role]}"
                await admin.call("keystone", "PUT", path)
        for name, (kind, suffix) in TYPES.items():
            number = await admin.ensure("/services", "service", name, type=kind)
            for face in FACES:
                endpoint = {"interface": face, "service_id": number, "region_id": plan.region}
                endpoint["url"] = f"{plan.urls[name]}{suffix}"
                await admin.call("keystone", "POST", "/endpoints", json={"endpoint": endpoint})


async def computes_reported(plan: Plan) -> None:
    """Wait until Nova can order servers of each nova-compute; the scheduler looks for new ones."""
    async with _admin(plan) as admin:

        async def reported() -> bool:
            found = (await admin.call("nova", "GET", "/v2.1/os-hypervisors"))["hypervisors"]
            return {f"compute-{zone}" for zone in plan.zones} <= {
                one["hypervisor_hostname"] for one in found if one["state"] == "up"
            }

        await until(reported, "nova-compute has reported")


async def resources(plan: Plan) -> None:
    """Create zones, flavors, an image and an external network."""
    async with _admin(plan) as admin:
        for zone in plan.zones:
            body: Any = {"aggregate": {"name": zone, "availability_zone": zone}}
            made = await admin.call("nova", "POST", "/v2.1/os-aggregates", json=body)
            path = f"/v2.1/os-aggregates/{made['aggregate']['id']}/action"
            body = {"add_host": {"host": f"compute-{zone}"}}
            await admin.call("nova", "POST", path, json=body)
        for name, cpus, ram in FLAVORS:
            flavor = {"name": name, "vcpus": cpus, "ram": ram, "disk": 1}
            await admin.call("nova", "POST", "/v2.1/flavors", json={"flavor": flavor})
        image = {"name": "tiny", "container_format": "bare", "disk_format": "raw"}
        image["visibility"] = "public"
        made = await admin.call("glance", "POST", "/v2/images", json=image)
        await admin.call(
            "glance",
            "PUT",
            f"/v2/images/{made['id']}/file",
            data=b"no disk\n" * 64,
            headers={"Content-Type": "application/octet-stream"},
        )
        body = {
            "network": {
                "name": "public",
                "router:external": True,
                "provider:network_type": "flat",
                "provider:physical_network": "public",
            }
        }
        number = (await admin.call("neutron", "POST", "/v2.0/networks", json=body))["network"]["id"]
        subnet = {"name": "public-v4", "network_id": number, "ip_version": 4, "cidr": CIDR}
        body = {"subnet": {**subnet, "enable_dhcp": False}}
        made = (await admin.call("neutron", "POST", "/v2.0/subnets", json=body))["subnet"]
        await admin.call("neutron", "PUT", f"/v2.0/subnets/{made['id']}/tags/{TAG}")
        await _offer(admin, "flavor", {"loadbalancer_topology": "SINGLE"})
        for zone in plan.zones:
            await _offer(admin, "availability_zone", {"compute_zone": zone}, zone)


async def _offer(admin: _Admin, kind: str, data: Mapping[str, str], name: str = "single") -> None:
    """Create a flavor or zone of load balancers, with its profile; only administrators may."""
    path = f"/v2/lbaas/{kind.replace('_', '')}"
    profile: dict[str, Any] = {"name": name, "provider_name": "amphora"}
    body = {f"{kind}_profile".replace("flavor_", "flavor"): profile}
    profile[f"{kind}_data"] = json.dumps(data)
    made = (await admin.call("octavia", "POST", f"{path}profiles", json=body)).popitem()[1]
    offered = {"name": name, f"{kind}_profile_id": made["id"]}
    await admin.call("octavia", "POST", f"{path}s", json={kind: offered})
