"""Which requests for serving certificates may be approved."""

from __future__ import annotations

import base64
import ipaddress
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import AttributeOID

from ccm.kubermatic.names import SIGNER
from ccm.machines.serving_certificates import (
    RequestRefused,
    check_names,
    requested_names,
    requesting_node,
)
from ccm.model import NodeAddress, ObjectMeta
from ccm.model.certificates import CertificateSigningRequest, RequestSpec
from ccm.model.machines import Machine, MachineStatus
from ccm.model.times import EPOCH
from tests.conformance.table import case
from tests.pki import alternative, signing_request

USER = "system:node:n1"
PEM = signing_request(USER, alternative("n1"), alternative("10.0.0.1"))
ADDRESSES = ("10.0.0.1", "FD00:0::1", "n1.Example.COM")


def given(**fields: Any) -> CertificateSigningRequest:
    spec = {
        "request": PEM,
        "signer_name": SIGNER,
        "usages": ["digital signature", "key encipherment", "server auth"],
        "username": USER,
        "groups": ["system:nodes", "system:authenticated"],
        **fields,
    }
    return CertificateSigningRequest(metadata=ObjectMeta(name="csr"), spec=RequestSpec(**spec))


def machine(name: str = "n1", *addresses: str) -> Machine:
    known = tuple(NodeAddress(type="InternalIP", address=one) for one in addresses)
    return Machine(
        metadata=ObjectMeta(name=name, namespace="default"),
        created=EPOCH,
        node_name="n1",
        status=MachineStatus(addresses=known),
    )


def check(request: CertificateSigningRequest, *machines: Machine) -> Machine:
    """All checks in the order of the controller."""
    requesting_node(request, SIGNER)
    return check_names(requested_names(request), machines)


@pytest.mark.row("kubermatic-approver-01")
@pytest.mark.parametrize(
    "names",
    [
        ["n1"],
        ["N1", "n1.example.com"],
        ["10.0.0.1"],
        ["fd00::1", "fd00:0:0::0001"],
        ["::ffff:10.0.0.1"],
        ["n1", "n1.EXAMPLE.com", "10.0.0.1", "fd00::1"],
    ],
    ids=" ".join,
)
def test_names_and_addresses_of_the_machine_are_compared_as_values(names: list[str]) -> None:
    request = given(request=signing_request(USER, *map(alternative, names)))

    assert requesting_node(request, SIGNER) == "n1"
    assert check(request, machine("n1", *ADDRESSES)).name == "n1"


