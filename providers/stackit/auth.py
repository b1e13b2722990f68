"""Credentials of STACKIT: a service account key, which is exchanged for tokens, or a token.

Key flow: a JWT signed with the key (RS512) is exchanged for an access token, and again before the
token expires.
"""

from __future__ import annotations

import base64
import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.parse import urlencode
from uuid import uuid4

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from ccm import cloud
from ccm.base import redact
from ccm.base.clock import now
from ccm.base.decoding import DECODE_ERRORS
from ccm.cloud import rest

from . import refusals

TOKEN_URL = "https://service-account.api.stackit.cloud/token"  # noqa: S105 - an address

ASSERTION_S = 600
"""Lifetime of a signed JWT (assertion) in seconds; short, since the JWT is used at once."""

PEM_LIMIT = 4 << 10
"""Maximum length of a private key in characters, enough for RSA with 4096 bits. Checking a key with
8192 bits takes 6 s."""

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class _KeyFields(msgspec.Struct, frozen=True, rename="camel"):
    kid: str
    iss: str
    sub: str
    aud: str
    private_key: str = ""
    token_endpoint: str = ""


class _KeyFile(msgspec.Struct, frozen=True):
    credentials: _KeyFields


class ServiceAccountKey:
    """Service account key.

    Args:
        text: JSON of the key.
        private_key: private key in PEM; needed if the user created the key pair, because the JSON
            then has none.

    Raises:
        ValueError: the key is invalid; the message contains no part of the key.
    """

    def __init__(self, text: str | bytes, private_key: str = "") -> None:
        try:
            self.fields = msgspec.json.decode(text, type=_KeyFile).credentials
        except DECODE_ERRORS:
            raise ValueError(
                "must be the JSON of a service account key, with credentials.kid, .iss, .sub, .aud "
                "and .privateKey"
            ) from None
        pem = private_key or self.fields.private_key
        if len(pem) > PEM_LIMIT:
            raise ValueError(
                f"has a private key of {len(pem)} characters; use an RSA key of at most 4096 bits"
            )
        self._private = _load_private_key(pem)
        self.pem = pem

    def assertion(self) -> str:
        """Return a signed JWT that authenticates the service account for `ASSERTION_S`."""
        at = int(now().timestamp())
        claims = {
            "iss": self.fields.iss,
            "sub": self.fields.sub,
            "aud": self.fields.aud,
            "jti": str(uuid4()),
            "iat": at,
            "exp": at + ASSERTION_S,
        }
        header = {"alg": "RS512", "typ": "JWT", "kid": self.fields.kid}
        signed = b".".join(_base64(msgspec.json.encode(part)) for part in (header, claims))
        signature = self._private.sign(signed, padding.PKCS1v15(), hashes.SHA512())
        token = b".".join((signed, _base64(signature))).decode()
        redact.register(token, lasting=False)
        return token


@functools.lru_cache(maxsize=8)
def _load_private_key(pem: str) -> rsa.RSAPrivateKey:
    # Cached, since the primality check takes a tenth of a second.
    key = None
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError("needs credentials.privateKey, an RSA key in PEM without a password")
    return key


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class _TokenResponse(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: float
    refresh_token: str = ""


class KeyFlow(rest.RenewedToken):
    """`rest.Authorizer` that exchanges a key for tokens; use `open_key_flow`.

    Args:
        key: service account key.
        http: client of the token API.
    """

    def __init__(self, key: ServiceAccountKey, http: rest.RestClient) -> None:
        super().__init__("Bearer")
        self._key = key
        self._http = http
        self._refresh = ""

    async def request_token(self) -> tuple[str, float]:
        """Return a new token and its lifetime: one request, or two if the refresh token is bad."""
        granted = await self._grant()
        self._refresh = granted.refresh_token
        return granted.access_token, granted.expires_in

    async def _grant(self) -> _TokenResponse:
        if self._refresh:
            refresh, self._refresh = self._refresh, ""
            with contextlib.suppress(cloud.Unauthenticated, cloud.InvalidArgument):
                return await self._post_form(grant_type="refresh_token", refresh_token=refresh)
        return await self._post_form(grant_type=GRANT, assertion=self._key.assertion())

    async def _post_form(self, **form: str) -> _TokenResponse:
        body = await self._http.request("POST", "", data=urlencode(form).encode(), headers=FORM)
        try:
            return msgspec.json.decode(body, type=_TokenResponse)
        except DECODE_ERRORS:
            # Without the decoder's message, which may quote a token.
            raise cloud.Unknown("the token API returned a malformed response") from None


class StaticToken:
    """`rest.Authorizer` with a configured token; never renews it.

    Args:
        token: bearer token.
    """

    def __init__(self, token: str) -> None:
        redact.register(token)
        self._header = f"Bearer {token}"

    async def header(self) -> str:
        """Return the header with the token."""
        return self._header

    def refused(self, header: str) -> bool:  # noqa: ARG002 - a single token
        """Return False: there is no other token."""
        return False


class NoAuthorizer:
    """`rest.Authorizer` for an API without authentication, such as a fake."""

    async def header(self) -> str:
        """Return an empty header."""
        return ""

    def refused(self, header: str) -> bool:  # noqa: ARG002 - no token
        """Return False: there is no token."""
        return False


@contextlib.asynccontextmanager
async def open_key_flow(key: ServiceAccountKey, url: str = "") -> AsyncIterator[KeyFlow]:
    """Open a key flow with its own connection pool.

    Args:
        key: service account key. Its `tokenEndpoint` is ignored, since a tenant may have set it.
        url: URL of the token API; empty = the vendor's.
    """
    async with rest.open_client(
        url or TOKEN_URL,
        refusal=refusals.tokens,
        codes={"invalid_grant": cloud.Unauthenticated, "invalid_client": cloud.Unauthenticated},
        statuses=cast("Any", {**rest.STATUSES, 400: cloud.Unauthenticated}),
        timeout_s=15.0,
        connections=2,
        success={"POST": (200, 201)},
    ) as http:
        with redact.registered(
            key.pem
        ):  # log redaction also matches each line of the key: line breaks may be lost
            yield KeyFlow(key, http)
