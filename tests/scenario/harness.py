"""The whole daemon in its surroundings: API server, cloud, and faults between them.

`Environment` is what a scenario runs in. The daemon is a child process; between it and the
API server, and between it and the simulated cloud, stands a fault proxy each. The test
itself speaks to both without a proxy. Leaving the environment ends all children and proves what
holds in every scenario: whatever happened outside, no daemon met a surprise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml

from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.gardener import crds
from ccm.gardener.names import GROUP, VERSION
from ccm.machines.crds import Definition
from ccm.model import names
from ccm.model.times import format_time
from ccm.sandbox import kubelet, process, realserver
from ccm.testing.fake_api import LoggedCall
from providers.sim import server as sim
from providers.sim import state, world
from tests import forkserver, servers
from tests.faults import Exchange, FaultProxy, Match, Respond
from tests.manifests import account
from tests.waiting import DEADLINE_S

T = TypeVar("T")

NODES = "/api/v1/nodes"
EVENTS = "/api/v1/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
LEASE = f"{LEASES}/cloud-controller-manager"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MACHINE_API = f"/apis/{GROUP}/{VERSION}/namespaces/default"

STATUS_PATCH = Match(method="PATCH", path=f"^{NODES}/[^/]+/status$")
NODE_PATCH = Match(method="PATCH", path=f"^{NODES}/[^/]+$")
NODE_DELETE = Match(method="DELETE", path=f"^{NODES}")
NODE_WATCH = Match(path=f"^{NODES}$", stream=True)
NODE_LIST = Match(method="GET", path=f"^{NODES}$", stream=False)
LEASE_WRITE = Match(method="PUT|POST", path="/leases")
NODE_WRITE = Match(write=True, path=f"^{NODES}")

LEASE_S = 4.0
RETRY_S = 0.5
MONITOR_S = 0.5

FLAGS: Mapping[str, str] = {
    "cloud-provider": "sim",
    "controllers": f"{NODE.name},{NODE_LIFECYCLE.name}",
    "leader-elect-lease-duration": "60s",  # long enough not to be lost on a busy machine
    "leader-elect-renew-deadline": "40s",
    "leader-elect-retry-period": f"{RETRY_S}s",
    "node-monitor-period": f"{MONITOR_S}s",
    "node-status-update-frequency": "1s",
    "inventory-max-age": "400ms",
    "concurrent-node-syncs": "4",
    "logging-format": "json",
    "secure-port": "0",  # several daemons run at once
}
"""Default flags of every daemon."""

SHORT_LEASE: Mapping[str, str] = {
    "leader-elect-lease-duration": f"{LEASE_S}s",
    "leader-elect-renew-deadline": "3s",
}
"""For scenarios in which it is lost."""

WAIT_S = DEADLINE_S
"""How long a scenario waits for an event that should come at once."""

_POLL_S = 0.02


async def wait_for(
    condition: Callable[[], Awaitable[T]], what: str, *, within_s: float = WAIT_S
) -> T:
    """Ask until the answer is true; that answer.

    Raises:
        AssertionError: it took too long.
    """
    deadline = time.monotonic() + within_s
    pause_s = _POLL_S
    while True:
        if answer := await condition():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}; last answer: {answer!r}")
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.1, 5 * _POLL_S)  # each look costs the server too


class Daemon:
    """A daemon as a child process, and its log."""

    def __init__(self, name: str, child: process.Child) -> None:
        self.name = name
        self._child = child

    @property
    def exit_code(self) -> int | None:
        """Exit status; None while it runs."""
        return self._child.exit_code

    @property
    def output(self) -> str:
        """All it wrote."""
        return self._child.log.read_text(errors="replace")

    def lines(self, message: str = "", **facts: Any) -> list[dict[str, Any]]:
        """Log lines that contain this message and have these facts."""
        whole = [line for line in self.output.splitlines(keepends=True) if line.endswith("\n")]
        found = [json.loads(line) for line in whole if line.startswith("{")]
        return [
            line
            for line in found
            if message in line["msg"] and all(line.get(key) == facts[key] for key in facts)
        ]

    async def says(
        self, message: str, *, count: int = 1, within_s: float = WAIT_S, **facts: Any
    ) -> dict[str, Any]:
        """Wait for the log line; the `count`th."""

        async def said() -> list[dict[str, Any]]:
            found = self.lines(message, **facts)
            return found if len(found) >= count else []

        found = await wait_for(said, f"{self.name} says {message!r} {facts}", within_s=within_s)
        return found[count - 1]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self._child.pid, number)

    async def ended(self, *, within_s: float = WAIT_S) -> int:
        """Wait for its end; the exit status."""

        async def over() -> tuple[int, ...]:
            code = self.exit_code
            return () if code is None else (code,)

        (code,) = await wait_for(over, f"{self.name} ends", within_s=within_s)
        return code

    async def stop(self) -> int:
        """SIGTERM, and its exit status; a daemon that does not end is a failure."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> None:
        """SIGKILL."""
        await self._child.kill()

    def surprises(self) -> list[str]:
        """Lines that no fault justifies: tracebacks, warnings of Python, defects."""
        return [
            line
            for line in self.output.splitlines()
            if not line.startswith("{") or '"exception"' in line or "unexpectedly" in line
        ]


