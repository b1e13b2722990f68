"""The processes of a sandbox: API server, cloud, daemon.

Each is a context: it yields when the process is ready and ends the process when it is
left. Nested in that order, they end in the reverse one: the daemon first, so that it
gives up its lease and closes its connections, the servers after it. All files lie in
the one folder that the caller names.

Processes start with this interpreter, apart from the user's folder and environment, so that
no file there is taken for a module. Secrets reach them by files: everybody on the machine can
read their command lines.

The cloud is the simulated one, the fake of a provider's cloud, or the user's own. A provider with a
fake has a program beside it, `<its package>.testing`. With `--config FILE` that writes a cloud
config, with `--machine-class FILE` a MachineClass and its Secret; its other arguments are names of
instances that are there already. When it serves it prints one line of JSON: `url` or `endpoint`,
and in `environment` the variables that the daemon needs, if any.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ccm.app.options import FLAGS
from ccm.base import files, interpreter, parsing
from ccm.cloud import registry
from ccm.cloud import settings as cloud_settings
from ccm.sandbox import Provider, Settings, cloud, kubelet, machines, process, realserver

API_QPS = 10_000
API_BURST = 20_000
"""The daemon's API limits in a sandbox: its defaults make 500 nodes wait for 50 s."""

NODE_SYNCS = 64
STATUS_UPDATES = 16
"""Nodes the daemon works on at once in a sandbox."""

SERVICE_SYNCS = 16
"""Services the daemon works on at once in a sandbox."""

MACHINE_CONTROLLERS = (
    "*,machine,machineclass,machinesafety,machineset,machinedeployment,machineovershoot"
)
"""What `--controllers` says where there are Machines; they are off by themselves."""

START_DEADLINE_S = 60.0
"""How long a process of ours may take to become ready."""

GRACE_S = 10.0
"""How long a process may take to end by itself."""

_POLL_S = 0.05
_WARNINGS = frozenset({"warning", "error", "critical"})


class StartError(Exception):
    """A process did not start, or ended before its time; the text holds its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """A running API server.

    Attributes:
        url: base URL, without a slash at the end.
        token: the administrator's.
        ca_file: certificates that prove it; None: plain http.
        kubeconfig: a file for kubectl and for any daemon.
        kind: its description, for people.
        is_running: whether it lives.
        log: where it writes.
    """

    url: str
    token: str
    ca_file: Path | None
    kubeconfig: Path
    kind: str
    is_running: Callable[[], bool]
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """The cloud of a sandbox.

    Attributes:
        provider: the daemon's, with its cloud config and its classes of machines.
        kind: its description, for people.
        token: the administrator's of the simulated cloud.
        admin: calls behind the scenes; None: it is not the simulated cloud.
        variables: of the environment, which clients of this cloud need.
        environment: the daemon's; None: ours.
        child: its process; None: it is the user's own.
    """

    provider: Provider
    kind: str = ""
    token: str = ""
    admin: cloud.Admin | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] | None = None
    child: process.Child | None = None


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line, as far as a sandbox cares; the figures stand in the last one."""

    msg: str = ""
    level: str = "info"
    err: str = ""
    detail: str = ""
    node: str = ""
    node_writes: int | None = None
    service_writes: int = 0
    cloud_calls: int | None = None

    @property
    def is_warning(self) -> bool:
        """Whether it is of level warning or above."""
        return self.level in _WARNINGS

    @property
    def writes(self) -> int | None:
        """Writes about nodes and Services; None in all lines but the last."""
        return None if self.node_writes is None else self.node_writes + self.service_writes

    def __str__(self) -> str:
        return " ".join(filter(None, (self.msg, self.node, self.detail, self.err)))


_DECODER = msgspec.json.Decoder(LogEntry)


class DaemonLog:
    """The log of the daemon, which is followed.

    Attributes:
        last: the line with which the daemon ended; None while it runs, or if it crashed.
    """

    def __init__(self, path: Path) -> None:
        self.last: LogEntry | None = None
        self._path = path
        self._read = 0

    def news(self) -> Sequence[LogEntry]:
        """Return the entries since the last call; lines that are no JSON are left out."""
        with self._path.open("rb") as source:
            source.seek(self._read)
            whole, newline, _ = source.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        entries = list[LogEntry]()
        for line in whole.splitlines():
            # A traceback, or what a library printed, is no entry.
            with contextlib.suppress(msgspec.MsgspecError):
                entries.append(_DECODER.decode(line))
        self.last = next((entry for entry in entries if entry.msg == "stopped"), self.last)
        return entries


@contextlib.asynccontextmanager
async def open_api_server(folder: Path, *, assets: Path | None) -> AsyncIterator[ApiServer]:
    """Start an API server: the real one if `assets` has its programs.

    Raises:
        StartError: it did not become ready.
    """
    if assets is not None and not realserver.missing_binaries(assets):
        try:
            async with realserver.open_real_apiserver(assets, folder) as server:
                yield ApiServer(
                    url=server.url,
                    token=server.token,
                    ca_file=server.ca_file,
                    kubeconfig=server.kubeconfig_path,
                    kind=f"kube-apiserver and etcd of {assets}",
                    is_running=lambda: server.is_running,
                    log=folder / "kube-apiserver.log",
                )
        except realserver.ServerStartError as error:
            raise StartError(str(error)) from error
        return
    _make(folder)
    token, token_file = secrets.token_hex(16), folder / "token"
    files.write_private(token_file, token)
    argv = ["ccm.testing.apiserver", "--data-dir", str(folder / "state")]
    argv += ["--token-file", str(token_file), "--tls"]
    async with open_child(argv, folder / "apiserver.log") as child:
        told = await until_ready(child)
        yield ApiServer(
            url=told["url"],
            token=token,
            ca_file=Path(told["ca_file"]),
            kubeconfig=Path(told["kubeconfig"]),
            kind="built-in",
            is_running=lambda: child.exit_code is None,
            log=child.log,
        )


