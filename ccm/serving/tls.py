"""TLS of a server: sources of certificates, and TLS contexts built from them.

`CertReloader` owns the TLS context of a running server. It reads certificates and CAs periodically.
Every new connection uses the last valid certificates and CAs.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import NamedTuple

from ccm.base import clock, interpreter, log
from ccm.base.credentials import KeyPair
from ccm.base.files import describe_error
from ccm.serving.policy import TlsPolicy

LIFETIME = timedelta(days=365)
"""Validity of a self-signed certificate (client-go, util/cert)."""

RENEW_BEFORE = timedelta(days=30)
"""How long before its expiry a certificate in memory is replaced."""

_CHILD_TIMEOUT_S = 60.0


class CertificateError(Exception):
    """A certificate, key or CA bundle is unusable; the message says which, and why."""


LOCAL = ("localhost", "127.0.0.1")
"""Hosts that every self-signed certificate covers."""


def hosts_of(address: IPv4Address | IPv6Address) -> tuple[str, ...]:
    """Return the hosts for the certificate of a server that listens on an address.

    They are the `LOCAL` hosts and the address. `::` is replaced by `::1`; `0.0.0.0` is omitted.
    """
    if address.is_unspecified:
        return (*LOCAL, "::1") if address.version == 6 else LOCAL
    return tuple(dict.fromkeys([*LOCAL, str(address)]))


KeyPairSource = Callable[[], Awaitable[KeyPair]]
"""Function that reads and returns the current certificate and key; raises CertificateError."""


def files(
    chain: Path, key: Path, *, labels: tuple[str, str] = ("certificate ", "key ")
) -> KeyPairSource:
    """Return a source that reads certificate and key from two files.

    Args:
        chain: path of the PEM chain, the server's own certificate first.
        key: path of the private key, PEM.
        labels: prefix of each path in messages, such as `--tls-cert-file=`.
    """
    return partial(asyncio.to_thread, _read, chain, key, labels)


def directory(folder: Path, name: str, hosts: Sequence[str]) -> KeyPairSource:
    """Return a source that reads certificate and key from a directory.

    If both files are absent at the first read, the source creates a self-signed certificate and
    stores both files. Any other error raises: an existing file may be the administrator's.

    Args:
        folder: the directory; created if it is missing.
        name: base name of the files `<name>.crt` and `<name>.key`.
        hosts: host names and addresses for a new certificate.
    """
    chain, key = folder / f"{name}.crt", folder / f"{name}.key"
    may_create = True

    def write(pair: KeyPair) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            new_chain, new_key = _stage(chain, pair.chain, 0o644), _stage(key, pair.key, 0o600)
            # The key first: once the chain file exists, both files are complete.
            new_key.replace(key)
            new_chain.replace(chain)
        except OSError as error:
            raise CertificateError(
                f"{folder}: a new certificate cannot be stored: {describe_error(error)}"
            ) from error

    def is_absent() -> bool:
        # A key beside a staged chain is left from a `write` that was interrupted.
        return _is_absent(chain) and (_is_absent(key) or not _is_absent(_staged(chain)))

    async def read() -> KeyPair:
        nonlocal may_create
        try:
            pair = await asyncio.to_thread(_read, chain, key)
        except CertificateError as error:
            if not may_create:
                raise
            if not await asyncio.to_thread(is_absent):
                raise CertificateError(
                    f"{error}; a certificate is created only if {chain.name} and {key.name} are "
                    "both absent"
                ) from error
            pair = await mint(hosts, now=clock.now())
            await asyncio.to_thread(write, pair)
        # Later, absent files mean a rotation that is not complete yet.
        may_create = False
        return pair

    return read


def memory(hosts: Sequence[str]) -> KeyPairSource:
    """Return a source with a self-signed certificate in memory.

    The source replaces the certificate 30 days (`RENEW_BEFORE`) before it expires.
    """
    current: tuple[KeyPair, datetime] | None = None

    async def read() -> KeyPair:
        nonlocal current
        now = clock.now()
        if current is None or now >= current[1]:
            current = await mint(hosts, now=now), now + LIFETIME - RENEW_BEFORE
        return current[0]

    return read


class SniCertificate(NamedTuple):
    """A certificate for some host names only (SNI).

    Attributes:
        source: source of the certificate and key.
        names: host names; `*.` means one arbitrary first label. Empty means the names in the
            certificate.
    """

    source: KeyPairSource
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCertificates:
    """The loaded certificates of a server.

    Attributes:
        main: default certificate and key.
        named: (host names, certificate and key), in order of preference.
    """

    main: KeyPair
    named: tuple[tuple[tuple[str, ...], KeyPair], ...] = ()

    def for_name(self, name: str) -> KeyPair:
        """Return certificate and key for a requested host name.

        An exact name has precedence over a wildcard. Without a match, return the default.
        """
        wanted = name.lower().rstrip(".")
        parent = "*." + wanted.partition(".")[2]
        for candidate in (wanted, parent):
            for names, pair in self.named:
                if candidate in names:
                    return pair
        return self.main


class CertificateSources:
    """Sources of all certificates of one server.

    Args:
        main: source of the default certificate.
        named: certificates for some host names only, in order of preference.
    """

    def __init__(self, main: KeyPairSource, named: Sequence[SniCertificate] = ()) -> None:
        self._main = main
        self._named = tuple(named)
        self._carried: dict[bytes, tuple[str, ...]] = {}

    async def read(self) -> LoadedCertificates:
        """Read all certificates. Raises CertificateError."""
        named = []
        for entry in self._named:
            pair = await entry.source()
            names = entry.names
            if not names:
                if pair.chain not in self._carried:
                    self._carried[pair.chain] = await names_in(pair)
                names = self._carried[pair.chain]
            named.append((tuple(name.lower().rstrip(".") for name in names), pair))
        return LoadedCertificates(main=await self._main(), named=tuple(named))


def _read(chain: Path, key: Path, called: tuple[str, str] = ("", "")) -> KeyPair:
    read = []
    for path, name in zip((chain, key), called, strict=True):
        try:
            read.append(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CertificateError(
                f"{name}{path} cannot be read: {describe_error(error)}"
            ) from error
    return KeyPair(chain=read[0], key=read[1])


def _staged(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _stage(path: Path, content: bytes, mode: int) -> Path:
    new = _staged(path)
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    return new


def _is_absent(path: Path) -> bool:
    try:
        path.lstat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


async def mint(hosts: Sequence[str], *, now: datetime) -> KeyPair:
    """Create a self-signed certificate and its key, in a child process.

    Raises:
        CertificateError: the child process failed.
    """
    words = (now.isoformat(), str(LIFETIME.total_seconds()), *hosts)
    output = await asyncio.to_thread(_run_minting, "mint", *words)
    chain, mark, key = output.partition("-----BEGIN PRIVATE")
    return KeyPair(chain=chain.encode(), key=f"{mark}{key}".encode())


async def names_in(pair: KeyPair) -> tuple[str, ...]:
    """Return the host names and addresses in a certificate, read by a child process.

    Raises:
        CertificateError: the chain has no valid certificate.
    """
    return tuple((await asyncio.to_thread(_run_minting, "names", data=pair.chain)).splitlines())


def _run_minting(*words: str, data: bytes = b"") -> str:
    """Run `minting` in a child process, and return its output; blocks. Raises CertificateError."""
    command = interpreter.command("ccm.serving.minting", *words)
    try:
        process = subprocess.run(  # noqa: S603 - our own module
            command, input=data, capture_output=True, timeout=_CHILD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CertificateError(f"certificate cannot be created or read: {error}") from error
    if process.returncode:
        last_line = process.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise CertificateError(f"certificate cannot be created or read: {last_line}")
    return process.stdout.decode()


CHECK_S = 60.0
"""Seconds between reads of the files (k8s.io/apiserver, dynamic certificates)."""


def build_context(
    rules: TlsPolicy,
    pair: KeyPair,
    authorities: bytes | None = None,
    *,
    require_certificate: bool = False,
) -> ssl.SSLContext:
    """Return the TLS context of a server; blocks for some milliseconds.

    Args:
        rules: TLS policy of the server.
        pair: certificate and key of the server.
        authorities: client CAs, PEM. None means that the server requests no client certificate.
        require_certificate: whether clients must send a certificate issued by one of these CAs;
            otherwise client certificates are optional.

    Raises:
        CertificateError: the certificate, key or CAs are unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _apply_policy(context, rules)
    # No session tickets: a resumed session could have a client certificate whose CA is no longer
    # trusted.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    if rules.groups and hasattr(context, "set_groups"):
        context.set_groups(":".join(rules.groups))
    elif rules.groups:
        # Before Python 3.15, only one group can be set: the first of the list.
        context.set_ecdh_curve(rules.groups[0])
    if authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED if require_certificate else ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii", errors="replace"))
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"client CAs cannot be used: {describe_error(error)}") from error
    try:
        pair.load_into(context)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CertificateError(f"certificate cannot be used: {describe_error(error)}") from error
    return context


