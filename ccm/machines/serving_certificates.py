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
"""Maximum number of names in a message, and their length: a request may have a megabyte."""


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
    if spec.signer_name != signer:
        raise RequestRefused(f"spec.signerName is {spec.signer_name!r}; it must be {signer!r}")
    node = spec.username.removeprefix(USER_PREFIX)
    if not node or node == spec.username:
        text = f"spec.username is {spec.username!r}; it must be {USER_PREFIX!r} and a node's name"
        raise RequestRefused(text)
    if missing := _GROUPS.difference(spec.groups or ()):
        raise RequestRefused(f"spec.groups lacks {_listed(missing)}")
    usages = set(spec.usages or ())
    if _SERVER_AUTH not in usages or not usages <= _USAGES:
        text = f"spec.usages is {sorted(usages)}; it must contain {_SERVER_AUTH!r}, and only"
        raise RequestRefused(f"{text} {_listed(_USAGES)}")
    return node


def requested_names(obj: CertificateSigningRequest) -> frozenset[IP | str]:
    """Return the alternative names in a request; DNS names in lower case.

    The first call imports `cryptography`, which takes memory and time: call it in a thread.

    Raises:
        RequestRefused: the request is malformed, its signature is wrong, its subject is not the
            user, or it has no names or others than DNS names and IP addresses.
    """
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    block = _PEM.fullmatch(obj.spec.request)
    if block is None:
        raise RequestRefused(
            "spec.request must be one PEM block of the type CERTIFICATE REQUEST, and nothing else"
        )
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
    if not is_signed:
        raise RequestRefused("spec.request is not signed with its own key")
    user = {(NameOID.COMMON_NAME, obj.spec.username), (NameOID.ORGANIZATION_NAME, _ORGANIZATION)}
    if len(subject) != len(user) or set(subject) != user:
        text = f"spec.request is for {_shown(request.subject.rfc4514_string())}; it must be for"
        raise RequestRefused(f"{text} 'CN={obj.spec.username},O={_ORGANIZATION}'")
    if attributes not in ([], [_EXTENSION_REQUEST]):
        # Parsers disagree on which of several attributes with extensions counts.
        raise RequestRefused("spec.request must have no attribute but one with extensions")
    names: set[IP | str] = set()
    for alternative in alternatives:
        match alternative:
            case x509.DNSName(value=name):
                names.add(name.lower())
            case x509.IPAddress(value=address):
                names.add(parse_ip(str(address)) or str(address))
            case _:
                text = f"spec.request has a name of the type {type(alternative).__name__}; it must"
                raise RequestRefused(f"{text} have only DNS names and IP addresses")
    if not names:
        raise RequestRefused("spec.request must have a DNS name or an IP address")
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
    if len(machines) != 1:
        shown = _listed(machine.key for machine in machines) or "no Machine"
        raise RequestRefused(f"the node must be named by one Machine; it is named by {shown}")
    (machine,) = machines
    addresses = (address.address for address in machine.status.addresses)
    own = {parse_ip(text) or text.lower() for text in (machine.node_name, *addresses)}
    if foreign := names - own:
        text = f"{_listed(map(str, foreign))} in spec.request is neither the node's name nor an"
        raise RequestRefused(f"{text} address in the status of Machine {machine.key}")
    return machine


def _listed(names: Iterable[str]) -> str:
    """Return sorted names as text, only the first ones if there are many."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _MAX_NAMES} more" if len(ordered) > _MAX_NAMES else ""
    return ", ".join(map(_shown, ordered[:_MAX_NAMES])) + more


def _shown(text: str) -> str:
    return repr(text[:_MAX_LENGTH])
