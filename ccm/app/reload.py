"""Reloads files that change while the process runs; new content is tested before it is applied.

Each file has a `ReloadSource`, which tests and applies the file's new content. The source may also
name further files that the content depends on. Rejected content is reported once, as an event and a
log line, and counted in a metric; the previous content stays in use. The file is read again when it
changes. If the cloud or the API server may have caused the failure, the same content is also
retried every `RETRY_S`.
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
from ccm.app.provider import ConfiguredProvider, ProviderHolder, find_misconfigured
from ccm.base import clock, log, metrics, redact
from ccm.base.files import Signature, signature
from ccm.base.tasks import NamedTaskGroup
from ccm.cloud.errors import normalize
from ccm.cloud.interface import Cloud
from ccm.kube import config as kube_config
from ccm.kube import errors as kube_errors
from ccm.kube.client import Client
from ccm.kube.transport import Transport

CHECK_S = 1.0
"""Seconds between checks of the files.

A file is read only if its signature is the same in two checks; otherwise it may be half-written.
"""

RETRY_S = 30.0
"""Seconds between retries of the same content."""

MISSING_FILE_CHECKS = 30
"""Consecutive checks after which a missing file is an error; files may be missing briefly while
they are replaced."""

LIVE_SETTINGS = frozenset({"v", "vmodule"})
"""Settings of the `--config` file whose changes apply without a restart."""

Signatures = Mapping[Path, Signature]
"""Signatures of files, each taken before the file was last read."""

NO_FILES: Signatures = MappingProxyType({})

_OUTCOMES = metrics.counter(
    "ccm_config_reloads",
    "Reloads of changed configuration files, by file and outcome.",
    ["file", "outcome"],
)


class ContentRejected(Exception):
    """The new content is unusable.

    Attributes:
        is_permanent: whether a retry with the same content would fail too.
    """

    def __init__(self, message: str, *, final: bool = True) -> None:
        super().__init__(message)
        self.is_permanent = final


class ReloadSource(Protocol):
    """A watched file, with a method that tests and applies new content."""

    name: str
    """Value of `file` in metrics and of `setting` in log lines, such as `cloud-config`."""

    path: Path
    """Path of the file."""

    @property
    def dependencies(self) -> Signatures:
        """Signatures of further files on which the content depends, each taken before the file was
        last read.
        """
        ...

    async def reload(self) -> str:
        """Test and apply the current content; return a description of the change.

        Raises:
            ContentRejected: the content is unusable; the previous content stays in use.
        """
        ...


RecordEvent = Callable[[str, str, str], None]
"""Function that records an event about the daemon: (type, reason, message)."""


class Reloader:
    """Watcher of the files of all sources.

    Args:
        sources: the watched files.
        record_event: records an event for each applied or newly rejected content.
        since: signatures of the files, taken before the files were first read.
    """

    def __init__(
        self,
        sources: Sequence[ReloadSource],
        record_event: RecordEvent = lambda *_: None,
        *,
        since: Signatures = NO_FILES,
    ) -> None:
        self._sources = sources
        self._record_event = record_event
        self._log = log.logger("reload")
        self._used = {
            source.name: {
                source.path: since.get(source.path, signature(source.path)),
                **source.dependencies,
            }
            for source in sources
        }
        for source in sources:
            for outcome in ("success", "failure"):
                _OUTCOMES.labels(source.name, outcome)

    async def run(self) -> None:
        """Watch all files until cancelled."""
        async with NamedTaskGroup() as group:
            for source in self._sources:
                group.start(self._watch(source), name=f"reload-{source.name}")

    async def _watch(self, source: ReloadSource) -> None:
        seen = used = self._used[source.name]
        unchanged_checks = 0
        retry_at: float | None = None
        while True:
            await asyncio.sleep(CHECK_S)
            before, seen = seen, await asyncio.to_thread(_read_signatures, used)
            unchanged_checks = unchanged_checks + 1 if seen == before else 0
            settled = unchanged_checks >= (MISSING_FILE_CHECKS if None in seen.values() else 1)
            due = retry_at is not None and clock.monotonic() >= retry_at
            if settled and (seen != used or due):
                retry = await self._reload(source, is_retry=seen == used)
                retry_at = clock.monotonic() + RETRY_S if retry else None
                used = {source.path: seen[source.path], **source.dependencies}
                # Signatures from before the read, so that a change during the read is noticed.
                seen = {**used, **{path: seen[path] for path in used if path in seen}}

    async def _reload(self, source: ReloadSource, *, is_retry: bool) -> bool:
        """Reload a source, and report the result; return whether to retry the same content."""
        facts = {"file": str(source.path), "setting": source.name}
        try:
            changed = await source.reload()
        except ContentRejected as refusal:
            message = redact.mask_text(str(refusal))
            _OUTCOMES.labels(source.name, "failure").inc()
            if not is_retry:
                self._log.warning(
                    "changed file rejected, keeping the previous content", error=message, **facts
                )
                self._record_event("Warning", "ConfigRejected", f"{source.name}: {message}")
            return not refusal.is_permanent
        except Exception as error:  # noqa: BLE001 - one file must not end the watch of the others
            _OUTCOMES.labels(source.name, "failure").inc()
            self._log.error(
                "internal error while reloading file, keeping the previous content",
                exc_info=error,
                **facts,
            )
            return False
        _OUTCOMES.labels(source.name, "success").inc()
        self._log.info("changed file applied", detail=changed, **facts)
        self._record_event("Normal", "ConfigReloaded", f"{source.name}: {changed}")
        return False


def signatures(*files: str) -> Signatures:
    """Return the signature of each file; empty names are ignored."""
    return _read_signatures(Path(file) for file in files if file)


def _read_signatures(paths: Iterable[Path]) -> dict[Path, Signature]:
    return {path: signature(path) for path in paths}


class CloudConfigSource:
    """Source for the provider's configuration; after a change, a new provider replaces the old.

    Files that the provider asks to watch count as part of the configuration. Without
    `--cloud-config`, only these files are watched.

    Args:
        file: value of `--cloud-config`; may be empty.
        configured: opens a provider with the current content.
        holder: holder of the provider in use.
        accept: checks a new provider; raises to reject it.
    """

    name = "cloud-config"

    def __init__(
        self,
        file: str,
        configured: ConfiguredProvider,
        holder: ProviderHolder,
        accept: Callable[[Cloud], Awaitable[None]],
    ) -> None:
        self.path = Path(file) if file else next(iter(configured.watched_files))
        self.dependencies = configured.watched_files
        self._opening = configured.opened_once
        self._holder = holder
        self._accept = accept

    async def reload(self) -> str:
        """Replace the provider. Raises ContentRejected."""
        before = dict(self.dependencies)
        self.dependencies.clear()
        try:
            await self._holder.exchange(self._opening, self._accept)
        except Exception as error:
            # The old provider stays in use. Watch its files too: a missing file may reappear.
            self.dependencies.update({**before, **self.dependencies})
            config_error = find_misconfigured(error)
            raise ContentRejected(
                str(config_error or normalize(error)), final=config_error is not None
            ) from error
        return "provider reopened"


class KubeconfigSource:
    """Source for credentials of an API server; a change replaces them in the transport.

    Files that the kubeconfig names count as part of it. With the in-cluster configuration, only
    the files of the service account are watched.

    Args:
        file: path of the kubeconfig; empty means the in-cluster configuration.
        transport: the transport that gets the new credentials.
        environ: environment variables, for the in-cluster configuration and for exec plugins.
        master: value of `--master`.
        on_adopted: called after the transport has got new credentials.
        name: label value in metrics; empty means `kubeconfig` or `service-account`.
    """

    def __init__(
        self,
        file: str,
        transport: Transport,
        *,
        environ: Mapping[str, str],
        master: str = "",
        on_adopted: Callable[[], None] = lambda: None,
        name: str = "",
    ) -> None:
        self.name = name or ("kubeconfig" if file else "service-account")
        self.dependencies = transport.config.files
        token = next(iter(self.dependencies), kube_config.SERVICE_ACCOUNT / "token")
        self.path = Path(file) if file else token
        self._read = partial(kube_config.load, file, master, environ=environ)
        self._transport = transport
        self._on_adopted = on_adopted

    async def reload(self) -> str:
        """Test the new credentials with a request, then use them. Raises ContentRejected."""
        try:
            new_config = await asyncio.to_thread(self._read)
        except kube_config.ClusterConfigError as error:
            raise ContentRejected(str(error)) from error
        self.dependencies = new_config.files
        if new_config.server != self._transport.config.server:
            raise ContentRejected(
                f"the server changed to {new_config.server}; restart kube-ccm to use it"
            )
        try:
            async with Transport(new_config, user_agent=self._transport.user_agent) as wire:
                # Forbidden proves that the server has authenticated the caller.
                with suppress(kube_errors.Forbidden):
                    await Client(wire).raw("GET", "/api/v1", retry=False)
        except kube_errors.KubeError as error:
            raise ContentRejected(str(error), final=False) from error
        self._transport.adopt(new_config)
        self._on_adopted()
        return "new credentials applied"


class DaemonConfigSource:
    """Source for the daemon's configuration file; only log levels change without a restart.

    Args:
        given: the settings in effect; settings of the command line have precedence over the file.
    """

    name = "config"

    def __init__(self, given: Options) -> None:
        self.path = Path(given.config)
        self.dependencies = NO_FILES
        self._given = given
        self._current = given

    async def reload(self) -> str:
        """Read the file, check it, and apply its log levels. Raises ContentRejected."""
        try:
            settings = await asyncio.to_thread(config.reread, self._given)
            options.check(settings)
        except UsageError as error:
            raise ContentRejected(str(error)) from error
        changed = [name for name in FLAGS if settings.get(name) != self._current.get(name)]
        self._current = settings
        log.set_verbosity(settings.v, settings.vmodule)
        at_restart = [name for name in changed if name not in LIVE_SETTINGS]
        if at_restart:
            return f"changed, effective after a restart: {', '.join(at_restart)}"
        return f"changed: {', '.join(changed) or 'nothing'}"
