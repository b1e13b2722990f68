"""The processes of a sandbox: API server, simulated cloud, daemon.

Each is a context: it yields when the process is ready and ends the process when it is
left. Nested in that order, they end in the reverse one: the daemon first, so that it
gives up its lease and closes its connections, the servers after it. All files lie in
the one folder that the caller names.

Processes start with this interpreter, apart from the user's folder and environment, so that
no file there is taken for a module. Secrets reach them by files: everybody on the machine can
read their command lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from ccm.app.options import FLAGS
from ccm.base import files, interpreter, parsing
from ccm.sandbox import cloud, kubelet, ports, process, realserver

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
        kind: what it is, for people.
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
    """A running simulated cloud.

    Attributes:
        admin: calls behind the scenes.
        token: the administrator's and the provider's.
        config: the provider's cloud config.
        is_running: whether it lives.
        log: where it writes.
    """

    admin: cloud.Admin
    token: str
    config: Path
    is_running: Callable[[], bool]
    log: Path


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
    """A log that is followed.

    Attributes:
        last: the line with which the daemon ended; None while it runs, or if it crashed.
    """

    def __init__(self, path: Path) -> None:
        self.last: LogEntry | None = None
        self._path = path
        self._read = 0

    def news(self) -> Sequence[LogEntry]:
        """The entries written since the last call; lines that are no JSON are left out."""
        with self._path.open("rb") as source:
            source.seek(self._read)
            whole, newline, _ = source.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        entries = list(_entries(whole))
        self.last = next((entry for entry in entries if entry.msg == "stopped"), self.last)
        return entries


def _entries(text: bytes) -> Iterator[LogEntry]:
    for line in text.splitlines():
        try:
            yield _DECODER.decode(line)
        except msgspec.MsgspecError:
            continue  # a traceback, or what a library printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """The running daemon; its log is followed."""

    log: DaemonLog
    child: process.Child


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
    make(folder)
    token = secrets.token_hex(16)
    token_file = _secret(folder / "token", token)
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


@contextlib.asynccontextmanager
async def open_cloud(folder: Path, *, latency: timedelta) -> AsyncIterator[Cloud]:
    """Start the simulated cloud.

    Raises:
        StartError: it did not become ready.
    """
    make(folder)
    argv = ["providers.sim", "--latency", parsing.format_duration(latency)]
    async with open_child(argv, folder / "cloud.log") as child:
        told = await until_ready(child)
        url, token = told["url"], told["token"]
        async with cloud.open_admin(url, token) as admin:
            yield Cloud(
                admin=admin,
                token=token,
                config=_secret(folder / "cloud.yaml", f"url: {url}\ntoken: {token}\n"),
                is_running=lambda: child.exit_code is None,
                log=child.log,
            )


@contextlib.asynccontextmanager
async def open_daemon(
    folder: Path, flags: Sequence[str], environment: Mapping[str, str] | None = None
) -> AsyncIterator[Daemon]:
    """Start the daemon with these flags, and this environment or ours; it is not waited for."""
    argv = ["ccm", *flags]
    async with open_child(argv, folder / "daemon.log", environment) as child:
        yield Daemon(log=DaemonLog(child.log), child=child)


def daemon_flags(
    *,
    kubeconfig: Path,
    provider: str,
    config: Path | None,
    routes: bool,
    port: int,
    machines: bool = False,
) -> list[str]:
    """The daemon's command line in a sandbox; with or without routes in the cloud, and machines.

    `port` is its own, for `kube-ccm explain`; the usual one may be taken, by another sandbox too.
    """
    values: dict[str, object] = {
        "kubeconfig": kubeconfig,
        "cloud-provider": provider,
        "cloud-config": config or "",
        "leader-elect": "true",
        "kube-api-qps": API_QPS,
        "kube-api-burst": API_BURST,
        "concurrent-node-syncs": NODE_SYNCS,
        "concurrent-node-status-updates": STATUS_UPDATES,
        "concurrent-service-syncs": SERVICE_SYNCS,
        "configure-cloud-routes": str(routes).lower(),
        "cluster-cidr": kubelet.POD_RANGE if routes else "",
        "secure-port": port,
        "bind-address": ports.LOOPBACK,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "logging-format": "json",
    }
    if machines:
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


def make(folder: Path) -> None:
    """A folder, and those above it."""
    folder.mkdir(parents=True)


def _secret(path: Path, text: str) -> Path:
    files.write_private(path, text)
    return path
