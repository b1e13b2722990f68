"""The settings of these commands: the daemon's, and what only they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ccm.app.options import Options
from ccm.app.options.argv import quote
from ccm.base.flags import Flag


@dataclass(frozen=True, kw_only=True)
class CommandOptions(Options):
    """The daemon's settings as one of these commands has them.

    Attributes:
        by_flag: the value of each flag of the command.
        known: its flags.
    """

    by_flag: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, Flag] = field(default_factory=dict)

    def notices(self) -> list[str]:
        """What to say once at start about flags that have no effect."""
        told = [self.known[name] for name in sorted(self.explicit)]
        return [f"--{flag.name} has no effect: {flag.accepted}" for flag in told if flag.accepted]

    def flag_lines(self) -> list[str]:
        """Every flag with its value, for the log."""
        return [f"FLAG: --{name}={quote(text)}" for name, text in self.written().items()]

    def written(self) -> dict[str, str]:
        """Every flag with its value, as it is written."""
        return {name: flag.kind.write(self.by_flag[name]) for name, flag in self.known.items()}
