"""Serving certificates of the sandbox's kubelets."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from cryptography import x509

from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import CERTIFICATE_REQUESTS
from ccm.kubermatic.names import SIGNER
from ccm.machines import serving_certificates
from ccm.model.ip import parse_ip
from ccm.sandbox.certificates import ServingCertificates
from ccm.testing.clock import advance
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time

NODES, REQUESTS = "/api/v1/nodes", CERTIFICATE_REQUESTS.path()
NAMES = {"Hostname": "n1", "InternalIP": "10.0.0.1", "ExternalIP": "2001:db8::1"}
APPROVED = {"type": "Approved", "status": "True", "reason": "Test"}


class Impersonated(MemoryServer):
    """Records the headers of creations."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: list[Mapping[str, str]] = []

    async def do(self, method: str, path: str, **rest: Any) -> bytes:
        if (method, path) == ("POST", REQUESTS):
            self.headers.append(rest["headers"])
        return await super().do(method, path, **rest)


@pytest.mark.row("kubermatic-sandbox-02")
async def test_kubelet_requests_one_certificate_which_is_signed_after_its_approval() -> None:
    server = Impersonated()
    informers = SharedInformers(server.client())
    found = ServingCertificates(informers, server.client())
    running = [spawn(informers.run(), name="informers")]
    running += [spawn(one.run(), name="controller") for one in found.controllers]
    server.put(NODES, {"metadata": {"name": "n1"}})
    await advance(5)
    assert server.list(REQUESTS) == [], "the node has no address yet"

    addresses = [{"type": kind, "address": text} for kind, text in NAMES.items()]
    server.patch(f"{NODES}/n1/status", {"status": {"addresses": addresses}})
    await advance(5)
    server.patch(f"{NODES}/n1", {"metadata": {"labels": {"a": "b"}}})
    await advance(5)
    (body,) = server.list(REQUESTS)
    request = msgspec.convert(body, CERTIFICATE_REQUESTS.type)
    wanted = {parse_ip(name) or name for name in NAMES.values()}
    assert serving_certificates.requesting_node(request, SIGNER) == "n1"
    assert serving_certificates.requested_names(request) == wanted
    assert server.headers == [
        {"Impersonate-User": "system:node:n1", "Impersonate-Group": "system:nodes"}
    ]
    assert "certificate" not in body["status"]

    path = f"{REQUESTS}/{request.name}"
    server.patch(f"{path}/approval", {"status": {"conditions": [APPROVED]}})
    await advance(5)
    text = (server.get(path) or {})["status"]["certificate"]
    await advance(600)
    for task in running:
        await cancel_and_join(task)

    certificate = x509.load_pem_x509_certificate(base64.b64decode(text))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {name.value for name in names} == wanted
    assert certificate.subject.rfc4514_string() == "CN=system:node:n1,O=system:nodes"
    assert server.requests["PATCH", f"{path}/status"] == 1