class Cluster:
    """Actions of administrators and kubelets at the API server, without a proxy."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def get(self, path: str) -> dict[str, Any] | None:
        """An object or a list; None when there is none."""
        async with self._session.get(path) as response:
            if response.status == 404:
                return None
            assert response.status == 200, await response.text()
            return dict(await response.json())

    async def items(self, path: str) -> list[dict[str, Any]]:
        """All objects of a resource."""
        found = await self.get(path)
        assert found is not None
        return list(found["items"] or ())

    async def patch(
        self, path: str, patch: Mapping[str, Any], *, kind: str = "strategic-merge"
    ) -> dict[str, Any]:
        """Patch an object; return its new state."""
        headers = {"Content-Type": f"application/{kind}-patch+json"}
        async with self._session.patch(path, data=json.dumps(patch), headers=headers) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json())

    async def register(
        self, name: str, *, ready: str = names.STATUS_FALSE, **spec: Any
    ) -> dict[str, Any]:
        """A kubelet registers its node.

        Args:
            name: of the node.
            ready: the status of its Ready condition.
            spec: more fields of the node's spec, such as `providerID`.
        """
        node = kubelet.new_node(name, _now())
        for condition in node["status"]["conditions"]:
            if condition["type"] == names.CONDITION_READY:
                condition["status"] = ready
        node["spec"].update(spec)
        return await self.create(NODES, node)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; return its state."""
        async with self._session.post(path, json=body) as response:
            assert response.status == 201, await response.text()
            return dict(await response.json())

    async def delete(self, path: str) -> None:
        """Delete an object."""
        async with self._session.delete(path) as response:
            assert response.status in (200, 202), await response.text()

    async def node(self, name: str) -> dict[str, Any] | None:
        """A node; None when there is none."""
        return await self.get(f"{NODES}/{name}")

    async def set_ready(self, name: str, status: str) -> None:
        """Set the Ready condition, as the kubelet or the node lifecycle controller does."""
        patch = {"status": {"conditions": [kubelet.ready_condition(status, _now())]}}
        await self.patch(f"{NODES}/{name}/status", patch)

    async def events(self, name: str, reason: str = "") -> list[dict[str, Any]]:
        """The events about an object."""
        return [
            event
            for event in await self.items(EVENTS)
            if event["involvedObject"]["name"] == name and reason in ("", event["reason"])
        ]

    async def lease(self) -> dict[str, Any]:
        """The spec of the daemons' Lease; empty when there is none."""
        found = await self.get(LEASE)
        return {} if found is None else dict(found["spec"])

    async def initialised(self, *nodes: str, within_s: float = WAIT_S) -> list[dict[str, Any]]:
        """Wait until all these nodes are complete; the nodes."""

        async def complete() -> list[dict[str, Any]]:
            found = [node for name in nodes if (node := await self.node(name)) is not None]
            return found if len(found) == len(nodes) and not any(map(missing, found)) else []

        try:
            return await wait_for(complete, f"initialised: {nodes}", within_s=within_s)
        except AssertionError as error:
            lacking = {node["metadata"]["name"]: missing(node) for node in await self.items(NODES)}
            raise AssertionError(f"{error}; still missing: {lacking}") from error

    async def gone(self, *nodes: str) -> None:
        """Wait until these nodes are no longer there."""

        async def missing() -> bool:
            return all([await self.node(name) is None for name in nodes])

        await wait_for(missing, f"gone: {nodes}")

    async def has_taint(self, name: str, key: str) -> bool:
        """Whether the node is there and has the taint."""
        node = await self.node(name)
        return node is not None and key in taints(node)


