"""The processes of a sandbox: API server, cloud, daemon.

Each has a context manager that yields when the process is ready and stops it on exit. The processes
are nested in that order and stop in reverse. The daemon stops first, so that it releases its lease
and closes its connections. All files are in the folder that the caller names.

Processes use this interpreter, isolated from the current folder and Python's environment variables,
so that no file there is imported as a module. Secrets are passed in files, because every user of
the machine can read command lines.

The cloud is the simulated cloud, the fake of a provider's cloud, or the user's own cloud. The fake
of a provider is the program `<package of the provider>.testing`. With `--config FILE` it writes a
cloud config, with `--machine-class FILE` a MachineClass and its Secret, with
`--machine-deployment FILE` a MachineDeployment of Kubermatic's API and its Secret; its other
arguments are the names of existing instances. When it serves, it prints one line of JSON: `url` or
`endpoint`, and optionally in `environment` the variables that the daemon needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ccm.app.options import FLAGS
from ccm.base import files, interpreter, parsing
from ccm.cloud import registry
from ccm.cloud import settings as cloud_settings
from ccm.sandbox import (
    SandboxProvider,
    SandboxSettings,
    cloud,
    kubelet,
    machineapis,
    machines,
    process,
    realserver,
)

START_DEADLINE_S = 60.0
"""Time limit for a process to become ready, in seconds."""

GRACE_S = 10.0
"""Grace period between SIGTERM and SIGKILL, in seconds."""

_POLL_S = 0.05
_WARNINGS = frozenset({"warning", "error", "critical"})


class StartError(Exception):
    """A process did not start, or exited early; the message has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """A running API server.

    Attributes:
        url: base URL, without a slash at the end.
        token: token of the administrator.
        ca_file: CA certificates of the server; None = plain HTTP.
        kubeconfig: kubeconfig for kubectl and daemons.
        kind: description for the screen.
        is_running: function that returns whether the server's process runs.
        log: log file.
    """

    url: str
    token: str
    ca_file: Path | None
    kubeconfig: Path
    kind: str
    is_running: Callable[[], bool]
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCloud:
    """The cloud of a sandbox.

    Attributes:
        provider: the daemon's provider, with its cloud config and the objects that describe VMs.
        kind: description for the screen.
        token: administrator's token of the simulated cloud.
        admin: administrator's client; None = not the simulated cloud.
        variables: environment variables that clients of this cloud need.
        environment: environment of the daemon; None = that of this process.
        child: process of the cloud; None = the user's own cloud.
    """

    provider: SandboxProvider
    kind: str = ""
    token: str = ""
    admin: cloud.Admin | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] | None = None
    child: process.Child | None = None


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the daemon's log, partially decoded.

    Only the last line has `node_writes`, `service_writes` and `cloud_calls`.
    """

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
        """Whether the level is warning or above."""
        return self.level in _WARNINGS

    @property
    def writes(self) -> int | None:
        """Number of writes of nodes and Services; None in all lines but the last."""
        return None if self.node_writes is None else self.node_writes + self.service_writes

    def __str__(self) -> str:
        return " ".join(filter(None, (self.msg, self.node, self.detail, self.err)))


_DECODER = msgspec.json.Decoder(LogEntry)


class DaemonLog:
    """Reads the daemon's log incrementally.

    Attributes:
        last: the line "stopped", which is the daemon's last line; None while the daemon runs, or if
            it crashed.
    """

    def __init__(self, path: Path) -> None:
        self.last: LogEntry | None = None
        self._path = path
        self._read = 0

    def read_entries(self) -> Sequence[LogEntry]:
        """Return the entries since the last call; skip lines that are no JSON."""
        with self._path.open("rb") as source:
            source.seek(self._read)
            # The last line may be incomplete: leave it for the next call.
            whole, newline, _ = source.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        entries = list[LogEntry]()
        for line in whole.splitlines():
            # Tracebacks and output of libraries are no entries.
            with contextlib.suppress(msgspec.MsgspecError):
                entries.append(_DECODER.decode(line))
        self.last = next((entry for entry in entries if entry.msg == "stopped"), self.last)
        return entries


@contextlib.asynccontextmanager
async def open_api_server(folder: Path, *, assets: Path | None) -> AsyncIterator[ApiServer]:
    """Start an API server: kube-apiserver of the folder `assets`; without one the in-memory server.

    Raises:
        StartError: the server did not become ready.
    """
    if assets is not None:
        try:
            # As in most clusters, the Node authorizer permits kubelets to request certificates.
            async with realserver.open_real_apiserver(
                assets, folder, authorization_mode="Node,RBAC"
            ) as server:
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
        ready = await until_ready(child)
        yield ApiServer(
            url=ready["url"],
            token=token,
            ca_file=Path(ready["ca_file"]),
            kubeconfig=Path(ready["kubeconfig"]),
            kind="built-in",
            is_running=lambda: child.exit_code is None,
            log=child.log,
        )


def open_cloud(
    folder: Path, settings: SandboxSettings
) -> AbstractAsyncContextManager[SandboxCloud]:
    """Start the cloud with an instance for each node, unless it is the user's own cloud.

    Raises:
        StartError: the cloud did not become ready.
        AdminError: the instances could not be created.
    """
    if settings.provider is None:
        return _open_simulated(folder, settings)
    if settings.provider.fake:
        return _open_fake(folder, settings, settings.provider)
    return contextlib.nullcontext(SandboxCloud(provider=settings.provider))


@contextlib.asynccontextmanager
async def _open_simulated(folder: Path, settings: SandboxSettings) -> AsyncIterator[SandboxCloud]:
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
            objects = machineapis.APIS[settings.machine_api].simulated(token)
            yield SandboxCloud(
                provider=SandboxProvider(name="sim", config=config, machine_objects=objects),
                kind=f"simulated cloud: {url}, {count} instances, each call takes {latency}",
                token=token,
                admin=admin,
                child=child,
            )


@contextlib.asynccontextmanager
async def _open_fake(
    folder: Path, settings: SandboxSettings, provider: SandboxProvider
) -> AsyncIterator[SandboxCloud]:
    _make(folder)
    config, file = folder / "cloud.yaml", folder / "machines.yaml"
    api = machineapis.APIS[settings.machine_api]
    declared = registry.declaration_of(registry.load_provider(provider.name)).config
    argv = [provider.fake, "--config", str(config), api.file_option, str(file)]
    async with open_child([*argv, *settings.node_names], folder / "fake.log") as child:
        ready = await until_ready(child)
        objects = provider.machine_objects or machines.read_objects(api, file.read_bytes())
        url, variables = ready.get("url") or ready.get("endpoint"), ready.get("environment", {})
        yield SandboxCloud(
            provider=replace(provider, config=config, machine_objects=objects),
            kind=f"fake of the {provider.name} cloud (no --cloud-config): {url}",
            variables=variables,
            environment={**clean_environment(provider.name, declared, variables), **variables},
            child=child,
        )


def _make(folder: Path) -> None:
    folder.mkdir(parents=True)


def fake_module(opener: registry.Opener) -> str:
    """Return the module of a provider's fake; empty if there is none."""
    package = f"{getattr(opener, '__module__', '')}.testing"
    try:
        return package if importlib.util.find_spec(f"{package}.__main__") else ""
    except (ImportError, ValueError):
        return ""


