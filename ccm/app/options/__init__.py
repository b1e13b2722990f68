"""What the daemon may be told: its flags, its configuration file, and what is wrong with them.

Pure: text in, settings or sentences out; no clock, no event loop, no wire. Flags of controllers
are declared in their manifests. `parse` reads a command line, `answer` serves `--help` and
`--version`, `config` reads and writes the configuration file, `checks` looks for settings that
make no sense, and `reference` writes `FLAGS.md`.
"""

from ccm.app.options.command import PROGRAM, answer, parse
from ccm.app.options.table import FLAGS, SECTIONS, Options

__all__ = ["FLAGS", "PROGRAM", "SECTIONS", "Options", "answer", "parse"]