class Environment:
    """An API server, a simulated cloud, and the daemons of one scenario."""

    def __init__(
        self,
        server: servers.ApiServer,
        folder: Path,
        cluster: Cluster,
        service: sim.Service,
        cloud_proxy: FaultProxy,
        exits: contextlib.AsyncExitStack,
        *,
        token: str,
    ) -> None:
        self.server = server
        self.token = token
        """The daemons' bearer token at the API server."""
        self.folder = folder
        self.cluster = cluster
        self.cloud = service
        """The simulated cloud: its world, its faults, its log of calls."""
        self.cloud_proxy = cloud_proxy
        """Between all daemons and the cloud."""
        self.daemons: list[Daemon] = []
        self.proxies: list[FaultProxy] = []
        """Between each daemon and the API server."""
        self.cloud_config = folder / "cloud.yaml"
        self.configure_cloud()
        self._exits = exits
        self._numbers = itertools.count()

    @property
    def proxy(self) -> FaultProxy:
        """Between the first daemon and the API server."""
        return self.proxies[0]

    def configure_cloud(self, **settings: str) -> None:
        """Write the cloud config, with the given settings changed."""
        config = {"url": self.cloud_proxy.url, "token": self.cloud.token, "timeout": "2s"}
        self.cloud_config.write_text(yaml.safe_dump({**config, **settings}))

    async def new_proxy(self) -> FaultProxy:
        """A fault proxy of its own to the API server, for the next daemon."""
        proxy = FaultProxy(self.server.url, ca_file=self.server.ca_file)
        await self._exits.enter_async_context(proxy)
        self.proxies.append(proxy)
        return proxy

    async def start(
        self,
        *,
        flags: Mapping[str, str] | None = None,
        kubeconfig: Path | None = None,
        env: Mapping[str, str] | None = None,
        proxy: FaultProxy | None = None,
        program: Path | None = None,
        module: str = "ccm",
    ) -> Daemon:
        """Start one more daemon, behind a proxy of its own unless given one.

        It is forked, and runs `module`; `program` is the command to execute instead.
        """
        name = f"daemon-{next(self._numbers)}"
        if kubeconfig is None:
            proxy = proxy or await self.new_proxy()
            kubeconfig = self.folder / f"{name}.kubeconfig"
            realserver.write_kubeconfig(kubeconfig, url=proxy.url, token=self.token)
        files = {"kubeconfig": str(kubeconfig), "cloud-config": str(self.cloud_config)}
        argv = command_line({**FLAGS, **files, **(flags or {})})
        env = {**os.environ, "PYTHONWARNINGS": "always", **(env or {})}
        log = self.folder / f"{name}.log"
        child = (
            forkserver.Child([module, *argv], log=log, env=env)
            if program is None
            else process.Child([str(program), *argv], log=log, env=env)
        )
        daemon = Daemon(name, child)
        self.daemons.append(daemon)
        return daemon

    async def start_leading(self, **how: Any) -> Daemon:
        """Start a daemon and wait until its controllers work."""
        daemon = await self.start(**how)
        await daemon.says("became leader")
        return daemon

    def machine(self, name: str, **facts: Any) -> world.Instance:
        """A machine that runs in the cloud."""
        labels = facts.pop("labels", {"rack": "r7"})
        given = world.Instance(name=name, labels=labels, **facts)
        return self.cloud.world.put(given)

    async def node(self, name: str, **spec: Any) -> world.Instance:
        """A machine and its freshly registered node; the machine."""
        machine = self.machine(name)
        await self.cluster.register(name, **spec)
        return machine

    def writes(self, match: Match) -> list[Exchange]:
        """Matching requests of all daemons, in order of arrival."""
        found = [exchange for proxy in self.proxies for exchange in proxy.requests(match)]
        return sorted(found, key=lambda exchange: exchange.started_s)

    def calls(self, operation: str = "") -> list[LoggedCall]:
        """Calls that reached the cloud."""
        return [one for one in self.cloud.calls.entries if operation in ("", one.operation)]

    async def strike(self) -> None:
        """End all children, and print their logs for failures."""
        for daemon in self.daemons:
            await daemon.kill()
            print(f"--- {daemon.name}, exit code {daemon.exit_code} ---\n{daemon.output}")
        for number, proxy in enumerate(self.proxies):
            print(f"--- requests on proxy {number} ---", *proxy.log, sep="\n")

    def forbidden(self) -> list[str]:
        """What the API server itself refused for want of rights.

        A starting one refuses everybody until it has read its roles; what it granted to the
        same daemons before or afterwards is therefore left out.
        """
        answers: dict[bool, set[str]] = {True: set(), False: set()}
        for one in (each for proxy in self.proxies for each in proxy.log):
            if one.upstream_status is not None:
                kind = f"{one.method} {one.path}{' (stream)' if one.is_stream else ''}"
                answers[one.upstream_status == 403].add(kind)
        return sorted(answers[True] - answers[False])


