"""Credentials of a controller's service account, requested with the daemon's own credentials.

With separate service accounts, each controller sends requests as `kube-system/<name>`: the API
server's audit log distinguishes the controllers, and each has only the permissions it needs. The
daemon creates a missing account. It caches the token of each account, and requests a new token when
most of the token's lifetime has passed. Counterpart in client-go: the token source of the dynamic
client builder.
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
from ccm.kube.credentials import Credential, CredentialSource, bearer
from ccm.model import times
from ccm.model.meta import Wire

EXPIRATION_S = 3600
"""Requested lifetime of a token in seconds (cloud-provider, dynamic client builder)."""

MIN_LIFETIME_S = 600.0
"""Minimum lifetime in seconds that is assumed for a token: a shorter one may only result from the
difference between this clock and the API server's."""

REFRESH_FRACTION = 0.8
"""Fraction of a token's lifetime after which it is renewed (cloud-provider, dynamic client
builder)."""

MAX_ATTEMPTS = 4
FIRST_RETRY_S = 0.5
"""Attempts to get the first token, and the delay in seconds after the first attempt. The delay
doubles after each attempt; 3.5 s in total bridge a short outage. If all attempts fail, the next
request starts new attempts."""

RETRY_S = 10.0
"""Delay in seconds between attempts to renew the token. Requests use the old token meanwhile."""


class TokenStatus(Wire, frozen=True, kw_only=True):
    """Status of a TokenRequest, which the API server sets."""

    token: str = ""
    expiration_timestamp: str = ""


class TokenRequest(Wire, frozen=True, kw_only=True):
    """Response to a request for a token."""

    status: TokenStatus | None = None


_DECODER = msgspec.json.Decoder(TokenRequest)


class ServiceAccount:
    """Source of credentials of one service account.

    Args:
        client: client with the daemon's own credentials.
        namespace: namespace of the account.
        name: name of the account.
    """

    def __init__(self, client: Client, *, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._path = f"/api/v1/namespaces/{quote(namespace)}/serviceaccounts"
        self._credential: Credential | None = None
        self._obtained_at = 0.0
        self._refresh_at = 0.0
        self._renewal_outage = Outage(
            logger("kube", account=f"{namespace}/{name}"),
            start_message="token renewal failed, keeping the current token",
            end_message="token renewal recovered",
        )
        self._renewal_lock = asyncio.Lock()
        """Held during a request for a token, so that concurrent requests share one token."""

    @property
    def user(self) -> str:
        """User name of the account in the API server's RBAC and audit log."""
        return f"system:serviceaccount:{self._namespace}:{self._name}"

    async def current(self) -> Credential:
        """Return the account's token; request a token if there is none or it is due for renewal.

        Raises:
            NoCredentials: no token could be obtained.
        """
        known = self._credential
        # During a renewal, other requests use the old token.
        if known is not None and (
            clock.monotonic() < self._refresh_at or self._renewal_lock.locked()
        ):
            return known
        async with self._renewal_lock:
            if self._credential is None:
                return await self._obtain_first()
            if clock.monotonic() >= self._refresh_at:
                await self._renew()
            return self._credential

    async def refresh_rejected(self, credential: Credential, sent_at: float) -> bool:
        """Renew the token, unless it was renewed since the request began.

        Returns:
            Whether the token now differs from the rejected token.
        """
        async with self._renewal_lock:
            # Many requests may fail at once; only the first request renews the token.
            if self._credential == credential and self._obtained_at <= sent_at:
                await self._renew()
            return self._credential != credential

    async def _obtain_first(self) -> Credential:
        pause_s = FIRST_RETRY_S
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await self._obtain()
            except (errors.KubeError, ValueError, msgspec.MsgspecError) as problem:
                if attempt == MAX_ATTEMPTS or isinstance(problem, errors.Forbidden):
                    raise errors.NoCredentials(
                        f"no token for service account {self._namespace}/{self._name}: {problem}"
                    ) from problem
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("unreachable")

    async def _renew(self) -> None:
        """Request a token once; after a failure the old token stays in use."""
        try:
            await self._obtain()
        except (errors.KubeError, ValueError, msgspec.MsgspecError) as problem:
            self._refresh_at = clock.monotonic() + RETRY_S
            self._renewal_outage.record_failure(error=str(problem))
        else:
            self._renewal_outage.record_success()

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
        self._refresh_at = self._obtained_at + REFRESH_FRACTION * max(
            MIN_LIFETIME_S, left.total_seconds()
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
            raise ValueError("the response contains no token")
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


def with_credentials(config: ClusterConfig, credentials: CredentialSource) -> ClusterConfig:
    """Return the configuration with other credentials, and without the client certificate."""
    tls = replace(config.tls, certificate=None)
    return replace(config, credentials=credentials, tls=tls)
