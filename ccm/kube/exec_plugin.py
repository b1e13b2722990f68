"""Credentials from an exec plugin: a program in the `exec` section of a kubeconfig.

The program receives its request in the environment variable KUBERNETES_EXEC_INFO and prints an
ExecCredential. The credential is cached until it expires; after a 401 the program runs again. If
the program is missing, fails or prints no valid credential, requests fail: no request is sent
anonymously instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from ccm.base import clock, redact
from ccm.base.credentials import KeyPair
from ccm.base.decoding import DECODE_ERRORS
from ccm.base.log import Outage, logger
from ccm.kube.credentials import Credential, bearer
from ccm.kube.errors import NoCredentials
from ccm.model import times
from ccm.model.meta import Wire

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
"""Supported values of `apiVersion`."""

PLUGIN_TIMEOUT_S = 60.0
"""Time limit of the program in seconds; the program may have to call a cloud."""

MAX_OUTPUT = 1 << 20
"""Maximum bytes of the program's stdout; a credential has a few KiB."""

_PIPE_HOLDS = 1 << 20
"""Maximum bytes in a pipe (Linux, fs.pipe-max-size)."""

_POLL_S = 0.05
"""Seconds between two checks whether the program has ended. Its pipes do not show the end, because
a child process may keep them open.
"""

_STDERR_KEPT = 64 << 10
"""Maximum bytes of stderr in memory: a program may print without end."""

_NAME_SHOWN = 64
_STDERR_SHOWN = 300
"""Maximum characters of an apiVersion or kind, and of stderr, in an error message, which must stay
readable in a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSettings:
    """Program that provides credentials, with its arguments and environment.

    Attributes:
        api_version: one of `API_VERSIONS`.
        command: name of a program on PATH, or a path.
        args: arguments of the program.
        environ: complete environment of the program, except KUBERNETES_EXEC_INFO.
        cluster: information about the cluster for the program; None = do not pass it.
        install_hint: text for the error message if the program cannot be started.
    """

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster: Mapping[str, Any] | None = None
    install_hint: str = ""


class ExecStatus(Wire, frozen=True, kw_only=True):
    """Credential that the program printed; certificate and key are PEM."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class ExecCredential(Wire, frozen=True, kw_only=True):
    """Output of the program."""

    api_version: str = ""
    kind: str = ""
    status: ExecStatus | None = None


_DECODER = msgspec.json.Decoder(ExecCredential)