@pytest.mark.row("kubermatic-approver-01")
def test_request_without_encipherment_and_with_further_groups_is_valid() -> None:
    """Kubelets with another key than RSA need no encipherment."""
    request = given(
        usages=["server auth", "digital signature"],
        groups=["system:authenticated", "more", "system:nodes"],
    )

    assert check(request, machine("n1", *ADDRESSES)).name == "n1"


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        case("kubermatic-approver-02", {"signer_name": "example.com/s"}, "signerName", "example"),
        case(
            "kubermatic-approver-02",
            {"signer_name": "kubernetes.io/kube-apiserver-client-kubelet"},
            "signerName",
            "client-kubelet",
        ),
        case("kubermatic-approver-03", {"username": "n1"}, "username", "'n1'"),
        case("kubermatic-approver-03", {"username": "system:node:"}, "username", "system:node:"),
        case("kubermatic-approver-03", {"username": "system:nodes:n1"}, "username", "nodes:n1"),
        case("kubermatic-approver-03", {"groups": ["system:nodes"]}, "groups", "authenticated"),
        case(
            "kubermatic-approver-03", {"groups": ["system:authenticated"]}, "groups", "system:nodes"
        ),
        case("kubermatic-approver-03", {"groups": None}, "groups", "system:nodes"),
        case(
            "kubermatic-approver-03",
            {"usages": ["server auth", "client auth"]},
            "usages",
            "client auth",
        ),
        case("kubermatic-approver-03", {"usages": ["digital signature"]}, "usages", "server auth"),
        case("kubermatic-approver-03", {"usages": None}, "usages", "server auth"),
    ],
)
def test_object_of_another_kind_is_refused(fields: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        requesting_node(given(**fields), SIGNER)

    assert f"spec.{field}" in str(refused.value)
    assert value in str(refused.value)


def tampered() -> bytes:
    """A request whose signature belongs to other names."""
    content = signing_request(USER, alternative("n1"), encoding=Encoding.DER)
    forged = content.replace(b"\x82\x02n1", b"\x82\x02n2")
    assert forged != content
    return armored(forged)


def armored(content: bytes, kind: bytes = b"CERTIFICATE REQUEST") -> bytes:
    """Bytes as PEM."""
    text = base64.encodebytes(content)
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (kind, text, kind)


DER = signing_request(USER, alternative("n1"), encoding=Encoding.DER)
NETWORK = x509.IPAddress(ipaddress.ip_network("10.0.0.0/8"))


@pytest.mark.row("kubermatic-approver-04")
@pytest.mark.parametrize(
    ("request_bytes", "message"),
    [
        pytest.param(b"", "one PEM block", id="nothing"),
        pytest.param(PEM + PEM, "one PEM block", id="two blocks"),
        pytest.param(b"text\n" + PEM, "one PEM block", id="text before it"),
        pytest.param(PEM + b"text", "one PEM block", id="text after it"),
        pytest.param(
            PEM.replace(b"REQUEST-----\n", b"REQUEST-----\nA: b\n\n", 1), "one PEM", id="headers"
        ),
        pytest.param(armored(DER, b"CERTIFICATE"), "one PEM block", id="another type"),
        pytest.param(armored(DER[:-9]), "cannot be parsed", id="cut"),
        pytest.param(armored(DER + b"more"), "cannot be parsed", id="bytes after it"),
        pytest.param(armored(b"\x30\x00"), "cannot be parsed", id="no request"),
        pytest.param(tampered(), "not signed with its own key", id="signature"),
        pytest.param(signing_request(USER), "must have a DNS name", id="no names"),
        pytest.param(
            signing_request("system:node:n2", alternative("n1")), "system:node:n2", id="subject"
        ),
        pytest.param(signing_request("n1", alternative("n1")), "it must be for", id="no prefix"),
        pytest.param(
            signing_request(USER, alternative("n1"), groups=()), "it must be for", id="no group"
        ),
        pytest.param(
            signing_request(USER, alternative("n1"), groups=("system:nodes", "system:masters")),
            "system:masters",
            id="two groups",
        ),
        pytest.param(
            signing_request(USER, alternative("n1"), groups=("system:nodes", "system:nodes")),
            "it must be for",
            id="a group twice",
        ),
        pytest.param(
            signing_request(USER, x509.UniformResourceIdentifier("https://n1")), "Uniform", id="URI"
        ),
        pytest.param(
            signing_request(USER, alternative("n1"), x509.RFC822Name("a@n1")), "RFC822", id="mail"
        ),
        pytest.param(
            signing_request(
                USER, alternative("n1"), attribute=(AttributeOID.CHALLENGE_PASSWORD, b"secret")
            ),
            "only one attribute",
            id="two attributes",
        ),
    ],
)
def test_malformed_request_or_subject_is_refused(request_bytes: bytes, message: str) -> None:
    with pytest.raises(RequestRefused, match=r"^spec\.request") as refused:
        requested_names(given(request=request_bytes))

    assert message in str(refused.value)


EXTENSION_REQUEST = bytes.fromhex("06092a864886f70d01090e")
EXTENSION_REQUEST_OF_MICROSOFT = bytes.fromhex("060a2b06010401823702010e")
ECDSA_WITH_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")


def tlv(tag: int, content: bytes) -> bytes:
    """A value in DER."""
    count = len(content).to_bytes(2)
    if count < b"\1\0":
        count = count[1:] if count[1] < 128 else b"\x81" + count[1:]
    else:
        count = b"\x82" + count
    return bytes([tag]) + count + content


@pytest.mark.row("kubermatic-approver-04")
def test_extensions_in_two_attributes_are_refused() -> None:
    """Go reads the standard attribute, and other parsers the first one: the names may differ."""
    parts = []
    for name in ("n1", "n2"):
        content = signing_request(USER, alternative(name), encoding=Encoding.DER)
        info = x509.load_der_x509_csr(content).tbs_certrequest_bytes
        head, values = info.split(EXTENSION_REQUEST)
        parts.append((head[3:-4], values))  # without the headers of the whole and of the attributes
    (_, shown), (head, hidden) = parts
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    attributes = sorted(
        tlv(0x30, kind + values)
        for kind, values in ((EXTENSION_REQUEST_OF_MICROSOFT, shown), (EXTENSION_REQUEST, hidden))
    )
    info = tlv(0x30, head[: -len(public)] + public + tlv(0xA0, b"".join(attributes)))
    signature = key.sign(info, ec.ECDSA(hashes.SHA256()))
    forged = tlv(0x30, info + ECDSA_WITH_SHA256 + tlv(0x03, b"\0" + signature))
    assert x509.load_der_x509_csr(forged).is_signature_valid

    with pytest.raises(RequestRefused, match="only one attribute"):
        requested_names(given(request=armored(forged)))


@pytest.mark.row("kubermatic-approver-05")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (alternative("n2"), "'n2'"),
        (alternative("*.example.com"), "*.example.com"),
        (alternative("10.0.0.2"), "10.0.0.2"),
        (alternative("fd00::2"), "fd00::2"),
        (x509.DNSName("10.0.0.1"), "10.0.0.1"),
        (NETWORK, "10.0.0.0/8"),
    ],
    ids=str,
)
def test_name_that_is_not_of_the_machine_is_refused(name: x509.GeneralName, shown: str) -> None:
    request = given(request=signing_request(USER, alternative("n1"), name))

    with pytest.raises(RequestRefused, match="nor an address in the status") as refused:
        check(request, machine("n1", *ADDRESSES))

    assert shown in str(refused.value)
    assert "Machine default/n1" in str(refused.value)


@pytest.mark.row("kubermatic-approver-05")
def test_node_of_no_machine_or_of_two_is_refused() -> None:
    names = requested_names(given())

    with pytest.raises(RequestRefused, match="named by no Machine"):
        check_names(names, [])
    with pytest.raises(RequestRefused, match="'default/a', 'default/b'"):
        check_names(names, [machine("a", *ADDRESSES), machine("b", *ADDRESSES)])


def test_message_has_only_the_first_names() -> None:
    """A request may have a megabyte of names."""
    many = [alternative(f"{'x' * 60}.{number:04}.example") for number in range(2000)]

    with pytest.raises(RequestRefused, match="and 1997 more") as refused:
        check(given(request=signing_request(USER, *many)), machine())

    assert len(str(refused.value)) < 1000
