"""TLS of a server: where its certificates come from, and the context made of them and a policy.

`CertReloader` owns the context of a running server: it reads certificates and authorities again
and again, and a new connection gets what was read last.
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
from ccm.base.files import reason
from ccm.serving.policy import Policy

LIFETIME = timedelta(days=365)
"""How long a certificate of our own is valid (client-go, util/cert)."""

RENEW_BEFORE = timedelta(days=30)
"""A certificate in memory is replaced this long before its end."""

_CHILD_TIMEOUT_S = 60.0


class CertificateError(Exception):
    """A certificate or key cannot be used; the message says which and why."""


LOCAL = ("localhost", "127.0.0.1")
"""Hosts that each certificate of our own is for."""


def hosts_of(address: IPv4Address | IPv6Address) -> tuple[str, ...]:
    """Return the hosts of a server on this address: our own, and the address if it is one alone."""
    if address.is_unspecified:
        return (*LOCAL, "::1") if address.version == 6 else LOCAL
    return tuple(dict.fromkeys([*LOCAL, str(address)]))


Source = Callable[[], Awaitable[KeyPair]]
"""Reads a pair as it is now; raises CertificateError."""


def files(chain: Path, key: Path, *, called: tuple[str, str] = ("certificate ", "key ")) -> Source:
    """Return the source of a pair in two given files.

    Args:
        chain: path of the PEM chain, the server's own certificate first.
        key: path of its PEM key.
        called: what people call each of them, such as `--tls-cert-file=`.
    """
    return partial(asyncio.to_thread, _read, chain, key, called)


def directory(folder: Path, name: str, hosts: Sequence[str]) -> Source:
    """Return the source of a pair in a directory, made there when it cannot be read.

    Args:
        folder: the directory; made if it is missing.
        name: of the files `<name>.crt` and `<name>.key`.
        hosts: names and addresses that a new certificate is for.
    """
    chain, key = folder / f"{name}.crt", folder / f"{name}.key"

    def write(pair: KeyPair) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # The key first: who follows the chain's file finds both in place.
            _replace(key, pair.key, 0o600)
            _replace(chain, pair.chain, 0o644)
        except OSError as error:
            raise CertificateError(
                f"a new certificate cannot be kept in {folder}: {reason(error)}"
            ) from error

    async def read() -> KeyPair:
        try:
            return await asyncio.to_thread(_read, chain, key)
        except CertificateError:
            pair = await mint(hosts, now=clock.now())
        await asyncio.to_thread(write, pair)
        return pair

    return read


def memory(hosts: Sequence[str]) -> Source:
    """Return the source of a pair that lives in this process only; it is renewed in time."""
    made: tuple[KeyPair, datetime] | None = None

    async def read() -> KeyPair:
        nonlocal made
        now = clock.now()
        if made is None or now >= made[1]:
            made = await mint(hosts, now=now), now + LIFETIME - RENEW_BEFORE
        return made[0]

    return read


class Named(NamedTuple):
    """A certificate for some host names only.

    Attributes:
        source: where it comes from.
        names: host names it serves, `*.` prefixes allowed; empty: those it carries.
    """

    source: Source
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """All certificates of a server, read.

    Attributes:
        main: for every name that no other is for.
        named: (names, pair) in order of preference.
    """

    main: KeyPair
    named: tuple[tuple[tuple[str, ...], KeyPair], ...] = ()

    def for_name(self, name: str) -> KeyPair:
        """The pair for the host name a caller asks for; an exact name beats a wildcard."""
        wanted = name.lower().rstrip(".")
        parent = "*." + wanted.partition(".")[2]
        for candidate in (wanted, parent):
            for names, pair in self.named:
                if candidate in names:
                    return pair
        return self.main


class Certificates:
    """All certificates of one server.

    Args:
        main: where the certificate comes from that every name without its own gets.
        named: those for some names only, in order of preference.
    """

    def __init__(self, main: Source, named: Sequence[Named] = ()) -> None:
        self._main = main
        self._named = tuple(named)
        self._carried: dict[bytes, tuple[str, ...]] = {}

    async def read(self) -> Loaded:
        """Read all; `CertificateError` if one cannot be read."""
        named = []
        for entry in self._named:
            pair = await entry.source()
            names = entry.names
            if not names:
                if pair.chain not in self._carried:
                    self._carried[pair.chain] = await names_in(pair)
                names = self._carried[pair.chain]
            named.append((tuple(name.lower().rstrip(".") for name in names), pair))
        return Loaded(main=await self._main(), named=tuple(named))


def _read(chain: Path, key: Path, called: tuple[str, str] = ("", "")) -> KeyPair:
    read = []
    for path, name in zip((chain, key), called, strict=True):
        try:
            read.append(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CertificateError(f"{name}{path} cannot be read: {reason(error)}") from error
    return KeyPair(chain=read[0], key=read[1])


def _replace(path: Path, content: bytes, mode: int) -> None:
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    new.replace(path)


async def mint(hosts: Sequence[str], *, now: datetime) -> KeyPair:
    """Make a pair that vouches for itself; takes a fraction of a second.

    Raises:
        CertificateError: it cannot be made.
    """
    words = (now.isoformat(), str(LIFETIME.total_seconds()), *hosts)
    made = await asyncio.to_thread(_child, "mint", *words)
    chain, mark, key = made.partition("-----BEGIN PRIVATE")
    return KeyPair(chain=chain.encode(), key=f"{mark}{key}".encode())


async def names_in(pair: KeyPair) -> tuple[str, ...]:
    """Return the host names and addresses that a certificate carries.

    Raises:
        CertificateError: it is no certificate.
    """
    return tuple((await asyncio.to_thread(_child, "names", data=pair.chain)).splitlines())


def _child(*words: str, data: bytes = b"") -> str:
    """Return the output of the process that loads `cryptography`; blocking."""
    command = interpreter.command("ccm.serving.minting", *words)
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, input=data, capture_output=True, timeout=_CHILD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CertificateError(f"certificate cannot be made: {error}") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise CertificateError(f"certificate cannot be made: {last}")
    return done.stdout.decode()


CHECK_S = 60.0
"""How often files are looked at (k8s.io/apiserver, dynamic certificates)."""


def build(
    rules: Policy, pair: KeyPair, authorities: bytes | None = None, *, demanded: bool = False
) -> ssl.SSLContext:
    """A server's context; blocking for some milliseconds.

    Args:
        rules: what it accepts.
        pair: its certificate.
        authorities: who certifies callers, PEM; then a caller may show a certificate, and
            need not. None: callers are not asked for one.
        demanded: whoever shows none of these authorities is refused.

    Raises:
        CertificateError: the certificate, key or authorities cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _allow(context, rules)
    # A resumed session would bring back a caller whose authority is trusted no more.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    if rules.groups and hasattr(context, "set_groups"):
        context.set_groups(":".join(rules.groups))
    elif rules.groups:
        # Before Python 3.15 one group can be set: the rest would only have been allowed too.
        context.set_ecdh_curve(rules.groups[0])
    if authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED if demanded else ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii", errors="replace"))
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"client authorities cannot be used: {reason(error)}") from error
    try:
        pair.load_into(context)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CertificateError(f"certificate cannot be used: {reason(error)}") from error
    return context