@contextlib.asynccontextmanager
async def open_environment(server: servers.ApiServer, folder: Path) -> AsyncIterator[Environment]:
    """An environment with a running API server; nothing is left of it afterwards."""
    service = sim.Service(settings=state.Settings(transition_s=0.0), seed=1)
    async with contextlib.AsyncExitStack() as exits:
        session = await exits.enter_async_context(servers.connect(server))
        url = await exits.enter_async_context(sim.serve(service))
        cloud_proxy = await exits.enter_async_context(FaultProxy(url))
        real = isinstance(server, realserver.RealServer)
        token = await account.token(session) if real else server.token
        cluster = Cluster(session)
        env = Environment(server, folder, cluster, service, cloud_proxy, exits, token=token)
        try:
            yield env
            assert [line for daemon in env.daemons for line in daemon.surprises()] == []
            assert env.forbidden() == []
        finally:
            await env.strike()


def command_line(flags: Mapping[str, str]) -> list[str]:
    """Flags as arguments."""
    return [f"--{name}={value}" for name, value in flags.items()]


def _now() -> str:
    return format_time(datetime.now(UTC))


def refusal(status: int, *, reason: str = "", **headers: str) -> Respond:
    """A Status in the API server's place; an underscore in a header's name is a dash."""
    body = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": status,
        "reason": reason,
        "message": f"refused by the test with {status}",
    }
    return Respond(
        status, body, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


# --- objects, files and checks --------------------------------------------------------------------


def lease(name: str, **spec: Any) -> dict[str, Any]:
    """A Lease beside the daemons' own."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": spec,
    }


def write_kubeconfig(
    path: Path, url: str, user: Mapping[str, str], *, ca_file: Path | None = None
) -> None:
    """A kubeconfig whose user has these credentials."""
    realserver.write_kubeconfig(path, url=url, token="", ca_file=ca_file)
    document = json.loads(path.read_text())
    document["users"][0]["user"] = user
    path.write_text(json.dumps(document))


def missing(node: Mapping[str, Any]) -> list[str]:
    """Return properties of an initialised node that this one lacks."""
    meta, spec = node["metadata"], node["spec"]
    wanted = (names.LABEL_INSTANCE_TYPE, names.LABEL_ZONE, names.LABEL_REGION)
    lacking = [key for key in wanted if key not in meta.get("labels", {})]
    if not spec.get("providerID"):
        lacking.append("provider ID")
    if names.ADDRESS_INTERNAL_IP not in addresses(node):
        lacking.append("addresses")
    if names.TAINT_UNINITIALIZED in taints(node):
        lacking.append("lifted taint")
    return lacking


def taints(node: Mapping[str, Any]) -> list[str]:
    """The keys of a node's taints."""
    return [taint["key"] for taint in node["spec"].get("taints") or ()]


def conditions(thing: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The conditions of an object by type."""
    return {each["type"]: each for each in thing.get("status", {}).get("conditions") or ()}


def has_network(node: Mapping[str, Any]) -> bool:
    """Return whether the condition of a node confirms its routes."""
    told = conditions(node).get(names.CONDITION_NETWORK_UNAVAILABLE, {})
    return bool(told.get("status") == names.STATUS_FALSE)


def addresses(node: Mapping[str, Any]) -> dict[str, str]:
    """A node's addresses by type."""
    found = node.get("status", {}).get("addresses", ())
    return {entry["type"]: entry["address"] for entry in found}


async def define(
    session: aiohttp.ClientSession,
    definitions: Sequence[Definition] = crds.DEFINITIONS,
    api: str = MACHINE_API,
) -> None:
    """Make the kinds of machines known, and wait until they are served; `servers.wipe` removes
    them."""
    for one in definitions:
        async with session.post(DEFINITIONS, json=one.to_manifest()) as response:
            assert response.status in (201, 409), await response.text()
    for one in definitions:

        async def served(path: str = f"{api}/{one.kind.plural}") -> bool:
            """A moment after a definition was made its kind is not there yet, or not ready."""
            async with session.get(path) as response:
                return response.status == 200

        await wait_for(served, f"{one.kind.plural} are served")


def install(folder: Path, name: str, source: str) -> dict[str, str]:
    """Put a provider of somebody else's where a daemon finds it; the environment which that needs.

    Args:
        folder: of the test.
        name: of the provider.
        source: its module; `open_cloud` opens it.
    """
    site = folder / "site"
    info = site / f"ccm_{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"ccm_{name}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ccm-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ccm.providers]\n{name} = ccm_{name}:open_cloud\n")
    return {"PYTHONPATH": str(site)}


# The watchdog reads the frames of threads that run on meanwhile: now and then it reads one that
# is just gone, and falls. The process has ended then as well, which is what it is for.
CUT_SHORT = {1, -signal.SIGSEGV}


async def cut_short(daemon: Daemon) -> str:
    """Wait until the watchdog has ended a hanging daemon; its report is no surprise."""
    assert await daemon.ended() in CUT_SHORT
    said, mark, report = daemon.output.partition("Timeout (")
    assert mark
    assert all(line.startswith("{") for line in said.splitlines())
    daemon.surprises = list  # type: ignore[method-assign]
    return report
