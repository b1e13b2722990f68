"""Whom our HTTPS server believes: authorities from files and from the cluster, followed.

The cluster keeps its own settings in a config map of kube-system; they stand in where a flag
says nothing. It is read again every minute, and so are the files.
Counterpart: k8s.io/apiserver, server/options (delegating authentication).

Deviation: an API server that does not answer when we start is waited for, where the Go
reference ends [conformance serving-lookup-03].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ccm.app.options import Options
from ccm.app.provider import Misconfigured
from ccm.app.reviews import Raw
from ccm.base import log
from ccm.kube import errors
from ccm.serving.authentication import Proxies, Trust
from ccm.serving.certs import CertificateError
from ccm.serving.identity import Authorities

CONFIG_MAP = "extension-apiserver-authentication"
PATH = f"/api/v1/namespaces/kube-system/configmaps/{CONFIG_MAP}"

CHECK_S = 60.0
"""How often files and the config map are read again (k8s.io/apiserver, dynamic certificates)."""

RETRY_S = 5.0
"""Pause between two tries while the config map was never read."""

_HINT = (
    "grant the role extension-apiserver-authentication-reader in kube-system, or pass "
    "--authentication-tolerate-lookup-failure or --authentication-skip-lookup"
)


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


class Believed:
    """Keeps what is believed up to date.

    Args:
        options: the flags.
        client: reads the config map; None: only files count.
        adopt: told whom to believe; `CertificateError` if that cannot be used.
    """

    def __init__(
        self, options: Options, client: Raw | None, adopt: Callable[[Trust], None]
    ) -> None:
        self._options = options
        self._client = None if options.authentication_skip_lookup else client
        self._adopt = adopt
        self._log = log.logger("serving")
        self._looked_up = self._client is None
        self._cluster: Mapping[str, str] = {}
        self._used: Trust | None = None
        self._said = ""

    @property
    def waiting(self) -> str:
        """What is still waited for, in words; empty when nothing is."""
        return "" if self._looked_up else f"config map {CONFIG_MAP} was not read yet"

    async def start(self) -> None:
        """Believe what the files say.

        Raises:
            Misconfigured: one cannot be used.
        """
        try:
            await self._use()
        except (OSError, ValueError, CertificateError) as error:
            raise Misconfigured(f"client authorities: {error}") from error

    async def run(self) -> None:
        """Follow files and config map until cancelled.

        Raises:
            Misconfigured: the config map cannot be had, and nobody said that it need not.
        """
        while True:
            looked_up = await self._look_up()
            try:
                await self._use()
            except (OSError, ValueError, CertificateError) as error:
                if self._is_news(error):
                    self._log.warning(
                        "client authorities cannot be used, the old stay", error=str(error)
                    )
            else:
                self._said = "" if looked_up else self._said
            await asyncio.sleep(CHECK_S if self._looked_up else RETRY_S)

    async def _look_up(self) -> bool:
        """Read the config map, if there is anybody to ask; whether that went well."""
        if self._client is None:
            return True
        try:
            answer = await self._client.raw("GET", PATH)
            self._cluster = msgspec.json.decode(answer, type=_ConfigMap).data or {}
        except errors.Missing:
            # A cluster whose API server believes no authority has none for us either.
            self._cluster = {}
        except (errors.KubeError, *errors.UNDECODABLE) as error:
            return self._not_looked_up(error)
        self._looked_up = True
        return True

    def _not_looked_up(self, error: Exception) -> bool:
        passes = isinstance(error, errors.KubeError) and not isinstance(error, errors.Forbidden)
        tolerated = self._options.authentication_tolerate_lookup_failure
        if not (self._looked_up or passes or tolerated):
            raise Misconfigured(
                f"config map {CONFIG_MAP} cannot be read: {error}; {_HINT}"
            ) from error
        self._looked_up = self._looked_up or not passes
        if self._is_news(error):
            self._log.warning(
                "cluster's authentication settings cannot be read, callers may be taken for "
                "anonymous",
                error=str(error),
            )
        return False

    async def _use(self) -> None:
        trust = Trust(clients=await self._clients(), proxies=await self._proxies())
        if trust != self._used:
            self._adopt(trust)
            self._used = trust

    async def _clients(self) -> Authorities:
        file = self._options.client_ca_file
        return await _authorities(file, self._cluster.get("client-ca-file", ""))

    async def _proxies(self) -> Proxies:
        options = self._options
        if options.requestheader_client_ca_file:
            return Proxies(
                authorities=await _authorities(options.requestheader_client_ca_file, ""),
                names=options.requestheader_allowed_names,
                user_headers=options.requestheader_username_headers,
                uid_headers=options.requestheader_uid_headers,
                group_headers=options.requestheader_group_headers,
                extra_prefixes=options.requestheader_extra_headers_prefix,
            )
        return Proxies(
            authorities=await _authorities(
                "", self._cluster.get("requestheader-client-ca-file", "")
            ),
            names=self._list("allowed-names"),
            user_headers=self._list("username-headers"),
            uid_headers=self._list("uid-headers"),
            group_headers=self._list("group-headers"),
            extra_prefixes=self._list("extra-headers-prefix"),
        )

    def _list(self, name: str) -> tuple[str, ...]:
        text = self._cluster.get(f"requestheader-{name}", "")
        found: Any = msgspec.json.decode(text, type=list[str]) if text else []
        return tuple(found)

    def _is_news(self, error: Exception) -> bool:
        """Whether this trouble was not said last; it comes again with each look."""
        before, self._said = self._said, str(error)
        return self._said != before


async def _authorities(file: str, pem: str) -> Authorities:
    """Those of a file, or else of a text; none if both are empty. Raises OSError, ValueError."""
    if file:
        return Authorities.of(await asyncio.to_thread(Path(file).read_bytes))
    return Authorities.of(pem.encode()) if pem.strip() else Authorities()