def _allow(context: ssl.SSLContext, rules: Policy) -> None:
    outdated = rules.minimum < ssl.TLSVersion.TLSv1_2
    with warnings.catch_warnings():
        # Who asks for an outdated version by its name knows that it is.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = rules.minimum
    if rules.suites or outdated:
        level = ["@SECLEVEL=0"] if outdated else []
        context.set_ciphers(":".join([*(rules.suites or ("DEFAULT",)), *level]))


class _Current(ssl.SSLContext):
    """Stands for the newest context: each new connection is made of that."""

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
    """Keeps the TLS context of a running server up to date.

    Args:
        rules: what the server accepts.
        certificates: where its certificates come from.
        callers: file of the authorities that every caller must have a certificate of, PEM;
            followed like the certificates. None: `trust` says whom to believe.
    """

    def __init__(
        self, rules: Policy, certificates: Certificates, *, callers: Path | None = None
    ) -> None:
        self._rules = rules
        self._certificates = certificates
        self._callers = callers
        self._log = log.logger("serving")
        self._loaded: Loaded | None = None
        self._authorities: bytes | None = None
        self._newest: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """For the listener; once made it follows every change. `start` comes first."""

        def newest() -> ssl.SSLContext:
            assert self._newest is not None
            return self._newest

        standing = _Current(ssl.PROTOCOL_TLS_SERVER)
        standing.newest = newest
        return standing

    async def start(self) -> None:
        """Read the certificates for the first time.

        Raises:
            CertificateError: they cannot be used.
        """
        self._adopt(await self._certificates.read(), await self._demanded())

    def trust(self, authorities: bytes | None) -> None:
        """From now on believe client certificates of these authorities (PEM) alone.

        None: callers are not asked for a certificate.

        Raises:
            CertificateError: they cannot be used; the old ones stay.
        """
        if authorities == self._authorities and self._newest is not None:
            return
        before, self._authorities = self._authorities, authorities
        if self._loaded is None:
            return
        try:
            self._newest = self._contexts(self._loaded, authorities)
        except CertificateError:
            self._authorities = before
            raise

    async def run(self) -> None:
        """Follow the certificates until cancelled; unusable new ones are said once."""
        said = ""  # no outage: another fault is another file, and somebody has to know
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.check()
            except CertificateError as error:
                if str(error) != said:
                    self._log.warning(
                        "changed certificate cannot be used, the old stays", error=str(error)
                    )
                said = str(error)
            else:
                said = ""

    async def check(self) -> None:
        """Read the certificates and use them if they changed.

        Raises:
            CertificateError: they cannot be used; the old ones stay.
        """
        found, authorities = await self._certificates.read(), await self._demanded()
        if (found, authorities) != (self._loaded, self._authorities):
            self._adopt(found, authorities)
            self._log.info("changed certificate is in use")

    async def _demanded(self) -> bytes | None:
        """Whom callers must be certified by; as it stands where no file says so."""
        if self._callers is None:
            return self._authorities
        try:
            return await asyncio.to_thread(self._callers.read_bytes)
        except OSError as error:
            said = f"client authorities {self._callers} cannot be read: {reason(error)}"
            raise CertificateError(said) from error

    def _adopt(self, found: Loaded, authorities: bytes | None) -> None:
        self._newest = self._contexts(found, authorities)
        self._loaded, self._authorities = found, authorities

    def _contexts(self, found: Loaded, authorities: bytes | None) -> ssl.SSLContext:
        def made(pair: KeyPair) -> ssl.SSLContext:
            demanded = self._callers is not None
            return build(self._rules, pair, authorities, demanded=demanded)

        main = made(found.main)
        others = {pair: made(pair) for _names, pair in found.named}

        def choose(
            connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _context: ssl.SSLContext
        ) -> None:
            pair = found.for_name(name or "")
            if pair in others:
                connection.context = others[pair]

        if others:
            main.sni_callback = choose
        return main
