"""Finds the settings of a provider's cloud config by letting it read an empty one.

Whatever it asks for is noted and answered with the default. `Fields.done`, which a provider
calls when it has read everything, stops it there, before it could reach out for anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ccm.base import durations, redact
from ccm.cloud.config import ConfigError, Context, Fields
from ccm.cloud.registry import Opener

LIMIT_S = 5.0
"""Longest time a provider may take to read an empty configuration, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a cloud config.

    Attributes:
        name: with its section before a dot, if the format has sections.
        kind: its values, in words.
        default: as one would write it; empty if it has none.
        required: whether the provider refuses to open without it.
    """

    name: str
    kind: str
    default: str = ""
    required: bool = False


async def read(opener: Opener) -> tuple[str, Sequence[Setting]]:
    """The format, such as YAML, and the settings, as far as the provider got.

    Both are empty for a provider that reads the bytes itself.
    """
    given = _Context()
    try:
        async with asyncio.timeout(LIMIT_S), opener(given):
            pass
    except Exception:  # noqa: BLE001, S110 - however it ends, what it read is noted
        pass
    return given.record.form, tuple(given.record.settings.values())


class _Enough(ConfigError):
    """The provider has read all it reads."""


@dataclass(slots=True)
class _Record:
    """What was read."""

    form: str = ""
    settings: dict[str, Setting] = field(default_factory=dict)


class _Fields(Fields):
    """Notes what is asked for, and answers with the defaults."""

    def __init__(self, record: _Record, *, where: str = "") -> None:
        super().__init__({}, where=where)
        self._record = record

    def _note(self, name: str, kind: str, default: str, *, required: bool = False) -> None:
        whole = f"{self._where}{name}"
        self._record.settings[whole] = Setting(
            name=whole, kind=kind, default=default, required=required
        )

    def text(self, name: str, default: str = "", *, required: bool = False) -> str:
        if redact.is_secret(name):
            return self.secret(name, default, required=required)
        self._note(name, "text", default, required=required)
        return default

    def secret(self, name: str, default: str = "", *, required: bool = False) -> str:
        self._note(name, "secret", "", required=required)
        return default

    def integer(self, name: str, default: int, *, least: int | None = None) -> int:
        kind = "whole number" if least is None else f"whole number, at least {least}"
        self._note(name, kind, str(default))
        return default

    def boolean(self, name: str, default: bool) -> bool:
        self._note(name, "true or false", str(default).lower())
        return default

    def duration(self, name: str, default: timedelta) -> timedelta:
        self._note(name, "duration", durations.format_duration(default))
        return default

    def done(self) -> None:
        raise _Enough


class _Sections(Mapping[str, Fields]):
    """Every section that is asked for is there."""

    def __init__(self, record: _Record) -> None:
        self._record = record

    def __getitem__(self, name: str) -> Fields:
        return _Fields(self._record, where=name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context(Context):
    """A configuration that notes what is read of it."""

    record: _Record = field(default_factory=_Record)

    def _read(self, form: str) -> Fields:
        self.record.form = form
        return _Fields(self.record)

    def yaml(self) -> Fields:
        return self._read("YAML")

    def json(self) -> Fields:
        return self._read("JSON")

    def toml(self) -> Fields:
        return self._read("TOML")

    def ini(self) -> Mapping[str, Fields]:
        self.record.form = "INI"
        return _Sections(self.record)
