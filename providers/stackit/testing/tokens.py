"""Authentication of the fake: a service account with a key, and its tokens."""

from __future__ import annotations

import base64
import functools
import json
from urllib.parse import parse_qs
from uuid import uuid4

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from ccm.base import clock

from .state import ApiError, Resource

MAIL = "ccm-fake@sa.stackit.cloud"


@functools.cache
def _private(number: int) -> rsa.RSAPrivateKey:  # noqa: ARG001 - one key for each number
    """Return a key pair; cached per process, since its generation is slow."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Account:
    """Service account with its key and its valid tokens."""

    def __init__(self) -> None:
        self._number = 0
        self._kid = str(uuid4())
        self._tokens: dict[str, float] = {}
        self._refresh: set[str] = set()
        self.issued = 0

    @property
    def key(self) -> bytes:
        """Key in the JSON form of the vendor's portal."""
        private = _private(self._number)
        pem = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        public = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return json.dumps(
            {
                "id": self._kid,
                "publicKey": public.decode(),
                "createdAt": "2026-01-01T00:00:00Z",
                "keyType": "USER_MANAGED",
                "keyOrigin": "GENERATED",
                "keyAlgorithm": "RSA_2048",
                "active": True,
                "credentials": {
                    "kid": self._kid,
                    "iss": MAIL,
                    "sub": "0e9f2f8a-5f0a-4d1c-8d1e-6a9e2d7c3b4f",
                    "aud": "https://stackit-service-account-prod.apps.01.cf.eu01.stackit.cloud",
                    "privateKey": pem,
                },
            }
        ).encode()

    def rotate(self) -> None:
        """Replace the key and invalidate all tokens."""
        self._number += 1
        self._kid = str(uuid4())
        self.revoke()
        self._refresh.clear()

    def revoke(self) -> None:
        """Invalidate all access tokens."""
        self._tokens.clear()

    def check(self, authorization: str) -> None:
        """Raise `unauthorized` unless the header has a valid token."""
        scheme, _, token = authorization.partition(" ")
        if scheme != "Bearer" or self._tokens.get(token, 0.0) <= clock.monotonic():
            raise ApiError("unauthorized", "the token is missing or invalid")

    def grant(self, form: bytes, token_s: float) -> Resource:
        """Issue a token in exchange for an assertion or a refresh token."""
        given = {name: texts[0] for name, texts in parse_qs(form.decode()).items()}
        if given.get("grant_type") == "refresh_token":
            if given.get("refresh_token") not in self._refresh:
                raise _refused("the refresh token is invalid")
            self._refresh.discard(given["refresh_token"])
        else:
            self._verify(given.get("assertion", ""))
        self.issued += 1
        access, refresh = self._signed(token_s), self._signed(token_s * 2)
        self._tokens[access] = clock.monotonic() + token_s
        self._refresh.add(refresh)
        return {
            "access_token": access,
            "refresh_token": refresh,
            "expires_in": int(token_s),  # Go clients accept integers only
            "scope": "",
            "token_type": "Bearer",
        }

    def _signed(self, seconds: float) -> str:
        claims = {"exp": int(clock.now().timestamp() + seconds), "jti": str(uuid4()), "iss": "fake"}
        parts = ({"alg": "none", "typ": "JWT"}, claims)
        return ".".join([*map(_base64_json, parts), "fake"])

    def _verify(self, assertion: str) -> None:
        try:
            head, body, signature = assertion.split(".")
            header, claims = (msgspec.json.decode(_bytes(part)) for part in (head, body))
            _private(self._number).public_key().verify(
                _bytes(signature), f"{head}.{body}".encode(), padding.PKCS1v15(), hashes.SHA512()
            )
            is_good = (
                header["alg"] == "RS512"
                and header["kid"] == self._kid
                and claims["iss"] == MAIL
                and {"sub", "aud", "jti", "iat"} <= claims.keys()
                and claims["exp"] > clock.now().timestamp()
            )
        except (ValueError, KeyError, InvalidSignature):
            is_good = False
        if not is_good:
            raise _refused("the assertion is not of this service account")


def _refused(text: str) -> ApiError:
    error = ApiError("bad_request", text)
    error.body = {"error": "invalid_grant", "error_description": text}
    return error


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _base64_json(part: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=").decode()
