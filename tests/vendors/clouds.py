"""Daemons before the fakes of the vendors' clouds: with what they start, and what a fake holds."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.runtime.journal import LOAD_BALANCER, SERVER
from ccm.testing.fake_api import Fault
from providers.hcloud import names as hcloud_names
from providers.hcloud import service_annotations as ann
from providers.hcloud.machines import PLACEMENT_GROUP, SSH_KEY, VOLUME
from providers.hcloud.testing import __main__ as hcloud_program
from providers.hcloud.testing import extras
from providers.hcloud.testing import server as hcloud_server
from providers.hcloud.testing.state import Call
from providers.openstack import balancer_specs, machines
from providers.openstack.testing import __main__ as openstack_program
from providers.openstack.testing import identity
from providers.openstack.testing import server as openstack_server
from providers.openstack.testing import state as openstack_state
from providers.sim import client as sim_client
from providers.sim import server as sim_server
from providers.sim import state, world, world_balancers
from providers.stackit import marks
from providers.stackit.testing import __main__ as stackit_program
from providers.stackit.testing import server as stackit_server
from providers.stackit.testing.state import ApiError
from tests import servers
from tests.faults import FaultProxy
from tests.scenario import harness
from tests.scenario.harness import Environment
from tests.scenario.machines import CONTROLLERS, SIM, Pool, sim_secret
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
OTHERS = "others"
"""Name of another cluster, whose resources are in the same project."""

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
        resources: resource in the journal -> last word of the path that creates it, and its table.
        of_services: those of them that belong to a Service; all others belong to a Machine.
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
    resources: Mapping[str, tuple[str, str]]
    of_services: Collection[str] = (LOAD_BALANCER,)

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

    def table(self, name: str) -> Mapping[Any, Any]:
        """The resources of a table, by ID."""
        return dict(getattr(self.fake.cloud, name))

    def ids(self) -> set[tuple[str, Any]]:
        """Table and ID of each resource in the cloud."""
        return {(name, key) for name in self.tables for key in self.table(name)}

    def held(self) -> dict[str, int]:
        """How many things of each kind the cloud holds."""
        return {name: len(self.table(name)) for name in self.tables}

    def delay_removals(self, seconds: float) -> None:
        """Deletions take so long from now on, where the cloud confirms them later."""
        raise NotImplementedError

    def add_foreign(self) -> None:
        """Add a copy of each resource that has the marker of another cluster."""
        raise NotImplementedError

    def secrets(self) -> Sequence[str]:
        raise NotImplementedError


class Sim(Vendor):
    """The simulated cloud."""

    name = "sim"
    server = sim_server
    tables = ("instances", "balancers")
    resources: Mapping[str, tuple[str, str]] = {
        LOAD_BALANCER: ("balancers", "balancers"),
        SERVER: ("instances", "instances"),
    }

    def __init__(self) -> None:
        super().__init__(sim_server.Service(settings=state.Settings(transition_s=0.0), seed=1))

    def configure(self, env: Environment, url: str) -> None:
        config = {"url": url, "token": self.fake.token, "timeout": "2s"}
        env.cloud_config.write_text(yaml.safe_dump(config))

    def pool(self, **spec: Any) -> Pool:
        def whole(nodes: int, services: int) -> bool:
            return self.held() == {"instances": nodes, "balancers": services}

        return Pool(
            provider="sim",
            spec={**SIM, **spec},
            secret=sim_secret(self.fake.token),
            whole=whole,
            empty=lambda: not any(self.held().values()),
        )

    def table(self, name: str) -> Mapping[Any, Any]:
        worlds = self.fake.worlds
        items = worlds.balancers.list() if name == "balancers" else worlds.instances.snapshot()
        return {one.id: one for one in items}

    def delay_removals(self, seconds: float) -> None:
        settings = msgspec.structs.replace(self.fake.settings, removal_s=seconds)
        self.fake.change_settings(settings)

    def add_foreign(self) -> None:
        worlds = self.fake.worlds
        for one in worlds.instances.snapshot():
            labels = {**one.labels, sim_client.MARK_CLUSTER: OTHERS}
            worlds.instances.put(world.Instance(name=f"{one.name}-{OTHERS}", labels=labels))
        for one in worlds.balancers.list():
            name = f"{one.name}-{OTHERS}"
            order = world_balancers.NewBalancer(name=name, cluster=OTHERS, listeners=one.listeners)
            worlds.balancers.create(order)

    def secrets(self) -> Sequence[str]:
        return [self.fake.token]


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
    resources: Mapping[str, tuple[str, str]] = {
        LOAD_BALANCER: ("load_balancers", "load_balancers"),
        SERVER: ("servers", "servers"),
        SSH_KEY: ("ssh_keys", "ssh_keys"),
        PLACEMENT_GROUP: ("placement_groups", "placement_groups"),
        VOLUME: ("volumes", "volumes"),
    }

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

    def delay_removals(self, seconds: float) -> None:
        settings = self.fake.settings
        settings.removal_s = settings.action_s = seconds
        settings.deletion_actions = seconds > 0

    def add_foreign(self) -> None:
        cloud = self.fake.cloud
        labels = {hcloud_names.NAMESPACE: "default", hcloud_names.POOL: "small"}
        order = {"name": f"workers-{OTHERS}", "type": "spread", "labels": labels}
        extras.create_placement_group(cloud, Call(body=order))
        for _, name in self.resources.values():
            # Load balancers are found by the UID of the Service alone.
            uid = {hcloud_names.SERVICE_UID: OTHERS} if name == "load_balancers" else {}
            for one in self.table(name).values():
                changes = {
                    "id": cloud.new_id(),
                    "name": f"{one['name']}-{OTHERS}",
                    "labels": {**one["labels"], hcloud_names.CLUSTER: OTHERS, **uid},
                }
                getattr(cloud, name)[changes["id"]] = {**deepcopy(one), **changes}

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
    resources: Mapping[str, tuple[str, str]] = {
        LOAD_BALANCER: ("load-balancers", "balancers"),
        SERVER: ("servers", "servers"),
    }
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

    def delay_removals(self, seconds: float) -> None:
        settings = self.fake.settings
        settings.removal_s = settings.balancer_removal_s = seconds

    def add_foreign(self) -> None:
        cloud = self.fake.cloud
        for number, server in self.table("servers").items():
            labels = {**server["labels"], marks.CLUSTER: OTHERS}
            name = f"{server['name']}-{OTHERS}"
            copy = {**deepcopy(server), "id": cloud.new_id(), "name": name, "labels": labels}
            cloud.servers[copy["id"]] = copy
            cloud.places[copy["id"]] = cloud.places[number]
        for name, balancer in self.table("balancers").items():
            labels = {**balancer["labels"], marks.BALANCER_CLUSTER: OTHERS}
            copy = {**deepcopy(balancer), "name": f"{name}-{OTHERS}", "labels": labels}
            cloud.balancers[copy["name"]] = copy

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


class OpenStack(Vendor):
    """OpenStack, whose nodes have routes, and whose Services have more than a load balancer."""

    name = "openstack"
    server = openstack_server
    kinds = Hcloud.kinds
    flags = Hcloud.flags
    node = Hcloud.node
    gossips = (
        "POST /compute/servers",
        "POST /load-balancer/v2/lbaas/loadbalancers",
        "PUT /network/v2.0/routers/{id}/add_extraroutes",
    )
    reads = "^/identity"
    tables = ("servers", "ports", "volumes", "balancers", "vips", "floating_ips", "security_groups")
    resources: Mapping[str, tuple[str, str]] = {
        LOAD_BALANCER: ("loadbalancers", "balancers"),
        "floatingip": ("floatingips", "floating_ips"),
        "securitygroup": ("security-groups", "security_groups"),
        SERVER: ("servers", "servers"),
        machines.PORT: ("ports", "ports"),
    }
    of_services = (LOAD_BALANCER, "floatingip", "securitygroup")

    def __init__(self, *nodes: str, fake: Any = None) -> None:
        super().__init__(fake or openstack_server.Service())
        openstack_program.populate(self.fake, nodes)
        (self.router,) = self.fake.cloud.routers.values()

    def configure(self, env: Environment, url: str) -> None:
        self.fake.url = url
        env.cloud_config.write_text(openstack_program.config(self.fake, url))

    def pool(self, **spec: Any) -> Pool:
        """With a port that Nova cannot create, and IDs: no calls to look for names."""
        world = self.fake.cloud

        def whole(nodes: int, services: int) -> bool:
            members = [len(one) for one in world.members.values()]
            return members == [nodes] * services and len(self.router["routes"]) == nodes

        given = {
            "region": openstack_state.REGION,
            "flavorName": openstack_program.FLAVOR,
            "imageID": next(iter(world.images)),
            "networkID": next(iter(world.networks)),
            "podNetworkCIDRs": ["10.96.0.0/12"],
        }
        secret = {**openstack_program.secret(self.fake, self.fake.url), "userData": "#!/bin/sh"}
        return Pool(
            provider="openstack",
            spec={**given, **spec},
            secret={key: text.encode() for key, text in secret.items()},
            whole=whole,
            empty=lambda: not any(self.held().values()),
            ranges="100.64.{}.0/24",
        )

    def table(self, name: str) -> Mapping[Any, Any]:
        if name not in ("ports", "vips"):
            return super().table(name)
        wanted = {"ports": ("", "compute:az1"), "vips": ("Octavia",)}[name]
        ports = self.fake.cloud.ports.items()
        return {key: port for key, port in ports if port["device_owner"] in wanted}

    def held(self) -> dict[str, int]:
        return {**super().held(), "routes": len(self.router["routes"])}

    def delay_removals(self, seconds: float) -> None:
        settings = self.fake.settings
        settings.removal_s = settings.balancer_removal_s = seconds

    def add_foreign(self) -> None:
        cloud = self.fake.cloud

        def add(table: str, held: Mapping[str, Any], **changes: Any) -> None:
            number = cloud.new_id()
            getattr(cloud, table)[number] = {**deepcopy(held), **changes, "id": number}

        for server in self.table("servers").values():
            metadata = {**server["metadata"], machines.MARKS.cluster: OTHERS}
            add("servers", server, name=f"{server['name']}-{OTHERS}", metadata=metadata)
        for port in self.table("ports").values():
            text = port["description"].replace(FLAGS["cluster-name"], OTHERS)
            add("ports", port, device_id="", device_owner="", description=text)
        for balancer in self.table("balancers").values():
            _, *key = balancer_specs.parse_name(balancer["name"]) or ("", "", "")
            name = f"{balancer_specs.NAME_PREFIX}{OTHERS}_{'_'.join(key)}"
            add("balancers", balancer, name=name, tags=[name], description="")
        for ip in self.table("floating_ips").values():
            add("floating_ips", ip, port_id=None, floating_ip_address="203.0.113.250")
        for group in self.table("security_groups").values():
            add("security_groups", group, name=f"lb-sg-{OTHERS}", description="")

    def secrets(self) -> Sequence[str]:
        return [identity.PASSWORD, *self.fake.identity._tokens]

    @classmethod
    def gossip(cls, *nodes: str) -> OpenStack:
        """One that quotes password and tokens in refusals."""
        made = cls(*nodes, fake=TellTale())
        for operation in cls.gossips:
            made.fake.script.add(Fault(operation=operation, code="forbidden"))
        return made


class TellTale(openstack_server.Service):
    """Quotes its secrets in refusals."""

    def refusal(self, fault: Fault) -> openstack_state.ApiError:
        secrets = " ".join([self.identity.password, *self.identity._tokens])
        return super().refusal(
            msgspec.structs.replace(fault, message=f"{QUOTED}: Bearer {secrets}")
        )