class ExecPlugin:
    """Source of credentials that runs a program for a new credential.

    The program runs for the first request, after the expiry of the credential, and after a 401.

    Args:
        settings: the program.
        timeout_s: time limit of the program in seconds.
    """

    def __init__(self, settings: ExecSettings, *, timeout_s: float = PLUGIN_TIMEOUT_S) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._credential: Credential | None = None
        self._expires: datetime | None = None
        self._obtained_at = 0.0
        self._renewal_outage = Outage(
            logger("kube"),
            start_message="exec plugin did not replace the rejected credential",
            end_message="exec plugin recovered",
        )
        self._running = asyncio.Lock()
        """Held while the program runs: one run serves all requests that wait for the lock."""

    async def current(self) -> Credential:
        """Return the cached credential; run the program if there is none or it expired.

        Raises:
            NoCredentials: the program failed, or printed no valid credential.
        """
        async with self._running:
            has_expired = self._expires is not None and clock.now() >= self._expires
            if self._credential is None or has_expired:
                await self._renew()
            assert self._credential is not None
            return self._credential

    async def refresh_rejected(self, credential: Credential, sent_at: float) -> bool:
        """Run the program again, unless the credential was renewed since the request began.

        Returns:
            Whether the credential now differs from the rejected credential.
        """
        async with self._running:
            # Many requests may fail at once; only the first request runs the program.
            if self._credential == credential and self._obtained_at <= sent_at:
                try:
                    await self._renew()
                except NoCredentials as problem:
                    self._renewal_outage.record_failure(
                        command=self._settings.command, error=str(problem)
                    )
                    return False
            return self._credential != credential

    async def _renew(self) -> None:
        output = await self._run()
        credential, expires = parse_credential(output, self._settings)
        self._credential = credential
        self._expires = expires
        self._obtained_at = clock.monotonic()
        self._renewal_outage.record_success(command=self._settings.command)

    async def _run(self) -> bytes:
        program = self._start()
        output, noise = await self._wait_for_output(program)
        if len(output) > MAX_OUTPUT:
            raise NoCredentials(
                f"exec plugin {self._settings.command} printed more than {MAX_OUTPUT >> 20} MiB"
            )
        if program.returncode != 0:
            # Mask before the cut: half of a secret would not be recognised.
            text = redact.mask_text(noise.decode(errors="replace"), _STDERR_KEPT)
            words = " ".join(text.split())[-_STDERR_SHOWN:]
            raise NoCredentials(
                f"exec plugin {self._settings.command} failed with code {program.returncode}:"
                f" {words}"
            )
        return output

    def _start(self) -> subprocess.Popen[bytes]:
        settings = self._settings
        try:
            return subprocess.Popen(  # noqa: S603 - the kubeconfig names it
                [settings.command, *settings.args],
                env={**settings.environ, "KUBERNETES_EXEC_INFO": exec_info(settings)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as problem:
            hint = f"; {settings.install_hint}" if settings.install_hint else ""
            raise NoCredentials(
                f"exec plugin {settings.command} cannot be started: {problem}{hint}"
            ) from problem

    async def _wait_for_output(self, program: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        """Return stdout and stderr of the program; kill it after the time limit or a cancellation.

        Raises:
            NoCredentials: the program did not end within the time limit.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.to_thread(_read_output, program)
        except TimeoutError as problem:
            raise NoCredentials(
                f"exec plugin {self._settings.command} timed out after {self._timeout_s:g} s"
            ) from problem
        finally:
            # The thread reaps the program. A wait here would delay a cancelled caller.
            if program.returncode is None:
                _kill(program)


def _read_output(program: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Wait until a program ends; return its stdout and the last part of its stderr; blocks.

    A program that prints more than `MAX_OUTPUT` is killed, so that memory use is limited.
    """
    output, noise = bytearray(), bytearray()
    assert program.stdout is not None
    assert program.stderr is not None
    with program.stdout, program.stderr, selectors.DefaultSelector() as streams:
        streams.register(program.stdout, selectors.EVENT_READ, output)
        streams.register(program.stderr, selectors.EVENT_READ, noise)
        has_ended = False
        while not has_ended:
            # Check for the end before the read: after the end, the pipes contain all output of
            # the program. A child process of the program may keep the pipes open.
            has_ended = program.poll() is not None
            for key, _ in streams.select(0 if has_ended else _POLL_S):
                chunk = os.read(key.fd, _PIPE_HOLDS)
                key.data.extend(chunk)
                if not chunk:
                    streams.unregister(key.fileobj)
            is_too_much = len(output) > MAX_OUTPUT
            if is_too_much and not has_ended:
                _kill(program)
            if is_too_much or not streams.get_map():
                program.wait()
            del noise[:-_STDERR_KEPT]
    return bytes(output), bytes(noise)


def _kill(program: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)


def exec_info(settings: ExecSettings) -> str:
    """Return the value of KUBERNETES_EXEC_INFO; `interactive` is false, as in any daemon."""
    spec: dict[str, Any] = {"interactive": False}
    if settings.cluster is not None:
        spec["cluster"] = settings.cluster
    body = {"apiVersion": settings.api_version, "kind": "ExecCredential", "spec": spec}
    return msgspec.json.encode(body).decode()


def parse_credential(output: bytes, settings: ExecSettings) -> tuple[Credential, datetime | None]:
    """Return the credential in a program's output, and its expiry; None = no expiry.

    Raises:
        NoCredentials: the output is no valid and complete ExecCredential of the requested version.
    """
    name = f"exec plugin {settings.command}"
    try:
        answer = _DECODER.decode(output)
    except DECODE_ERRORS as problem:
        # The message does not show the output, which may contain a secret.
        raise NoCredentials(f"{name} printed no ExecCredential: {problem}") from problem
    if answer.kind != "ExecCredential" or answer.api_version != settings.api_version:
        raise NoCredentials(
            f"{name} printed {answer.api_version[:_NAME_SHOWN]} {answer.kind[:_NAME_SHOWN]},"
            f" not {settings.api_version} ExecCredential"
        )
    status = answer.status or ExecStatus()
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise NoCredentials(f"{name} printed only one of client certificate and key")
    if not status.token and not status.client_certificate_data:
        raise NoCredentials(f"{name} printed neither a token nor a client certificate")
    chain, key = status.client_certificate_data.encode(), status.client_key_data.encode()
    try:
        header = bearer(status.token).header if status.token else None
    except ValueError as problem:
        raise NoCredentials(f"{name}: invalid token: {problem}") from problem
    text = status.expiration_timestamp
    try:
        expires = None if text is None else times.parse_time(text)
    except ValueError as problem:
        raise NoCredentials(f"{name}: invalid expirationTimestamp: {problem}") from problem
    certificate = KeyPair(chain=chain, key=key) if chain else None
    return Credential(header=header, certificate=certificate), expires
