"""Follows files while the process runs: a new version is tried before the old is let go.

Each file has a source that tries its new content, and that may name more files which its
content depends on. One that cannot be used leaves everything as it was, and is said once, as an
event, a metric and a log line; it is tried again now and then, because what was wrong may be the
other side, and at once when a file changes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from ccm.base import clock, log, metrics, redact
from ccm.base.files import Signature, signature
from ccm.base.tasks import Group
from ccm.kube.events import EventRecorder
from ccm.model.meta import ObjectReference

CHECK_S = 1.0
"""How often files are looked at; two looks must agree, so that nothing half-written is read."""

RETRY_S = 30.0
"""Pause between two tries of the same content."""

GONE_LOOKS = 30
"""In how many looks a file may be missing, as while it is exchanged, until that is a fault."""

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
    def more(self) -> Mapping[Path, Signature]:
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


def teller(recorder: EventRecorder, about: ObjectReference) -> Tell:
    """Records events about one object."""

    def tell(type_: str, reason: str, message: str) -> None:
        recorder.event(about, type_, reason, message)

    return tell


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
        tell: Tell,
        *,
        since: Mapping[Path, Signature] = MappingProxyType({}),
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
                    "changed file cannot be used, the old stays", error=message, **facts
                )
                self._tell("Warning", "ConfigRejected", f"{source.name}: {message}")
            return not refusal.final
        except Exception as error:  # noqa: BLE001 - one file must not end what follows the others
            _OUTCOMES.labels(source.name, "failure").inc()
            self._log.error("changed file made us stumble", exc_info=error, **facts)
            return False
        _OUTCOMES.labels(source.name, "success").inc()
        self._log.info("changed file is in use", detail=changed, **facts)
        self._tell("Normal", "ConfigReloaded", f"{source.name}: {changed}")
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What is followed, and what it looked like before it was first read."""

    since: Mapping[Path, Signature] = field(default_factory=dict)
    sources: Sequence[Source] = ()


NOTHING = Followed()


def signatures(*files: str) -> Mapping[Path, Signature]:
    """The signature of each file that is named."""
    return {Path(file): signature(Path(file)) for file in files if file}


def _look(paths: Iterable[Path]) -> dict[Path, Signature]:
    return {path: signature(path) for path in paths}
