"""Follows files while the process runs: a new version is tried before the old is let go.

Each file has a source that tries its new content, and that may name more files which its
content depends on. One that cannot be used leaves everything as it was, and is said once, as an
event, a metric and a log line; it is tried again now and then, because what was wrong may be the
cloud or the API server, and at once when a file changes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from ccm.app import options
from ccm.app.options import FLAGS, Options, UsageError, config
from ccm.app.provider import ConfiguredProvider, ProviderHolder, misconfigured
from ccm.base import clock, log, metrics, redact
from ccm.base.files import Signature, signature
from ccm.base.tasks import Group
from ccm.cloud.errors import normalized
from ccm.cloud.interface import Cloud
from ccm.kube import config as kube_config
from ccm.kube import errors as kube_errors
from ccm.kube.client import Client
from ccm.kube.transport import Transport

CHECK_S = 1.0
"""How often files are looked at; two looks must agree, so that nothing half-written is read."""

RETRY_S = 30.0
"""Pause between two tries of the same content."""

GONE_LOOKS = 30
"""In how many looks a file may be missing, as while it is exchanged, until that is a fault."""

LIVE = frozenset({"v", "vmodule"})
"""Settings of the configuration file that are taken over while the process runs."""

Signatures = Mapping[Path, Signature]
"""Files, and what they looked like before they were last read."""

NO_FILES: Signatures = MappingProxyType({})

_OUTCOMES = metrics.counter(
    "ccm_config_reloads",
    "Files that changed while the process ran, and whether their new content is in use.",
    ["file", "outcome"],
)


class Refused(Exception):
    """The new content cannot be used.

    Attributes:
        final: True if trying the same content again makes no sense.
    """

    def __init__(self, message: str, *, final: bool = True) -> None:
        super().__init__(message)
        self.final = final


class Source(Protocol):
    """A file that is followed."""

    name: str
    """What it is, as a label: `cloud-config`."""

    path: Path
    """Where it is."""

    @property
    def more(self) -> Signatures:
        """Other files that count as a part of it, and what they looked like before they were
        last read; changes with what is in use.
        """
        ...

    async def use(self) -> str:
        """Try the file's content of now and use it; what has changed, in words.

        Raises:
            Refused: it cannot be used; nothing has changed.
        """
        ...


Tell = Callable[[str, str, str], None]
"""Told (type, reason, message), to record an event."""


class Reloader:
    """Follows the files of some sources.

    Args:
        sources: what is followed.
        tell: records events.
        since: what the files looked like before their content was first read.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        tell: Tell = lambda *_: None,
        *,
        since: Signatures = NO_FILES,
    ) -> None:
        self._sources = sources
        self._tell = tell
        self._log = log.logger("reload")
        self._used = {
            source.name: {
                source.path: since.get(source.path, signature(source.path)),
                **source.more,
            }
            for source in sources
        }
        for source in sources:
            for outcome in ("success", "failure"):
                _OUTCOMES.labels(source.name, outcome)

    async def run(self) -> None:
        """Follow all files until cancelled."""
        async with Group() as group:
            for source in self._sources:
                group.start(self._follow(source), name=f"reload-{source.name}")

    async def _follow(self, source: Source) -> None:
        seen = used = self._used[source.name]
        alike = 0
        retry_at: float | None = None
        while True:
            await asyncio.sleep(CHECK_S)
            before, seen = seen, await asyncio.to_thread(_look, used)
            alike = alike + 1 if seen == before else 0
            settled = alike >= (GONE_LOOKS if None in seen.values() else 1)
            due = retry_at is not None and clock.monotonic() >= retry_at
            if settled and (seen != used or due):
                again = await self._use(source, said=seen == used)
                retry_at = clock.monotonic() + RETRY_S if again else None
                used = {source.path: seen[source.path], **source.more}
                seen = {**used, **{path: seen[path] for path in used if path in seen}}

    async def _use(self, source: Source, *, said: bool) -> bool:
        """Try the content; whether the same content is worth another try."""
        facts = {"file": str(source.path), "setting": source.name}
        try:
            changed = await source.use()
        except Refused as refusal:
            message = redact.words(str(refusal))
            _OUTCOMES.labels(source.name, "failure").inc()
            if not said:
                self._log.warning(
                    "changed file rejected, keeping the previous content", error=message, **facts
                )
                self._tell("Warning", "ConfigRejected", f"{source.name}: {message}")
            return not refusal.final
        except Exception as error:  # noqa: BLE001 - one file must not end what follows the others
            _OUTCOMES.labels(source.name, "failure").inc()
            self._log.error(
                "internal error while reloading file, keeping the previous content",
                exc_info=error,
                **facts,
            )
            return False
        _OUTCOMES.labels(source.name, "success").inc()
        self._log.info("changed file is in use", detail=changed, **facts)
        self._tell("Normal", "ConfigReloaded", f"{source.name}: {changed}")
        return False


