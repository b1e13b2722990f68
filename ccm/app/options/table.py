"""The settings that the daemon was started with, and the table of its flags.

Each base of `Options` declares flags as its fields: the field's name is the flag's; section,
kind, default, meaning and check stand beside it. Names and defaults are those of the Go
reference, so that its command lines start this daemon; where a default differs, or a flag is
ours, the help says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ccm
from ccm.app.options import gates, generic, migration, serving
from ccm.app.options.argv import quote
from ccm.app.options.controllers import ControllerFlags
from ccm.app.options.election import ElectionFlags
from ccm.app.options.generic import GenericFlags
from ccm.app.options.logs import GLOBAL, LogFlags
from ccm.app.options.serving import ServingFlags
from ccm.base.flags import Flag, table
from ccm.runtime.manifest import GENERIC, MISC

_OF_CONTROLLERS = dict.fromkeys(
    flag.section for flags in ControllerFlags.__bases__ for flag in table(flags).values()
)

SECTIONS = (
    generic.DEBUGGING,
    generic.LEADER_MIGRATION,
    GENERIC,
    *sorted(
        (section for section in _OF_CONTROLLERS if section not in (GENERIC, MISC)),
        key=lambda section: section.ours,
    ),
    generic.PROVIDER_CALLS,
    generic.STOPPING,
    generic.PERSISTENCE,
    generic.FILE,
    serving.WEBHOOK,
    serving.WEBHOOK_SERVING,
    serving.WEBHOOK_CALLERS,
    serving.SECURE_SERVING,
    serving.AUTHENTICATION,
    serving.AUTHORIZATION,
    MISC,
    GLOBAL,
)
"""The sections in the order of help."""


@dataclass(frozen=True, kw_only=True)
class Options(ControllerFlags, ElectionFlags, GenericFlags, LogFlags, ServingFlags):
    """Every setting of the daemon, read and typed; `Options()` is all defaults.

    Attributes:
        explicit: names of the flags that were given, also with their default, on the command
            line or in the configuration file.
        from_file: those of them that only the file gave.
        leader_migration: the plan that stands in the configuration file; None = none there.
        program: what runs, as others know it: in user agents, events and metrics.
    """

    explicit: frozenset[str] = frozenset()
    from_file: frozenset[str] = frozenset()
    leader_migration: migration.Plan | None = None
    program: str = migration.COMPONENT

    @classmethod
    def given(cls, values: Mapping[str, Any]) -> Options:
        """The settings that a command line gives: flag name -> value."""
        return cls(**fields(values), explicit=frozenset(values))

    def notices(self) -> list[str]:
        """What to say once at start: the settings given that have no effect or are old."""
        given = [flag for flag in FLAGS.values() if flag.name in self.explicit]
        said = [f"--{flag.name} has no effect: {flag.accepted}" for flag in given if flag.accepted]
        said += [
            f"--{flag.name} is deprecated: {flag.deprecated}"
            for flag in given
            if flag.deprecated and not flag.accepted
        ]
        if self.version.startswith("v"):
            said.append(f"--version={self.version} has no effect: the version is {ccm.__version__}")
        return [*said, *gates.notices(self.feature_gates), *serving.notices(self)]

    def flag_lines(self) -> list[str]:
        """`FLAG: --name="value"` for every flag, for the log at verbosity 1."""
        return [
            f"FLAG: --{name}={quote(flag.kind.write(self.get(name)))}"
            for name, flag in FLAGS.items()
        ]

    def get(self, name: str) -> object:
        """The value of a flag by its name with dashes."""
        return getattr(self, name.replace("-", "_"))


def fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of flags by the fields of `Options` that hold them."""
    return {name.replace("-", "_"): value for name, value in values.items()}


FLAGS: Mapping[str, Flag] = MappingProxyType(table(Options))
"""Every flag by its name, sorted."""
