"""Serving certificates of kubelets: the requests that may be approved. No I/O.

The API server authenticates only the node that creates a CertificateSigningRequest. The names in
the certificate are those of the embedded PKCS #10 request, so each of them is compared with the
node's Machine. The signer parses the request again: a form that two parsers may read differently
is refused.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence

from ccm.model.certificates import CertificateSigningRequest
from ccm.model.ip import IP, parse_ip
from ccm.model.machines import Machine

USER_PREFIX = "system:node:"
"""Prefix of a kubelet's user name; the name of its node follows (Kubernetes)."""

_ORGANIZATION = "system:nodes"
_GROUPS = frozenset({_ORGANIZATION, "system:authenticated"})
_SERVER_AUTH = "server auth"
_USAGES = frozenset({"digital signature", "key encipherment", _SERVER_AUTH})

_PEM = re.compile(
    rb"-----BEGIN CERTIFICATE REQUEST-----\r?\n([A-Za-z0-9+/=\r\n]+)"
    rb"-----END CERTIFICATE REQUEST-----\s*"
)
_EXTENSION_REQUEST = "1.2.840.113549.1.9.14"
"""Attribute of a request that contains the wanted extensions (PKCS #9)."""

_MAX_NAMES, _MAX_LENGTH = 3, 256
"""Maximum number of names in a message, and of characters of a name: a request may be very long."""


class RequestRefused(Exception):
    """The request must not be approved; the message names the field and the required value."""


def requesting_node(obj: CertificateSigningRequest, signer: str) -> str:
    """Return the name of the node that created a request for a serving certificate.

    Args:
        obj: the request.
        signer: name of the signer of serving certificates.

    Raises:
        RequestRefused: signer, user, groups or usages are not those of a kubelet's request.
    """
    spec = obj.spec
    given = f"spec.signerName is {spec.signer_name!r}"
    _require(spec.signer_name == signer, f"{given}; it must be {signer!r}")
    node, given = spec.username.removeprefix(USER_PREFIX), f"spec.username is {spec.username!r}"
    is_node = node not in ("", spec.username)
    _require(is_node, f"{given}; it must be {USER_PREFIX!r} and the name of a node")
    missing, usages = _GROUPS.difference(spec.groups or ()), {*(spec.usages or ())}
    _require(not missing, f"spec.groups lacks {_listed(missing)}")
    given = f"spec.usages is {_listed(usages) or 'empty'}; it must contain {_SERVER_AUTH!r}"
    _require(_SERVER_AUTH in usages <= _USAGES, f"{given}, and only {_listed(_USAGES)}")
    return node


def requested_names(obj: CertificateSigningRequest) -> frozenset[IP | str]:
    """Return the alternative names in a request; DNS names in lower case.

    The first call imports `cryptography`, which takes memory and time: call it in a thread.

    Raises:
        RequestRefused: the request is malformed, its signature is wrong, its subject is not the
            user, or its names are missing or neither DNS names nor IP addresses.
    """
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    block = _PEM.fullmatch(obj.spec.request)
    if block is None:
        raise RequestRefused("spec.request must be one PEM block CERTIFICATE REQUEST, no more")
    try:
        content = base64.b64decode(b"".join(block[1].split()), validate=True)
        request = x509.load_der_x509_csr(content)
        is_signed = request.is_signature_valid
        subject = [(attribute.oid, attribute.value) for attribute in request.subject]
        attributes = [attribute.oid.dotted_string for attribute in request.attributes]
        alternatives = [
            name
            for extension in request.extensions
            if isinstance(extension.value, x509.SubjectAlternativeName)
            for name in extension.value
        ]
    except Exception as error:  # the bytes are untrusted
        raise RequestRefused(f"spec.request cannot be parsed: {error}") from error
    _require(is_signed, "spec.request is not signed with its own key")
    user = {(NameOID.COMMON_NAME, obj.spec.username), (NameOID.ORGANIZATION_NAME, _ORGANIZATION)}
    given = f"spec.request is for {_listed([request.subject.rfc4514_string()])}"
    is_user = len(subject) == len(user) and set(subject) == user
    _require(is_user, f"{given}; it must be for 'CN={obj.spec.username},O={_ORGANIZATION}'")
    # Parsers disagree on which of several attributes with extensions counts.
    is_clear = attributes in ([], [_EXTENSION_REQUEST])
    _require(is_clear, "spec.request may have only one attribute, which contains extensions")
    names: set[IP | str] = set()
    for alternative in alternatives:
        match alternative:
            case x509.DNSName(value=name):
                names.add(name.lower())
            case x509.IPAddress(value=address):
                names.add(parse_ip(str(address)) or str(address))
            case _:
                kind = type(alternative).__name__
                raise RequestRefused(
                    f"spec.request has a {kind}; only DNS names and IPs are allowed"
                )
    _require(bool(names), "spec.request must have a DNS name or an IP address")
    return frozenset(names)


def check_names(names: frozenset[IP | str], machines: Sequence[Machine]) -> Machine:
    """Return the Machine that a node's certificate may be issued for.

    Args:
        names: the requested names.
        machines: the Machines whose status names the node.

    Raises:
        RequestRefused: there is no such Machine or more than one, or a name is neither the node's
            name nor an address of the Machine.
    """
    shown = _listed(machine.key for machine in machines) or "no Machine"
    _require(len(machines) == 1, f"the node must be named by one Machine; it is named by {shown}")
    (machine,) = machines
    addresses = (address.address for address in machine.status.addresses)
    own = {parse_ip(text) or text.lower() for text in (machine.node_name, *addresses)}
    foreign, where = names - own, f"address in the status of Machine {machine.key}"
    text = f"{_listed(map(str, foreign))} in spec.request is neither the node's name nor an {where}"
    _require(not foreign, text)
    return machine


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise RequestRefused(message)


def _listed(names: Iterable[str]) -> str:
    """Return sorted names as text: only the first ones, and the beginning of each."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _MAX_NAMES} more" if len(ordered) > _MAX_NAMES else ""
    return ", ".join(repr(name[:_MAX_LENGTH]) for name in ordered[:_MAX_NAMES]) + more
