"""TLS of a server: the context made of a policy and certificates.

`CertReloader` owns the context of a running server: it reads certificates and authorities again
and again, and a new connection gets what was read last.
"""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import Callable
from pathlib import Path

from ccm.base import log
from ccm.base.credentials import KeyPair
from ccm.base.files import reason
from ccm.serving.certs import CertificateError, Certificates, Loaded
from ccm.serving.policy import Policy

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
        standing = _Current(ssl.PROTOCOL_TLS_SERVER)
        standing.newest = self._current
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

    def _current(self) -> ssl.SSLContext:
        assert self._newest is not None
        return self._newest

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
