"""The daemon's settings: its flags, its configuration file, and their validation.

This package maps text to settings or error messages. It uses no clock, no event loop and no
network. The flags of controllers are declared in other packages; `controllers` imports them.
`parse` reads a command line, `help_or_version` returns the text of `--help` and `--version`, and
`config` reads and writes the configuration file. `check` rejects invalid settings. `FLAGS.md` is
generated from the table of flags.
"""

from ccm.app.options.argv import UsageError
from ccm.app.options.table import (
    ALIASES,
    FLAGS,
    NO_EFFECT,
    PROGRAM,
    SECTIONS,
    Options,
    check,
    faults,
    help_or_version,
    parse,
)

__all__ = [
    "ALIASES",
    "FLAGS",
    "NO_EFFECT",
    "PROGRAM",
    "SECTIONS",
    "Options",
    "UsageError",
    "check",
    "faults",
    "help_or_version",
    "parse",
]
