"""CertificateSigningRequests."""

from __future__ import annotations

from typing import Any

from ccm.model.meta import KubeObject, ObjectMeta, Wire


class RequestSpec(Wire, frozen=True, kw_only=True):
    """Content of a request. The API server sets `username` and `groups`; the spec is immutable.

    Attributes:
        request: PKCS #10 request in PEM.
        signer_name: signer that is asked for the certificate.
        usages: key usages of the certificate.
        username: name of the user that created the object.
        groups: groups of that user.
    """

    request: bytes = b""
    signer_name: str = ""
    usages: list[str] | None = None
    username: str = ""
    groups: list[str] | None = None


class RequestStatus(Wire, frozen=True, kw_only=True):
    """Decision about a request; the conditions are not decoded further."""

    conditions: list[Any] | None = None


class CertificateSigningRequest(KubeObject, frozen=True, kw_only=True):
    """Request for a certificate, which is signed once the request has been approved."""

    metadata: ObjectMeta
    spec: RequestSpec = RequestSpec()
    status: RequestStatus = RequestStatus()

    @property
    def is_pending(self) -> bool:
        """Whether the request was neither approved nor denied, and did not fail."""
        return not self.status.conditions
