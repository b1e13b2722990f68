"""A real kube-apiserver with its etcd, on loopback.

Two child processes start in order (etcd, kube-apiserver) and stop in reverse. All their files are
in one data folder. Ports and folder stay the same over `stop` and `start`, so that clients see the
same objects, as after a restart of a control plane.

The server has RBAC, tokens from a static file, and a serving certificate that it creates itself.
Two settings differ from real clusters. The ServiceAccount admission plugin is off, because no
controller manager creates the service accounts that it needs. etcd does not wait for the disk.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ccm.base import files
from ccm.sandbox import process
from ccm.testing.apiserver import server as builtin

write_kubeconfig = builtin.write_kubeconfig

BINARIES = ("etcd", "kube-apiserver")
"""Programs that a folder of assets must have."""

ADMIN_GROUP = "system:masters"
"""Group whose members have every permission, whatever RBAC says (kube-apiserver)."""

START_DEADLINE_S = 120.0
"""Time limit for both processes together to become ready, in seconds."""

_POLL_S = 0.05
_STOP_GRACE_S = 15.0
_FIRST_NAMESPACES = ("default", "kube-system")

# Order of the group of the NIST P-256 curve (SEC 2, secp256r1).
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class ServerStartError(Exception):
    """The server did not start; the message has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUser:
    """A user with a static token."""

    name: str
    token: str
    groups: tuple[str, ...] = ()


def missing_binaries(assets: Path) -> list[str]:
    """Return which of `BINARIES` the folder lacks."""
    return [name for name in BINARIES if not (assets / name).is_file()]


