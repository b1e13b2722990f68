"""Who a caller is: a user with groups, as Kubernetes knows them, and how a certificate names one.

A client certificate's common name is the user, its organisations are the groups. Names and
meanings are those of k8s.io/apiserver, authentication/user and request/x509.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from ccm.serving.http import Caller

ANONYMOUS_NAME = "system:anonymous"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"

_UID_ATTRIBUTE = "1.3.6.1.4.1.57683.2"
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody who asks.

    Attributes:
        name: user name.
        uid: tells users of one name apart; often empty.
        groups: in their order.
        extra: further facts, each with several values.
    """

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def authenticated(self) -> User:
        """The same, as a member of the group of all who have proved who they are."""
        if self.name == ANONYMOUS_NAME or {AUTHENTICATED, UNAUTHENTICATED} & {*self.groups}:
            return self
        return User(
            name=self.name,
            uid=self.uid,
            groups=(*self.groups, AUTHENTICATED),
            extra=self.extra,
        )


ANONYMOUS = User(name=ANONYMOUS_NAME, groups=(UNAUTHENTICATED,))
"""Whoever shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """Whose certificates are believed for one purpose; no PEM believes none.

    Attributes:
        pem: the bundle.
        members: its certificates in DER.
    """

    pem: bytes = b""
    members: frozenset[bytes] = field(default_factory=frozenset, repr=False)

    @classmethod
    def of(cls, pem: bytes) -> Authorities:
        """Those of a PEM bundle.

        Raises:
            ValueError: it holds no certificate, or something broken.
        """
        found = frozenset(_certificates(pem))
        if not found:
            raise ValueError("no certificate found in the certificate authority data")
        return cls(pem=pem, members=found)

    def vouch_for(self, caller: Caller) -> bool:
        """Whether the caller's chain, verified by TLS, leads to one of these."""
        return any(link in self.members for link in caller.chain)


def _certificates(pem: bytes) -> Iterable[bytes]:
    for block in pem.split(_BEGIN)[1:]:
        body, end, _rest = block.partition(_END)
        if not end:
            raise ValueError("a certificate in the certificate authority data is cut short")
        text = (_BEGIN + body + _END).decode("ascii", errors="replace")
        yield ssl.PEM_cert_to_DER_cert(text)


def user_of(certificate: Mapping[str, object]) -> User | None:
    """The user that a certificate (as `ssl` tells it) names; None if it names nobody."""
    facts = _subject(certificate)
    name = common_name(certificate)
    if not name:
        return None
    return User(
        name=name,
        uid=next(iter(facts.get(_UID_ATTRIBUTE, ())), ""),
        groups=tuple(facts.get("organizationName", ())),
    )


def common_name(certificate: Mapping[str, object]) -> str:
    """The common name of a certificate; may be empty. Of several the last counts, as in Go."""
    return next(reversed(_subject(certificate).get("commonName", ())), "")


def is_over(certificate: Mapping[str, object], now: datetime) -> bool:
    """Whether the time of a certificate is over; TLS looks only when a connection begins."""
    end = certificate.get("notAfter")
    return isinstance(end, str) and ssl.cert_time_to_seconds(end) < now.timestamp()


def _subject(certificate: Mapping[str, object]) -> Mapping[str, tuple[str, ...]]:
    facts: dict[str, tuple[str, ...]] = {}
    parts = cast("Iterable[Iterable[tuple[str, Any]]]", certificate.get("subject", ()))
    for part in parts:
        for name, value in part:
            facts[name] = (*facts.get(name, ()), str(value))
    return facts
