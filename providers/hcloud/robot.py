"""Client of the Robot web service, the API of Hetzner's dedicated servers.

The web service allows few requests: 200 listings per hour, and an address is blocked for ten
minutes after three failed logins. So one listing is shared by all lookups, requests about one
server are spaced, and after an error no request is sent for a while. An error means that nothing is
known about a server. Only the error code of absence in the answer about one server denies it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ccm import cloud
from ccm.base import log
from ccm.base.clock import monotonic
from ccm.cloud import rest

from . import client, config, instances

SCHEME = "hrobot"
"""Scheme of the provider IDs of dedicated servers. Nodes store it: never change it."""

CACHE_S = 300.0
"""Maximum age of the listing, in seconds, if the setting is 0."""

REFRESH_S = 60.0
"""Minimum age of the listing, in seconds, before a server that it lacks causes another listing."""

SPACING_S = 60.0
"""Seconds between two requests that repeat one about some server, so that the rate of requests does
not grow with the number of servers."""

PAUSE_S = 30.0
"""Seconds without a request after an error."""

LOGIN_PAUSE_S = 600.0
"""Seconds without a request after a failed login: the third one in this time would be blocked."""

CODES: Mapping[str, type[cloud.CloudError]] = {
    "SERVER_NOT_FOUND": cloud.NotFound,
    "RESET_NOT_AVAILABLE": cloud.Unimplemented,
    "UNAUTHORIZED": cloud.Unauthenticated,
    "RATE_LIMIT_EXCEEDED": cloud.PermissionDenied,
}
"""Error code of the web service -> error class."""

_ID = re.compile(rf"(?:{SCHEME}://|{re.escape(instances.LEGACY_ROBOT_PREFIX)})([1-9][0-9]{{0,15}})")

T = TypeVar("T")


class DedicatedServer(msgspec.Struct, frozen=True, kw_only=True, rename="server_{}".format):
    """Dedicated server; only the fields that the provider reads."""

    number: int
    name: str | None = None
    ip: str | None = None
    ipv6_net: str | None = None
    product: str | None = msgspec.field(default=None, name="product")
    datacenter: str | None = msgspec.field(default=None, name="dc")


class _ServerAnswer(msgspec.Struct, frozen=True):
    server: DedicatedServer


class _ResetAnswer(msgspec.Struct, frozen=True):
    reset: dict[str, Any]


class RobotClient:
    """Dedicated servers of an account; opened by `open_robot`.

    Args:
        http: client of the web service.
        cache_s: maximum age of the listing in seconds.
        wait_s: seconds without a request after the rate limit was exceeded, at least `PAUSE_S`.
    """

    def __init__(self, http: rest.RestClient, *, cache_s: float, wait_s: float) -> None:
        self._http = http
        self._cache_s = cache_s
        self._wait_s = wait_s
        self._lock = asyncio.Lock()
        self._listed_at = -math.inf
        self._paused_until = -math.inf
        self._pause_reason = ""
        self._answers: dict[int, tuple[float, cloud.Power | None]] = {}
        self._denied: set[int] = set()
        self._asked_at = -math.inf
        self.known: Mapping[int, DedicatedServer] | None = None
        """Server number -> server, of the last listing; None before the first one."""
        self._outage = log.Outage(
            log.logger("hcloud"),
            start_message="Robot failed; no request is sent for a while",
            end_message="Robot answers again",
        )

    async def servers(self, max_age_s: float = math.inf) -> Mapping[int, DedicatedServer]:
        """Return all servers by number.

        Sends one request if the listing is older than the cache timeout or `max_age_s`.

        Raises:
            CloudError: the listing is outdated, and the web service did not list the servers.
        """
        async with self._lock:
            now = monotonic()
            if self.known is None or now >= self._listed_at + min(self._cache_s, max_age_s):
                try:
                    answers = await self._get("/server", list[_ServerAnswer])
                except cloud.NotFound:  # the answer about an account without servers
                    answers = []
                self.known = {answer.server.number: answer.server for answer in answers}
                self._listed_at = now
            return self.known

    async def get(self, number: int) -> DedicatedServer:
        """Return a server, from the listing if it is there; otherwise one request.

        Raises:
            NotFound: the web service denied the server, in an answer about this server alone.
            CloudError: nothing is known about the server.
        """
        found = await self._search(lambda server: server.number == number)
        if found:
            self._forget_denials(number)
            return found[0]
        text = f"Robot has no server {number}"
        recent = self._recent(number)
        if recent is not None and recent[1] is None:
            raise cloud.NotFound(text)
        try:
            server = (await self._get(f"/server/{number}", _ServerAnswer)).server
        except cloud.NotFound as error:
            # The first denial is never repeated from memory: the second one deletes the node.
            if number in self._denied:
                self._remember(number, None)
            self._denied.add(number)
            raise cloud.NotFound(text) from error
        if server.number != number:
            raise cloud.Unknown(f"requested server {number} of Robot, got {server.number}")
        self._forget_denials(number)
        return server

    async def named(self, name: str) -> Sequence[DedicatedServer]:
        """Return the servers with a name.

        Raises:
            CloudError: the last listing has no such server, and there is no newer one.
        """
        try:
            return await self._search(lambda server: server.name == name)
        except cloud.CloudError:
            known = [server for server in (self.known or {}).values() if server.name == name]
            if not known:
                raise
            return known

    async def _search(
        self, matches: Callable[[DedicatedServer], bool]
    ) -> Sequence[DedicatedServer]:
        """Return the matching servers; list the servers again if there is none."""
        found: Sequence[DedicatedServer] = ()
        for max_age_s in (math.inf, REFRESH_S):
            servers = await self.servers(max_age_s)
            found = [server for server in servers.values() if matches(server)]
            if found:
                break
        return found

    async def power(self, number: int) -> cloud.Power:
        """Return the power state of a listed server; RUNNING if Robot does not know it.

        Sends one request, unless the last one about this server is recent.
        """
        recent = self._recent(number)
        if recent is not None and recent[1] is not None:
            return recent[1]
        power = cloud.Power.RUNNING
        try:
            reset = (await self._get(f"/reset/{number}", _ResetAnswer)).reset
            if reset.get("operating_status") == "shut off":
                power = cloud.Power.SHUTDOWN
        except cloud.Unimplemented:
            pass
        except cloud.NotFound:
            # No proof of absence: the next lookup lists the servers again.
            self._listed_at = -math.inf
        self._remember(number, power)
        return power

    def _recent(self, number: int) -> tuple[float, cloud.Power | None] | None:
        """Return time and content of the last answer; None if another request is due."""
        answer = self._answers.get(number)
        if answer is None:
            return None
        # Each server has its turn before the first one has its next.
        due = max(self._asked_at + SPACING_S, answer[0] + SPACING_S * len(self._answers))
        return answer if monotonic() < due else None

    def _remember(self, number: int, power: cloud.Power | None) -> None:
        """Record an answer about a server, None for a denial; forget old ones."""
        now = self._asked_at = monotonic()
        oldest = now - 2 * SPACING_S * len(self._answers)
        self._answers = {key: item for key, item in self._answers.items() if item[0] > oldest}
        self._answers[number] = (now, power)

    def _forget_denials(self, number: int) -> None:
        self._denied.discard(number)
        if self._answers.get(number, (0.0, cloud.Power.RUNNING))[1] is None:
            del self._answers[number]

    async def _get(self, path: str, answer: type[T]) -> T:
        """Send a request, unless an earlier one failed a short time ago."""
        wait_s = self._paused_until - monotonic()
        if wait_s > 0:
            text = f"no request to Robot for {wait_s:.0f} s after an error: {self._pause_reason}"
            raise cloud.RetryAfter(text, seconds=wait_s)
        try:
            result = await self._http.get(path, answer)
        except (cloud.NotFound, cloud.Unimplemented):
            self._outage.record_success()
            raise
        except cloud.CloudError as error:
            is_limited = isinstance(error, cloud.PermissionDenied | cloud.RetryAfter)
            is_refused = isinstance(error, cloud.Unauthenticated)
            pause_s = self._wait_s if is_limited else LOGIN_PAUSE_S if is_refused else PAUSE_S
            self._paused_until = monotonic() + pause_s
            self._pause_reason = str(error)
            self._outage.record_failure(error=str(error), pause_s=pause_s)
            if is_limited:
                raise cloud.RetryAfter(str(error), seconds=pause_s) from error
            raise
        self._outage.record_success()
        return result


def find_number(provider_id: str) -> int | None:
    """Return the server number in a provider ID; None if it is not of a dedicated server."""
    match = _ID.fullmatch(provider_id)
    return int(match[1]) if match else None


@contextlib.asynccontextmanager
async def open_robot(settings: config.Config) -> AsyncIterator[RobotClient | None]:
    """Open a client with its own connection pool; None without `ROBOT_ENABLED` and credentials."""
    if not (settings.robot_enabled and settings.robot_user):
        yield None
        return
    login = f"{settings.robot_user}:{settings.robot_password}"
    async with rest.open_client(
        settings.robot_endpoint,
        refusal=client.parse_refusal,
        codes=CODES,
        authorization=f"Basic {b64encode(login.encode()).decode()}",
        timeout_s=15.0,
    ) as http:
        yield RobotClient(
            http,
            cache_s=settings.robot_cache_timeout.total_seconds() or CACHE_S,
            wait_s=max(PAUSE_S, settings.robot_rate_limit_wait_time.total_seconds()),
        )
