"""Credentials of another service account, asked for with our own.

With separate accounts each controller acts as `kube-system/<name>`, so that the API server's
audit log tells them apart and each has no more rights than it needs. The account is made if it
does not exist; its token is asked for, kept, and asked for anew when most of its life is over.
Counterpart in client-go: the token source of the dynamic client builder.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from urllib.parse import quote

import msgspec

from ccm.base import clock
from ccm.base.log import Outage, logger
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Credential, Credentials, bearer
from ccm.model import times
from ccm.model.meta import Wire

EXPIRATION_S = 3600
"""Lifetime that is asked for (cloud-provider, dynamic client builder)."""

SHORTEST_LIFE_S = 600.0
"""A token that seems to live shorter is believed to live as long; clocks may differ."""

REFRESH_AT = 0.8
"""Part of a token's life after which a new one is asked for."""

TRIES = 4
FIRST_PAUSE_S = 0.5
"""How often the first token is asked for, and the first pause, which then doubles."""

RETRY_S = 10.0
"""Pause between tries while the old token can still be used."""


class TokenStatus(Wire, frozen=True, kw_only=True):
    """The part of a TokenRequest that the server fills in."""

    token: str = ""
    expiration_timestamp: str = ""


class TokenRequest(Wire, frozen=True, kw_only=True):
    """The server's answer to a request for a token."""

    status: TokenStatus | None = None


_DECODER = msgspec.json.Decoder(TokenRequest)


class ServiceAccount:
    """A source of credentials for one service account.

    Args:
        client: calls with our own credentials.
        namespace: of the account.
        name: of the account.
    """

    def __init__(self, client: Client, *, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._path = f"/api/v1/namespaces/{quote(namespace)}/serviceaccounts"
        self._credential: Credential | None = None
        self._obtained_at = 0.0
        self._refresh_at = 0.0
        self._unrenewed = Outage(
            logger("kube", account=f"{namespace}/{name}"),
            begins="token renewal failed, keeping the current token",
            ends="token can be renewed again",
        )
        self._asking = asyncio.Lock()

    @property
    def user(self) -> str:
        """How the API server calls the account."""
        return f"system:serviceaccount:{self._namespace}:{self._name}"

    async def current(self) -> Credential:
        """The account's token.

        Raises:
            NoCredentials: none could be obtained.
        """
        known = self._credential
        if known is not None and (clock.monotonic() < self._refresh_at or self._asking.locked()):
            return known
        async with self._asking:
            if self._credential is None:
                return await self._first()
            if clock.monotonic() >= self._refresh_at:
                await self._renew()
            return self._credential

    async def rejected(self, credential: Credential, sent_at: float) -> bool:
        """Ask for another token unless that has happened since the request began."""
        async with self._asking:
            if self._credential == credential and self._obtained_at <= sent_at:
                await self._renew()
            return self._credential != credential

    async def _first(self) -> Credential:
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, TRIES + 1):
            try:
                return await self._obtain()
            except (errors.KubeError, ValueError, msgspec.MsgspecError) as problem:
                if attempt == TRIES or isinstance(problem, errors.Forbidden):
                    raise errors.NoCredentials(
                        f"no token for service account {self._namespace}/{self._name}: {problem}"
                    ) from problem
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("unreachable")

    async def _renew(self) -> None:
        """Ask once; a failure leaves the old token in use."""
        try:
            await self._obtain()
        except (errors.KubeError, ValueError, msgspec.MsgspecError) as problem:
            self._refresh_at = clock.monotonic() + RETRY_S
            self._unrenewed.goes_on(error=str(problem))
        else:
            self._unrenewed.is_over()

    async def _obtain(self) -> Credential:
        try:
            status = await self._request_token()
        except errors.NotFound:
            await self._create_account()
            status = await self._request_token()
        expires = times.parse_time(status.expiration_timestamp)
        left = expires - clock.now()
        self._credential = bearer(status.token)
        self._obtained_at = clock.monotonic()
        self._refresh_at = self._obtained_at + REFRESH_AT * max(
            SHORTEST_LIFE_S, left.total_seconds()
        )
        return self._credential

    async def _request_token(self) -> TokenStatus:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": EXPIRATION_S},
        }
        answer = await self._send(f"{self._path}/{quote(self._name)}/token", body)
        status = _DECODER.decode(answer).status
        if status is None or not status.token:
            raise ValueError("the answer holds no token")
        return status

    async def _create_account(self) -> None:
        metadata = {"name": self._name, "namespace": self._namespace}
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        try:
            await self._create(self._path, body)
        except errors.NotFound:
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}}
            await self._create("/api/v1/namespaces", space)
            await self._create(self._path, body)

    async def _create(self, path: str, body: object) -> None:
        with contextlib.suppress(errors.AlreadyExists):
            await self._send(path, body)

    async def _send(self, path: str, body: object) -> bytes:
        return await self._client.raw("POST", path, body=msgspec.json.encode(body))


def acting_as(config: ClusterConfig, credentials: Credentials) -> ClusterConfig:
    """The same server for somebody else: our own client certificate is left out."""
    tls = replace(config.tls, certificate=None)
    return replace(config, credentials=credentials, tls=tls)
