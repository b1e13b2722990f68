"""The service controller with the provider before the fake, without a connection: virtual time."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from ccm import cloud
from ccm.cloud import rest
from providers.hcloud import balancers, client, config, networks, robot
from providers.hcloud.testing import robot as fake_robot
from providers.hcloud.testing import server
from providers.hcloud.testing.state import ApiError, Call, Handler
from tests.hcloud.harness import HcloudHarness
from tests.support.services import World

PORTS = [{"port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30080}]


class InProcessHttp:
    """Stands for `rest.RestClient`: requests are calls of the fake's handlers."""

    get, send, pages = rest.RestClient.get, rest.RestClient.send, rest.RestClient.pages

    def __init__(self, fake: server.Service) -> None:
        self._cloud = fake.cloud
        self._rows = [
            (method, re.compile(path.replace("{id}", r"(?P<id>\d+)")), handler)
            for method, path, handler in server._rows()
        ]
        self.calls: Counter[str] = Counter()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        await asyncio.sleep(0)
        plain, _, inline = path.partition("?")
        given = parse_qs(inline) | {name: [text] for name, text in (query or {}).items()}
        body = msgspec.json.decode(data) if data else {}
        self.calls[method] += 1
        handler, number = self._find(method, plain)
        self._cloud.settle()
        try:
            _, answer = handler(self._cloud, Call(id=number, query=given, body=body))
        except ApiError as error:
            refusal = client.parse_refusal(msgspec.json.encode(error.body))
            kind: Any = client.CODES[error.code]
            text = f"{method} {plain}: {refusal.code}: {refusal.message}"
            is_brief = issubclass(kind, cloud.RetryAfter)
            raise (kind(text, seconds=1.0) if is_brief else kind(text)) from error
        return b"" if answer is None else msgspec.json.encode(answer)

    def _find(self, method: str, path: str) -> tuple[Handler, int]:
        """Return the handler of a request, and the ID in its path (0 = none)."""
        for each, pattern, handler in self._rows:
            found = pattern.fullmatch(path)
            if found and each == method:
                return handler, int(found.groupdict().get("id") or 0)
        raise AssertionError(f"the fake has no {method} {path}")


class InProcessRobot:
    """Stands for `rest.RestClient` of the Robot web service."""

    get = rest.RestClient.get

    def __init__(self, service: fake_robot.RobotService) -> None:
        self._service = service
        self.calls: Counter[str] = Counter()

    async def request(
        self, method: str, path: str, *, query: object = None, headers: object = None
    ) -> bytes:
        await asyncio.sleep(0)
        assert (method, query, headers) == ("GET", None, None)
        self.calls[path] += 1
        assert path == "/server", "load balancers need the listing only"
        return msgspec.json.encode([{"server": one} for one in self._service.servers.values()])


class HcloudWorld(World):
    """A cluster whose Services have load balancers in a fake of the Hetzner Cloud.

    With `ROBOT_ENABLED` there are dedicated servers too; with `ROBOT_USER` their listing is read.
    """

    def __init__(self, **environ: str) -> None:
        super().__init__()
        self.fake = HcloudHarness(server.Service(), "")
        self.http = InProcessHttp(self.fake.service)
        self.robots = fake_robot.RobotService()
        self.robot_http = InProcessRobot(self.robots)
        api = client.Client(self.http)  # type: ignore[arg-type]
        given = cloud.Context(environ={**self.fake.environ(), "HCLOUD_ENDPOINT": "", **environ})
        settings = given.settings(config.Config, environment=True)
        network = networks.ClusterNetwork(api, settings.network)

        def warn(about: cloud.ObjectReference, reason: str, message: str) -> None:
            self.event(about, "Warning", reason, message)

        listing = robot.RobotClient(self.robot_http, cache_s=300.0, wait_s=30.0)  # type: ignore[arg-type]
        dedicated = listing if settings.robot_user else None
        balancer = balancers.HcloudBalancers(api, settings, network, warn, dedicated)
        self.cloud = cloud.Cloud(name="hcloud", load_balancer=balancer)

    async def join(self) -> str:
        """Make a server and its node; return the name."""
        made = await self.fake.create()
        self.node(made.name, provider_id=made.provider_id)
        return made.name

    def join_robot(self) -> str:
        """Make a dedicated server and its node; return the name."""
        name = f"bm-{len(self.robots.servers)}"
        number = self.robots.add_server(name)
        addresses = [
            cloud.address("ExternalIP", self.robots.servers[number]["server_ip"]),
            cloud.address("InternalIP", f"10.0.1.{len(self.robots.servers)}"),
        ]
        self.node(name, provider_id=f"hrobot://{number}", addresses=addresses)
        return name

    @property
    def members(self) -> set[str]:
        """Names of the nodes that are targets of the load balancers that are there."""
        world = self.fake.service.cloud
        by_target: dict[Any, str] = {number: one["name"] for number, one in world.servers.items()}
        for node in self.nodes.store.list():
            by_target |= {entry.address: node.name for entry in node.addresses}
        return {
            by_target[target["ip"]["ip"] if "ip" in target else target["server"]["id"]]
            for held in world.load_balancers.values()
            for target in held["targets"]
        }

    def annotate(self, **annotations: str) -> None:
        """Set the annotations of the Service."""
        prefix = "load-balancer.hetzner.cloud/"
        named = {f"{prefix}{name.replace('_', '-')}": text for name, text in annotations.items()}
        self.meta(annotations=named)

    def warnings(self) -> set[tuple[str, str]]:
        """Reason and message of every different warning."""
        return {
            (reason, message)
            for (_, kind, reason), message in zip(self.events, self.messages, strict=True)
            if kind == "Warning"
        }
