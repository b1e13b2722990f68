"""Serving certificates of kubelets: requests, and signatures after the approval.

The module stands in for kubelets with `serverTLSBootstrap` and for the signer of
kube-controller-manager. The daemon approves the requests. No program uses the certificates.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from ccm.base import clock
from ccm.kube.client import Client
from ccm.kube.errors import AlreadyExists
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import CERTIFICATE_REQUESTS, NODES
from ccm.kubermatic.names import SIGNER
from ccm.machines.serving_certificates import USER_PREFIX
from ccm.model import Node
from ccm.model.certificates import CertificateSigningRequest
from ccm.model.ip import parse_ip
from ccm.runtime.controller import DONE, IDLE, Controller, ReconcileResult, Watch

LIFETIME = timedelta(days=365)
"""Lifetime of a certificate (kube-controller-manager, --cluster-signing-duration)."""

GROUP = "system:nodes"
"""Group of kubelets, and organization in their certificates (Kubernetes)."""

_MAX_COMMON_NAME = 64
"""Maximum length of a common name (RFC 5280). Go does not check it, the package `cryptography`
does."""


class ServingCertificates:
    """Requests a certificate for each node with an IP address, and signs approved requests.

    Args:
        informers: informers; the caller runs them.
        client: client of an administrator, without a rate limit.

    Attributes:
        controllers: controllers of requests and signatures; the caller runs them.
    """

    def __init__(self, informers: SharedInformers, client: Client) -> None:
        self._nodes = informers.informer_for(NODES)
        self._requests = informers.informer_for(CERTIFICATE_REQUESTS)
        self._client, self._api = client, client.resource(CERTIFICATE_REQUESTS)
        self._key: Any = None
        self.controllers: Sequence[Controller] = (
            Controller(
                "certificate-requests",
                queue="sandbox-certificate-requests",
                reconcile=self.request,
                watches=[Watch(informer=self._nodes, changed=_has_got_address)],
            ),
            Controller(
                "certificate-signer",
                queue="sandbox-certificate-signer",
                reconcile=self.sign,
                watches=[Watch(informer=self._requests, changed=_was_approved)],
            ),
        )

    async def request(self, name: str) -> ReconcileResult:
        """Request a certificate as the user of a node, once for each registration of the node.

        Raises:
            KubeError: the request failed.
        """
        node, user = self._nodes.store.get(name), f"{USER_PREFIX}{name}"
        if node is None or len(user) > _MAX_COMMON_NAME:
            return IDLE
        names = list(dict.fromkeys(address.address for address in node.addresses))
        content = await asyncio.to_thread(_signing_request, user, names)
        body = {
            "apiVersion": CERTIFICATE_REQUESTS.api_version,
            "kind": CERTIFICATE_REQUESTS.kind,
            "metadata": {"name": f"csr-{node.uid}"},
            "spec": {
                "signerName": SIGNER,
                "request": base64.b64encode(content).decode(),
                "usages": ["digital signature", "server auth"],
                # kube-apiserver sets both from the impersonation; the built-in server does not.
                "username": user,
                "groups": [GROUP, "system:authenticated"],
            },
        }
        with contextlib.suppress(AlreadyExists):
            await self._client.raw(
                "POST",
                CERTIFICATE_REQUESTS.path(),
                body=msgspec.json.encode(body),
                headers={"Impersonate-User": user, "Impersonate-Group": GROUP},
            )
        return DONE

    async def sign(self, name: str) -> ReconcileResult:
        """Sign an approved request.

        Raises:
            KubeError: the certificate could not be written.
        """
        request = self._requests.store.get(name)
        if request is None:
            return IDLE
        certificate = await asyncio.to_thread(self._certificate, request.spec.request)
        status = {"certificate": base64.b64encode(certificate).decode()}
        await self._api.patch_merge(name, {"status": status}, subresource="status")
        return DONE

    def _certificate(self, content: bytes) -> bytes:
        """Return the certificate of a PKCS #10 request, both in PEM."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        self._key = self._key or ec.generate_private_key(ec.SECP256R1())
        request, now = x509.load_pem_x509_csr(content), clock.now()
        builder = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sandbox")]))
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        )
        for extension in request.extensions:
            builder = builder.add_extension(extension.value, critical=extension.critical)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _signing_request(user: str, names: Sequence[str]) -> bytes:
    """Return a PKCS #10 request (PEM) for names and IP addresses, signed with a new key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, GROUP)
    alternatives = [
        x509.DNSName(name) if (ip := parse_ip(name)) is None else x509.IPAddress(ip)
        for name in names
    ]
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, user)]))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM)


def _has_got_address(old: Node | None, new: Node | None, _: bool) -> bool:
    """Return whether a node has just got an IP address, without which kubelets send no request."""
    return _has_ip(new) and not _has_ip(old)


def _has_ip(node: Node | None) -> bool:
    return node is not None and any(parse_ip(address.address) for address in node.addresses)


def _was_approved(
    old: CertificateSigningRequest | None, new: CertificateSigningRequest | None, _: bool
) -> bool:
    return _is_approved(new) and not _is_approved(old)


def _is_approved(request: CertificateSigningRequest | None) -> bool:
    if request is None or request.spec.signer_name != SIGNER:
        return False
    return {condition.get("type") for condition in request.status.conditions or ()} == {"Approved"}
