"""Controllers with another API group, which needs only a codec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ccm import machines
from ccm.gardener import names
from ccm.testing.apiserver import kinds
from ccm.testing.clock import advance
from tests.support import servers
from tests.unit.controllers.machines import DEFINITIONS, NODES_PATH, World

pytestmark = pytest.mark.virtual_time

BASE = f"/apis/{servers.GROUP}/{servers.VERSION}/namespaces/default"
ALL = ("machine", "machineset", "machinedeployment")
WEB = f"{BASE}/fleets/web"


class Servers(World):
    """Fleets of servers, and nodes that join after their VMs are there."""

    codec = servers.CODEC

    def define(self) -> None:
        for one in servers.definitions():
            made = self.server.put(DEFINITIONS, dict(one))
            made["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
            self.server.store.put(kinds.DEFINITIONS, made["metadata"]["name"], made)

    def fleet(self, count: int, size: str = "small") -> None:
        template = {"labels": {"app": "web"}, "size": size, "vm": {"cores": 2}}
        spec = {"count": count, "selects": {"app": "web"}, "template": template, "surge": 1}
        self.server.put(f"{BASE}/fleets", {"metadata": {"name": "web"}, "spec": spec})

    def edit(self, **spec: Any) -> None:
        self.server.patch(WEB, {"spec": spec})

    def objects(self, plural: str) -> list[dict[str, Any]]:
        return self.server.list(f"{BASE}/{plural}")

    def sizes(self) -> list[str]:
        """Sizes of the servers that run and do not go."""
        return sorted(
            one["spec"]["size"]
            for one in self.objects("servers")
            if one.get("status", {}).get("state") == "Running"
            and "deletionTimestamp" not in one["metadata"]
        )

    async def settle(self, seconds: int = 120) -> int:
        """Let nodes join for a time; return the most servers there were."""
        most = 0
        for _ in range(seconds // 2):
            await advance(2)
            most = max(most, len(self.driver.vms))
            for record in list(self.driver.vms.values()):
                name = record.info.node_name
                if not self.node_object(name):
                    spec = {"providerID": record.info.provider_id}
                    self.server.put(NODES_PATH, {"metadata": {"name": name}, "spec": spec})
                    self.heartbeat(name, Ready="True")
        return most


async def test_another_api_group_creates_scales_rolls_and_deletes() -> None:
    world = Servers()
    world.fleet(2)
    async with world.running(*ALL):
        await world.settle()
        assert world.sizes() == ["small"] * 2
        assert {one.identity.pool for one in world.driver.vms.values()} == {"small"}
        assert world.driver.given["create_machine"].provider_spec == {"cores": 2}
        node = next(iter(world.server.list(NODES_PATH)))
        assert servers.NAMES.node_finalizer in node["metadata"]["finalizers"]
        assert servers.NAMES.machine_label in node["metadata"]["labels"]

        world.edit(count=4)
        await world.settle()
        assert world.sizes() == ["small"] * 4
        world.edit(count=3)
        await world.settle()
        assert world.sizes() == ["small"] * 3

        template = {"labels": {"app": "web"}, "size": "large", "vm": {"cores": 8}}
        world.edit(template=template)
        most = await world.settle(600)
        assert (world.sizes(), most) == (["large"] * 3, 4)
        status = (world.server.get(WEB) or {})["status"]
        assert (status["new"], status["available"], status["count"]) == (3, 3, 3)

        world.server.drop(WEB)
        await world.settle(300)

    assert [world.objects(one) for one in ("fleets", "servergroups", "servers")] == [[], [], []]
    assert world.driver.vms == {}


async def test_another_api_group_replaces_a_failed_node() -> None:
    world = Servers()
    world.fleet(1)
    async with world.running(*ALL):
        await world.settle()
        (first,) = (one["metadata"]["name"] for one in world.objects("servers"))
        world.heartbeat(first, Ready="False")
        await world.settle(900)

    (second,) = (one["metadata"]["name"] for one in world.objects("servers"))
    assert second != first
    assert world.sizes() == ["small"]


FOLDER = Path(machines.__file__).parent
DOMAIN = re.compile(r"[a-z0-9-]+\.[a-z]{2,}/[a-z]")


def test_neutral_layer_contains_no_name_of_an_api_group() -> None:
    promised = [
        text
        for name, text in vars(names).items()
        if name.isupper() and isinstance(text, str) and ("/" in text or "." in text)
    ]
    strays = [
        f"{path.name}: {found}"
        for path in FOLDER.rglob("*.py")
        for found in [*promised, *DOMAIN.findall(path.read_text()), "gardener", "sapcloud"]
        if found in path.read_text().replace("`ccm.gardener`", "")
    ]

    assert len(promised) > 20
    assert strays == []
