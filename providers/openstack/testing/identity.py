"""Handlers of Keystone: tokens and the catalogue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ccm.base import clock

from .state import PROJECT, REGION, ApiError, Resource, Settings

USER, PASSWORD = "k8s", "s3cret-of-the-fake"
DOMAIN = {"id": "default", "name": "Default"}
PATHS = {
    "compute": "/compute/v2.1",
    "network": "/network",
    "load-balancer": "/load-balancer",
    "image": "/image",
}
"""Service type -> path of its URL in the catalogue."""


class Identity:
    """User `USER` with its credentials, and the valid tokens.

    Attributes:
        issued: number of tokens issued so far.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tokens: dict[str, float] = {}
        self.password = PASSWORD
        self.app_credential = ("a0c1d5e2f3b44c5d8e9f0a1b2c3d4e5f", "app-s3cret-of-the-fake")
        self.issued = 0

    def revoke(self) -> None:
        """Invalidate all tokens."""
        self._tokens.clear()

    def check(self, token: str) -> None:
        """Raise the error for a missing, invalid or expired token."""
        if self._tokens.get(token, 0.0) <= clock.monotonic():
            raise ApiError("unauthorized", "The request you have made requires authentication.")

    def grant(self, token: str, url: str, order: Resource) -> tuple[int, Resource]:
        """Issue `token` in exchange for credentials.

        Args:
            token: the token, which the server sends in a header.
            url: URL of the fake.
            order: body of the request.
        """
        if not self._is_user(order.get("auth", {}).get("identity", {})):
            raise ApiError("unauthorized", "The request you have made requires authentication.")
        self.issued += 1
        self._tokens[token] = clock.monotonic() + self._settings.token_s
        issued = clock.now()
        expires = issued + timedelta(seconds=self._settings.token_s)
        token_body = {
            "methods": order["auth"]["identity"]["methods"],
            "user": {"id": "u1", "name": USER, "domain": DOMAIN},
            "issued_at": f"{issued:%Y-%m-%dT%H:%M:%S.%fZ}",
            "expires_at": f"{expires:%Y-%m-%dT%H:%M:%S.%fZ}",
            "project": {"id": PROJECT, "name": "k8s", "domain": DOMAIN},
            "roles": [{"id": "r1", "name": "member"}, {"id": "r2", "name": "load-balancer_member"}],
            "catalog": [_service(kind, url) for kind in self._settings.services],
        }
        return 201, {"token": token_body}

    def _is_user(self, identity: Any) -> bool:
        match identity:
            case {"methods": ["password"], "password": {"user": {"password": given}}}:
                user = identity["password"]["user"]
                return given == self.password and USER in (user.get("name"), user.get("id"))
            case {"application_credential": {"id": number, "secret": secret}}:
                return (number, secret) == self.app_credential
            case {"token": {"id": token}}:
                return self._tokens.get(token, 0.0) > clock.monotonic()
        return False


def _service(kind: str, url: str) -> Resource:
    """Return a service of the catalogue."""
    place = {"region": REGION, "region_id": REGION, "url": f"{url}{PATHS[kind]}"}
    endpoints = [
        {"id": f"e-{kind}-{interface}", "interface": interface, **place}
        for interface in ("public", "internal", "admin")
    ]
    return {"id": f"s-{kind}", "name": kind, "type": kind, "endpoints": endpoints}