def clean_environment(
    name: str, config: type[msgspec.Struct] | None, variables: Collection[str] = ()
) -> Mapping[str, str]:
    """Return this process's environment without variables that may belong to a real account.

    Removed are the provider's declared settings, and variables that begin with the provider's name
    or with the first word of one of `variables`, the names that the fake sets: OS_CLOUD removes
    OS_PASSWORD.
    """
    words = {name.upper().replace("-", "_"), *(key.partition("_")[0] for key in variables)}
    prefixes = tuple(f"{word}_" for word in words)
    declared = {setting.name for setting in cloud_settings.table(config)} if config else set()
    kept = [key for key in os.environ if not key.startswith(prefixes) and key not in declared]
    return {key: os.environ[key] for key in kept}


def daemon_flags(
    *,
    kubeconfig: Path,
    provider: SandboxProvider,
    routes: bool,
    port: int,
    machine_controllers: str = "",
) -> list[str]:
    """Return the daemon's flags in a sandbox.

    `port` replaces the default HTTPS port, which another sandbox may use. `machine_controllers` is
    the value of `--controllers` in a sandbox with Machines.
    """
    values: dict[str, object] = {
        "kubeconfig": kubeconfig,
        "cloud-provider": provider.name,
        "cloud-config": provider.config or "",
        "leader-elect": "true",
        "configure-cloud-routes": str(routes).lower(),
        "cluster-cidr": kubelet.POD_RANGE if routes else "",
        "secure-port": port,
        "bind-address": process.LOOPBACK,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "logging-format": "json",
    }
    if machine_controllers:
        values["controllers"] = machine_controllers
    return [f"--{name}={value}" for name, value in values.items() if name in FLAGS]


def log_tail_message(what: str, log: Path) -> str:
    """Return a message: `what`, and the last 4000 characters of a log."""
    text = log.read_text(errors="replace")[-4000:].strip() if log.exists() else ""
    return f"{what}; the end of {log.name}:\n{text or '(empty)'}"


@contextlib.asynccontextmanager
async def open_child(
    argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[process.Child]:
    """Run a Python module with arguments while the context is open."""
    child = process.Child(interpreter.command(*argv), log=log, env=environment)
    try:
        yield child
    finally:
        await child.stop(grace_s=GRACE_S)


async def until_ready(child: process.Child, within_s: float = START_DEADLINE_S) -> dict[str, Any]:
    """Return the line of JSON that a process prints when it is ready.

    Raises:
        StartError: the process exited or printed no such line in time.
    """
    deadline = time.monotonic() + within_s
    while True:
        # Checked before the log is read: a process that has ended has written all of its output.
        ended = child.exit_code is not None
        for line in child.log.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith("{") and line.endswith("}\n"):
                return dict(json.loads(line))
        if ended or time.monotonic() > deadline:
            raise StartError(log_tail_message("a process of the sandbox did not start", child.log))
        await asyncio.sleep(_POLL_S)
