"""Daemons before the fakes of the vendors' clouds: with what they start, and what a fake holds."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.testing.fake_api import Fault
from providers.hcloud import service_annotations as ann
from providers.hcloud.testing import __main__ as hcloud_program
from providers.hcloud.testing import server as hcloud_server
from providers.stackit.testing import __main__ as stackit_program
from providers.stackit.testing import server as stackit_server
from providers.stackit.testing.state import ApiError
from tests import servers
from tests.faults import FaultProxy
from tests.scenario import harness
from tests.scenario.harness import Environment
from tests.scenario.machines import CONTROLLERS, Pool
from tests.stackit.balancing import METRICS

FLAGS: Mapping[str, str] = {
    "cluster-name": "two-hundred",
    "kube-api-qps": "-1",
    # As they are by default, for the calls that they cost.
    "node-monitor-period": "5s",
    "node-status-update-frequency": "5m",
    "inventory-max-age": "30s",
    "concurrent-service-syncs": "5",
    "concurrent-node-syncs": "10",
}
QUOTED = "may not do that today"
"""With these words a fake refuses what it quotes secrets for."""


class Vendor:
    """A fake, and what a daemon before it needs.

    Attributes:
        kinds: its controllers, without those of machines.
        node: what the spec of the first node has.
        gossips: operations that the fake made by `gossip` refuses.
        reads: pattern of paths that change nothing, whatever the method.
        tables: what of the fake costs somebody money.
    """

    name: str
    server: Any
    kinds: Sequence[str] = (NODE.name, NODE_LIFECYCLE.name, SERVICE.name)
    flags: Mapping[str, str] = {}
    node: Mapping[str, Any] = {}
    prefix = ""
    gossips: Sequence[str]
    reads = "$^"
    tables: Sequence[str]

    def __init__(self, fake: Any) -> None:
        self.fake = fake
        self.how: dict[str, Any] = {}
        """With what a daemon is started, once `opened`."""

    @property
    def all_flags(self) -> Mapping[str, str]:
        kinds = ",".join((*self.kinds, *CONTROLLERS))
        return {**FLAGS, "cloud-provider": self.name, "controllers": kinds, **self.flags}

    @contextlib.asynccontextmanager
    async def opened(
        self, api_server: servers.ApiServer, folder: Path
    ) -> AsyncIterator[tuple[Environment, FaultProxy]]:
        """An environment with this cloud, and a proxy between its daemons and the cloud."""
        async with (
            self.server.serve(self.fake) as url,
            harness.open_environment(api_server, folder) as env,
            FaultProxy(url.removesuffix(self.prefix)) as proxy,
        ):
            self.how = {"flags": self.all_flags}
            self.configure(env, f"{proxy.url}{self.prefix}")
            yield env, proxy

    def configure(self, env: Environment, url: str) -> None:
        """Write the cloud config, and complete `how`."""
        raise NotImplementedError

    def pool(self, **spec: Any) -> Pool:
        """Machines as the guide has them."""
        raise NotImplementedError

    def held(self) -> dict[str, int]:
        """How many things of each kind the cloud holds."""
        return {name: len(getattr(self.fake.cloud, name)) for name in self.tables}

    def secrets(self) -> Sequence[str]:
        raise NotImplementedError


class Hcloud(Vendor):
    """The Hetzner Cloud, whose nodes have routes."""

    name = "hcloud"
    server = hcloud_server
    kinds = (NODE.name, NODE_LIFECYCLE.name, ROUTE.name, SERVICE.name)
    flags: Mapping[str, str] = {
        "cluster-cidr": "100.64.0.0/10",
        "route-reconciliation-min-interval": "200ms",
    }
    node: Mapping[str, Any] = {"podCIDR": "100.64.0.0/24", "podCIDRs": ["100.64.0.0/24"]}
    prefix = hcloud_server.PREFIX
    gossips = ("POST /servers", "POST /load_balancers", "POST /networks/{id}/actions/add_route")
    tables = (
        *("servers", "ssh_keys", "volumes", "placement_groups", "load_balancers"),
        "certificates",
    )

    def __init__(self, *nodes: str) -> None:
        super().__init__(hcloud_server.Service())
        hcloud_program.populate(self.fake, nodes)
        (self.network,) = self.fake.cloud.networks.values()

    def configure(self, env: Environment, url: str) -> None:
        env.cloud_config.write_text(hcloud_program.config(url, self.fake.token))

    def pool(self, *, annotations: Mapping[str, str] = {}, **spec: Any) -> Pool:
        """In the network of the fake, which is named by its ID: no call to look for it."""
        world = self.fake.cloud

        def whole(nodes: int, services: int) -> bool:
            members = [len(one["targets"]) for one in world.load_balancers.values()]
            return members == [nodes] * services and len(self.network["routes"]) == nodes

        place = {"location": "fsn1", "networks": [self.network["id"]]}
        return Pool(
            provider="hcloud",
            spec={"serverType": "cx23", **place, **spec},
            secret={"token": self.fake.token.encode(), "userData": b"#!/bin/sh"},
            whole=whole,
            empty=lambda: not any(self.held().values()),
            ranges="100.64.{}.0/24",
            annotations={ann.TYPE.name: "lb31", **annotations},
        )

    def held(self) -> dict[str, int]:
        return {**super().held(), "routes": len(self.network["routes"])}

    def secrets(self) -> Sequence[str]:
        return [self.fake.token]

    @classmethod
    def gossip(cls, *nodes: str) -> Hcloud:
        """One that quotes the token in refusals."""
        made = cls(*nodes)
        for operation in cls.gossips:
            message = f"Bearer {made.fake.token} {QUOTED}"
            made.fake.script.add(Fault(operation=operation, code="forbidden", message=message))
        return made


class Stackit(Vendor):
    """STACKIT."""

    name = "stackit"
    server = stackit_server
    gossips = ("POST *servers", "POST *load-balancers")
    reads = "^/token"
    tables = ("servers", "nics", "balancers")
    environ: Mapping[str, str] = {}

    def __init__(self, fake: Any = None) -> None:
        super().__init__(fake or stackit_server.Service())

    def configure(self, env: Environment, url: str) -> None:
        env.cloud_config.write_text(stackit_program.config(url))
        key = env.folder / "key.json"
        key.write_bytes(self.fake.account.key)
        self.how["env"] = {**stackit_program.variables(url, str(key)), **self.environ}

    def pool(self, **spec: Any) -> Pool:
        world = self.fake.cloud

        def whole(nodes: int, services: int) -> bool:
            members = [len(one["targetPools"][0]["targets"]) for one in world.balancers.values()]
            return members == [nodes] * services

        given = {
            "region": stackit_server.REGION,
            "machineType": "c2i.2",
            "imageId": stackit_server.IMAGE,
            "networking": {"networkId": stackit_server.NETWORK},
            "allowedAddresses": ["10.96.0.0/12"],
        }
        secret = {
            "project-id": stackit_server.PROJECT.encode(),
            "serviceaccount.json": self.fake.account.key,
            "userData": b"#!/bin/sh",
        }
        return Pool(
            provider="stackit",
            spec={**given, **spec},
            secret=secret,
            whole=whole,
            empty=lambda: not (world.servers or world.balancers),
        )

    def secrets(self) -> Sequence[str]:
        password = [text for name, text in self.environ.items() if "PASSWORD" in name]
        return [*self.fake.account._tokens, *lines_of(self.fake), *password]

    @classmethod
    def gossip(cls, *nodes: str) -> Stackit:
        """One that quotes key, tokens and the password for metrics in refusals."""
        made = cls(Gossip())
        made.environ = METRICS
        stackit_program.populate(made.fake, nodes)
        for operation in cls.gossips:
            made.fake.script.add(Fault(operation=operation, code="forbidden"))
        return made


def lines_of(fake: stackit_server.Service) -> Sequence[str]:
    """Lines of the key's private half."""
    pem: str = msgspec.json.decode(fake.account.key)["credentials"]["privateKey"]
    return pem.splitlines()[1:-1]


class Gossip(stackit_server.Service):
    """Quotes its secrets in refusals, the key as its file has it and in one line."""

    def refusal(self, fault: Fault) -> ApiError:
        said = [*self.account._tokens, METRICS["STACKIT_REMOTEWRITE_PASSWORD"]]
        said += [self.account.key.decode(), "".join(lines_of(self))]
        return super().refusal(
            msgspec.structs.replace(fault, message=f"{QUOTED}: Bearer {' '.join(said)}")
        )