def open_cloud(folder: Path, settings: Settings) -> AbstractAsyncContextManager[Cloud]:
    """Start the cloud, with an instance for each node, unless it is the user's own.

    Raises:
        StartError: it did not become ready.
        CloudTrouble: it placed no instances.
    """
    if settings.provider is None:
        return _open_simulated(folder, settings)
    if settings.provider.fake:
        return _open_fake(folder, settings.provider, settings.node_names)
    return contextlib.nullcontext(Cloud(provider=settings.provider))


@contextlib.asynccontextmanager
async def _open_simulated(folder: Path, settings: Settings) -> AsyncIterator[Cloud]:
    _make(folder)
    latency = parsing.format_duration(settings.latency)
    argv = ["providers.sim", "--latency", latency]
    async with open_child(argv, folder / "cloud.log") as child:
        ready = await until_ready(child)
        url, token, config = ready["url"], ready["token"], folder / "cloud.yaml"
        files.write_private(config, f"url: {url}\ntoken: {token}\n")
        async with cloud.open_admin(url, token) as admin:
            await admin.place(settings.node_names)
            count = len(settings.node_names)
            classes = machines.simulated(token)
            yield Cloud(
                provider=Provider(name="sim", config=config, machine_class=classes),
                kind=f"simulated cloud: {url}, {count} instances, each call takes {latency}",
                token=token,
                admin=admin,
                child=child,
            )


@contextlib.asynccontextmanager
async def _open_fake(
    folder: Path, provider: Provider, names: Sequence[str]
) -> AsyncIterator[Cloud]:
    _make(folder)
    config, made_of = folder / "cloud.yaml", folder / "class.yaml"
    declared = registry.declared(registry.load(provider.name)).config
    argv = [provider.fake, "--config", str(config), "--machine-class", str(made_of), *names]
    async with open_child(argv, folder / "fake.log") as child:
        ready = await until_ready(child)
        classes = provider.machine_class or machines.read(made_of.read_bytes())
        url, variables = ready.get("url") or ready.get("endpoint"), ready.get("environment", {})
        yield Cloud(
            provider=replace(provider, config=config, machine_class=classes),
            kind=f"a fake of {provider.name}, for no --cloud-config names the real one: {url}",
            variables=variables,
            environment={**clean_environment(provider.name, declared), **variables},
            child=child,
        )


def _make(folder: Path) -> None:
    folder.mkdir(parents=True)


def fake_of(opener: registry.Opener) -> str:
    """Return the program of a provider's fake; empty where there is none."""
    package = f"{getattr(opener, '__module__', '')}.testing"
    try:
        return package if importlib.util.find_spec(f"{package}.__main__") else ""
    except (ImportError, ValueError):
        return ""


def clean_environment(name: str, config: type[msgspec.Struct] | None) -> Mapping[str, str]:
    """Return our environment without what may belong to a real account.

    That is what begins with the provider's name, and settings that the provider declares.
    """
    prefix = f"{name.upper().replace('-', '_')}_"
    declared = {one.name for one in cloud_settings.table(config)} if config else set()
    kept = [key for key in os.environ if not key.startswith(prefix) and key not in declared]
    return {key: os.environ[key] for key in kept}


def daemon_flags(
    *, kubeconfig: Path, provider: Provider, routes: bool, port: int, has_machines: bool = False
) -> list[str]:
    """Return the daemon's command line in a sandbox.

    `port` is its own, for `kube-ccm explain`; the usual one may be taken, by another sandbox too.
    """
    values: dict[str, object] = {
        "kubeconfig": kubeconfig,
        "cloud-provider": provider.name,
        "cloud-config": provider.config or "",
        "leader-elect": "true",
        "kube-api-qps": API_QPS,
        "kube-api-burst": API_BURST,
        "concurrent-node-syncs": NODE_SYNCS,
        "concurrent-node-status-updates": STATUS_UPDATES,
        "concurrent-service-syncs": SERVICE_SYNCS,
        "configure-cloud-routes": str(routes).lower(),
        "cluster-cidr": kubelet.POD_RANGE if routes else "",
        "secure-port": port,
        "bind-address": process.LOOPBACK,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "logging-format": "json",
    }
    if has_machines:
        values["controllers"] = MACHINE_CONTROLLERS
    return [f"--{name}={value}" for name, value in values.items() if name in FLAGS]


def last_words(what: str, log: Path) -> str:
    """The end of a log, introduced."""
    text = log.read_text(errors="replace")[-4000:].strip() if log.exists() else ""
    return f"{what}; the end of {log.name}:\n{text or '(nothing)'}"


@contextlib.asynccontextmanager
async def open_child(
    argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[process.Child]:
    """Start a module with arguments, and this environment or ours; it ends when this does."""
    child = process.Child(interpreter.command(*argv), log=log, env=environment)
    try:
        yield child
    finally:
        await child.stop(grace_s=GRACE_S)


async def until_ready(child: process.Child, within_s: float = START_DEADLINE_S) -> dict[str, Any]:
    """The line of JSON by which a process says where it is.

    Raises:
        StartError: there was none in time.
    """
    deadline = time.monotonic() + within_s
    while True:
        ended = child.exit_code is not None
        for line in child.log.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith("{") and line.endswith("}\n"):
                return dict(json.loads(line))
        if ended or time.monotonic() > deadline:
            raise StartError(last_words("a process of the sandbox did not start", child.log))
        await asyncio.sleep(_POLL_S)
