"""The daemon's settings: its flags, its configuration file, and the faults in them.

Pure: text in, settings or sentences out; no clock, no event loop, no wire. Flags of controllers
are declared in their manifests. `parse` reads a command line, `answer` serves `--help` and
`--version`, `config` reads and writes the configuration file, `check` refuses settings that make
no sense, and `reference` writes `FLAGS.md`.
"""

from ccm.app.options.argv import UsageError
from ccm.app.options.table import (
    FLAGS,
    IDLE,
    PROGRAM,
    SECTIONS,
    Options,
    answer,
    check,
    faults,
    parse,
)

__all__ = [
    "FLAGS",
    "IDLE",
    "PROGRAM",
    "SECTIONS",
    "Options",
    "UsageError",
    "answer",
    "check",
    "faults",
    "parse",
]
