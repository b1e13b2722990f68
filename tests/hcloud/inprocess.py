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
from providers.hcloud import balancers, client, config, networks
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
            refusal = client._refusal(msgspec.json.encode(error.body))
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


class HcloudWorld(World):
    """A cluster whose Services have load balancers in a fake of the Hetzner Cloud."""

    def __init__(self, **environ: str) -> None:
        super().__init__()
        self.fake = HcloudHarness(server.Service(), "")
        self.http = InProcessHttp(self.fake.service)
        api = client.Client(self.http)  # type: ignore[arg-type]
        given = cloud.Context(environ={**self.fake.environ(), "HCLOUD_ENDPOINT": "", **environ})
        settings = given.settings(config.Config, environment=True)
        network = networks.ClusterNetwork(api, settings.network)

        def warn(about: cloud.ObjectReference, reason: str, message: str) -> None:
            self.event(about, "Warning", reason, message)

        balancer = balancers.HcloudBalancers(api, settings, network, warn)
        self.cloud = cloud.Cloud(name="hcloud", load_balancer=balancer)

    async def join(self) -> str:
        """Make a server and its node; return the name."""
        made = await self.fake.create()
        self.node(made.name, provider_id=made.provider_id)
        return made.name

    @property
    def members(self) -> set[str]:
        """Names of the nodes that are targets of the load balancers that are there."""
        world = self.fake.service.cloud
        return {
            world.servers[target["server"]["id"]]["name"]
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