def _apply_policy(context: ssl.SSLContext, rules: TlsPolicy) -> None:
    outdated = rules.minimum < ssl.TLSVersion.TLSv1_2
    with warnings.catch_warnings():
        # The administrator has configured a deprecated version explicitly.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = rules.minimum
    if rules.suites or outdated:
        level = ["@SECLEVEL=0"] if outdated else []
        context.set_ciphers(":".join([*(rules.suites or ("DEFAULT",)), *level]))


class _DelegatingContext(ssl.SSLContext):
    """TLS context that creates each new connection with the newest context.

    Attributes:
        newest: returns the newest context.
    """

    newest: Callable[[], ssl.SSLContext]

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.newest().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


class CertReloader:
    """Reloader of the TLS context of a running server.

    Args:
        rules: TLS policy of the server.
        certificates: sources of the server's certificates.
        client_ca_file: PEM file of client CAs, reloaded like the server's certificates; every
            caller must send a certificate that one of them issued. None means that `trust` sets
            the CAs.
    """

    def __init__(
        self,
        rules: TlsPolicy,
        certificates: CertificateSources,
        *,
        client_ca_file: Path | None = None,
    ) -> None:
        self._rules = rules
        self._certificates = certificates
        self._client_ca_file = client_ca_file
        self._log = log.logger("serving")
        self._loaded: LoadedCertificates | None = None
        self._authorities: bytes | None = None
        self._newest: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """TLS context for the server; new connections use the newest certificates and CAs.

        Call `start` before the first connection.
        """

        def newest() -> ssl.SSLContext:
            assert self._newest is not None
            return self._newest

        standing = _DelegatingContext(ssl.PROTOCOL_TLS_SERVER)
        standing.newest = newest
        return standing

    async def start(self) -> None:
        """Read certificates and CAs for the first time.

        Raises:
            CertificateError: a certificate or CA file is unusable.
        """
        self._adopt(await self._certificates.read(), await self._required_cas())

    def trust(self, authorities: bytes | None) -> None:
        """Set the CAs (PEM) of accepted client certificates.

        None means that the server requests no client certificates.

        Raises:
            CertificateError: the CAs are unusable; the previous CAs stay in use.
        """
        if authorities == self._authorities and self._newest is not None:
            return
        before, self._authorities = self._authorities, authorities
        if self._loaded is None:
            return
        try:
            self._newest = self._build_contexts(self._loaded, authorities)
        except CertificateError:
            self._authorities = before
            raise

    async def run(self) -> None:
        """Reload certificates and CAs periodically until cancelled; log each new error once."""
        logged = ""  # no `Outage`, which would log only the first of different errors
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.check()
            except CertificateError as error:
                if str(error) != logged:
                    self._log.warning(
                        "changed certificate rejected, keeping the previous one", error=str(error)
                    )
                logged = str(error)
            else:
                logged = ""

    async def check(self) -> None:
        """Read certificates and CAs, and apply them if they changed.

        Raises:
            CertificateError: a certificate or CA file is unusable; the previous certificates and
                CAs stay in use.
        """
        certificates, authorities = await self._certificates.read(), await self._required_cas()
        if (certificates, authorities) != (self._loaded, self._authorities):
            self._adopt(certificates, authorities)
            self._log.info("changed certificate applied")

    async def _required_cas(self) -> bytes | None:
        """Read the file of client CAs; without a file, return the CAs that `trust` has set."""
        if self._client_ca_file is None:
            return self._authorities
        try:
            return await asyncio.to_thread(self._client_ca_file.read_bytes)
        except OSError as error:
            cause = f"client CAs {self._client_ca_file} cannot be read: {describe_error(error)}"
            raise CertificateError(cause) from error

    def _adopt(self, certificates: LoadedCertificates, authorities: bytes | None) -> None:
        self._newest = self._build_contexts(certificates, authorities)
        self._loaded, self._authorities = certificates, authorities

    def _build_contexts(
        self, certificates: LoadedCertificates, authorities: bytes | None
    ) -> ssl.SSLContext:
        def context_of(pair: KeyPair) -> ssl.SSLContext:
            demanded = self._client_ca_file is not None
            return build_context(self._rules, pair, authorities, require_certificate=demanded)

        main = context_of(certificates.main)
        others = {pair: context_of(pair) for _names, pair in certificates.named}

        def choose(
            connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _context: ssl.SSLContext
        ) -> None:
            pair = certificates.for_name(name or "")
            if pair in others:
                connection.context = others[pair]

        if others:
            main.sni_callback = choose
        return main