def signatures(*files: str) -> Signatures:
    """The signature of each file that is named."""
    return _look(Path(file) for file in files if file)


def _look(paths: Iterable[Path]) -> dict[Path, Signature]:
    return {path: signature(path) for path in paths}


class CloudConfig:
    """The provider's configuration: the provider is opened anew.

    The files that the provider follows count as a part of it; where it has its configuration from
    the environment they are all there is.

    Args:
        file: what it is in; empty: there is none.
        configured: opens a provider with the content of now.
        holder: of the provider in use.
        accept: has the last word on a new provider.
    """

    name = "cloud-config"

    def __init__(
        self,
        file: str,
        configured: ConfiguredProvider,
        holder: ProviderHolder,
        accept: Callable[[Cloud], Awaitable[None]],
    ) -> None:
        self.path = Path(file) if file else next(iter(configured.followed))
        self.more = configured.followed
        self._opening = configured.opened_once
        self._holder = holder
        self._accept = accept

    async def use(self) -> str:
        """Exchange the provider. Raises Refused."""
        before = dict(self.more)
        self.more.clear()
        try:
            await self._holder.exchange(self._opening, self._accept)
        except Exception as error:
            # The old provider stays, and what the new one lacks may come.
            self.more.update({**before, **self.more})
            mistake = misconfigured(error)
            raise Refused(str(mistake or normalized(error)), final=mistake is not None) from error
        return "the provider was opened again"


class Kubeconfig:
    """How we reach the API server and as whom: new credentials take over.

    The files that the kubeconfig names count as a part of it; inside a cluster those of the
    service account are all there is.

    Args:
        file: the kubeconfig; empty inside a cluster.
        wire: what is used now.
        environ: for exec plugins.
        master: `--master`.
        adopted: called when the wire has other credentials.
        name: as a label; empty: what it is.
    """

    def __init__(
        self,
        file: str,
        wire: Transport,
        *,
        environ: Mapping[str, str],
        master: str = "",
        adopted: Callable[[], None] = lambda: None,
        name: str = "",
    ) -> None:
        self.name = name or ("kubeconfig" if file else "service-account")
        self.more = wire.config.files
        token = next(iter(self.more), kube_config.SERVICE_ACCOUNT / "token")
        self.path = Path(file) if file else token
        self._read = partial(kube_config.load, file, master, environ=environ)
        self._wire = wire
        self._adopted = adopted

    async def use(self) -> str:
        """Try the credentials, then take them over. Raises Refused."""
        try:
            found = await asyncio.to_thread(self._read)
        except kube_config.ConfigError as error:
            raise Refused(str(error)) from error
        self.more = found.files
        if found.server != self._wire.config.server:
            raise Refused(f"it names another server, {found.server}; restart to use it")
        try:
            async with Transport(found, user_agent=self._wire.user_agent) as wire:
                # Forbidden is an answer too: the server knows who we are.
                with suppress(kube_errors.Forbidden):
                    await Client(wire).raw("GET", "/api/v1", retry=False)
        except kube_errors.KubeError as error:
            raise Refused(str(error), final=False) from error
        self._wire.adopt(found)
        self._adopted()
        return "new credentials are in use"


class Configuration:
    """Our own configuration file: how much is logged changes at once, the rest at a restart.

    Args:
        given: the settings in force; what the command line said stays.
    """

    name = "config"

    def __init__(self, given: Options) -> None:
        self.path = Path(given.config)
        self.more = NO_FILES
        self._given = given
        self._now = given

    async def use(self) -> str:
        """Read the file. Raises Refused."""
        try:
            found = await asyncio.to_thread(config.reread, self._given)
            options.check(found)
        except UsageError as error:
            raise Refused(str(error)) from error
        changed = [name for name in FLAGS if found.get(name) != self._now.get(name)]
        self._now = found
        log.change(found.v, found.vmodule)
        later = [name for name in changed if name not in LIVE]
        if later:
            return f"at the next start: {', '.join(later)}"
        return f"changed: {', '.join(changed) or 'nothing'}"