@dataclass(kw_only=True, eq=False)
class RealServer:
    """Controls one kube-apiserver and its etcd.

    Not safe for concurrent callers. Methods may be called from different event loops, one after
    the other.

    Args:
        assets: folder with the `BINARIES`.
        data_dir: folder for state, certificates, tokens and logs.
        users: users beside the administrator.
        authorization_mode: value of `--authorization-mode`; "AlwaysAllow" disables authorization.
        audit_log: file for one JSON line per request, with its body.
        extra_args: further flags of kube-apiserver; the last value of a flag counts.
    """

    assets: Path
    data_dir: Path
    users: Sequence[TokenUser] = ()
    authorization_mode: str = "RBAC"
    audit_log: Path | None = None
    extra_args: Sequence[str] = ()
    token: str = field(init=False, default_factory=lambda: secrets.token_hex(16))
    _etcd_port: int = field(init=False, default_factory=process.pick_port)
    _port: int = field(init=False, default_factory=process.pick_port)
    _etcd: process.Child | None = field(init=False, default=None)
    _apiserver: process.Child | None = field(init=False, default=None)

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""
        return f"https://{process.LOOPBACK}:{self._port}"

    @property
    def ca_file(self) -> Path:
        """CA certificates (PEM) of the server; exists after the first start."""
        return self.data_dir / "certs" / "apiserver.crt"

    @property
    def kubeconfig_path(self) -> Path:
        """Kubeconfig of the administrator; exists after the first start."""
        return self.data_dir / "kubeconfig"

    @property
    def is_running(self) -> bool:
        """Whether the kube-apiserver process runs."""
        return self._apiserver is not None and self._apiserver.exit_code is None

    async def start(self) -> None:
        """Start both processes; return when the server answers requests.

        Does nothing if they run.

        Raises:
            ServerStartError: a process exited or was not ready in time.
        """
        if self.is_running:
            return
        await self.kill()  # after a crash of kube-apiserver, etcd still runs
        deadline = time.monotonic() + START_DEADLINE_S
        try:
            self._prepare()
            self._etcd = self._spawn("etcd", self._etcd_args())
            async with aiohttp.ClientSession() as session:
                url = f"http://{process.LOOPBACK}:{self._etcd_port}/readyz"
                while not await _answers_ok(session, url):
                    await _pause(self._etcd, deadline)
            self._apiserver = self._spawn("kube-apiserver", self._apiserver_args())
            await self._wait_for_apiserver(self._apiserver, deadline)
        except BaseException:
            await self.kill()
            raise
        write_kubeconfig(self.kubeconfig_path, url=self.url, token=self.token, ca_file=self.ca_file)

    async def stop(self) -> None:
        """Stop both processes with SIGTERM; the objects persist."""
        await self._end(lambda child: child.stop(grace_s=_STOP_GRACE_S))

    async def kill(self) -> None:
        """Stop both processes with SIGKILL; the objects persist."""
        await self._end(process.Child.kill)

    async def _end(self, how: Callable[[process.Child], Awaitable[int]]) -> None:
        for child in filter(None, (self._apiserver, self._etcd)):
            await how(child)
        self._apiserver = self._etcd = None

    def _prepare(self) -> None:
        """Write the files that the server reads; keys survive a restart."""
        (self.data_dir / "certs").mkdir(parents=True, exist_ok=True)
        key = self.data_dir / "service-account.key"
        if not key.exists():
            files.write_private(key, _new_signing_key())
        admin = TokenUser(name="admin", token=self.token, groups=(ADMIN_GROUP,))
        tokens = [
            f'{user.token},{user.name},{user.name},"{",".join(user.groups)}"\n'
            for user in (admin, *self.users)
        ]
        files.write_private(self.data_dir / "tokens.csv", "".join(tokens))
        if self.audit_log is not None:
            policy = self.data_dir / "audit-policy.json"
            policy.write_text(json.dumps(_AUDIT_POLICY))

    def _spawn(self, program: str, arguments: Sequence[str]) -> process.Child:
        return process.Child(
            [str(self.assets / program), *arguments], log=self.data_dir / f"{program}.log"
        )

    def _etcd_args(self) -> list[str]:
        client_url = f"http://{process.LOOPBACK}:{self._etcd_port}"
        # A single member never calls peers: any free port works.
        peer_url = f"http://{process.LOOPBACK}:0"
        return [
            f"--data-dir={self.data_dir / 'etcd'}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _apiserver_args(self) -> list[str]:
        key = self.data_dir / "service-account.key"
        arguments = [
            f"--etcd-servers=http://{process.LOOPBACK}:{self._etcd_port}",
            f"--bind-address={process.LOOPBACK}",
            f"--secure-port={self._port}",
            f"--cert-dir={self.data_dir / 'certs'}",
            f"--advertise-address={process.LOOPBACK}",
            # No client uses the endpoints of the Service "kubernetes", which must not have a
            # loopback address.
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--authorization-mode={self.authorization_mode}",
            f"--token-auth-file={self.data_dir / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount",
            "--profiling=false",
        ]
        if self.audit_log is not None:
            arguments += [
                f"--audit-log-path={self.audit_log}",
                f"--audit-policy-file={self.data_dir / 'audit-policy.json'}",
                "--audit-log-mode=blocking",
            ]
        return [*arguments, *self.extra_args]

    async def _wait_for_apiserver(self, apiserver: process.Child, deadline: float) -> None:
        while not self.ca_file.exists():
            await _pause(apiserver, deadline)
        while (trust := _trust(self.ca_file)) is None:
            await _pause(apiserver, deadline)
        headers = {"Authorization": f"Bearer {self.token}"}
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            paths = ["/readyz", *(f"/api/v1/namespaces/{name}" for name in _FIRST_NAMESPACES)]
            for path in paths:
                while not await _answers_ok(session, self.url + path):
                    await _pause(apiserver, deadline)


@contextlib.asynccontextmanager
async def open_real_apiserver(
    assets: Path, data_dir: Path, **options: Any
) -> AsyncIterator[RealServer]:
    """Run a real kube-apiserver and etcd; yield when it answers requests.

    The namespaces `default` and `kube-system` exist by then.

    Args:
        assets: folder with the `BINARIES`.
        data_dir: folder for state, certificates, tokens and logs; created if absent.
        options: see `RealServer`.

    Raises:
        ServerStartError: a binary is missing, or the server did not become ready.
    """
    if missing := missing_binaries(assets):
        raise ServerStartError(f"{assets}: missing {' and '.join(missing)}")
    server = RealServer(assets=assets, data_dir=data_dir, **options)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


async def _pause(child: process.Child, deadline: float) -> None:
    """Wait before the next readiness check.

    Raises:
        ServerStartError: `child` exited, or the deadline has passed.
    """
    if child.exit_code is not None:
        trouble = f"exited with status {child.exit_code}"
    elif time.monotonic() > deadline:
        trouble = f"is not ready after {START_DEADLINE_S:.0f} s"
    else:
        await asyncio.sleep(_POLL_S)
        return
    raise ServerStartError(f"{child.name} {trouble}; the end of {child.log}:\n{child.log_tail()}")


async def _answers_ok(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
            # Read to the end, so that the connection can be reused.
            await response.read()
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _trust(ca_file: Path) -> ssl.SSLContext | None:
    """Return the certificates as trust anchors; None while the file is incomplete."""
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except ssl.SSLError:
        return None


_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Request"}],
}


def _new_signing_key() -> str:
    """Return a new P-256 private key (SEC 1, PEM) for service-account tokens.

    No crypto library is needed: a private key of this curve is a random number below the group's
    order, and the file may omit the public key.
    """
    number = (secrets.randbelow(_P256_ORDER - 1) + 1).to_bytes(32, "big")
    version = bytes.fromhex("020101")
    secret = bytes.fromhex("0420") + number
    curve = bytes.fromhex("a00a06082a8648ce3d030107")
    body = version + secret + curve
    text = base64.encodebytes(bytes([0x30, len(body)]) + body).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{text}-----END EC PRIVATE KEY-----\n"
