"""How much is logged: klog's `-v`, and `--vmodule` for single source files.

Verbosity is one number that may change while the process runs. A line of level n appears if
n is at most the verbosity, or at most the level of the first `--vmodule` pattern that fits the
source file it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

DEBUG = 4
"""The level of a `debug` line: each decision."""

LIBRARIES = 8
"""The level at which libraries say more than warnings."""


class Levels:
    """The verbosity of a process.

    Attributes:
        verbosity: the general one.
        ceiling: the highest level that may appear anywhere; a quick answer for most lines.
        patterns: the `--vmodule` pairs in force.
    """

    __slots__ = ("_cache", "ceiling", "patterns", "verbosity")

    def __init__(self) -> None:
        self.verbosity = 0
        self.ceiling = 0
        self.patterns: tuple[tuple[str, int], ...] = ()
        self._cache: dict[str, int] = {}

    def set(self, verbosity: int, patterns: Iterable[tuple[str, int]] = ()) -> None:
        """Change both.

        Args:
            verbosity: the general level, from 0.
            patterns: (pattern, level); a pattern with a slash is compared with a module's whole
                path such as `ccm/kube/client`, one without with its last part. `*`, `?` and
                `[...]` mean what they mean in file names.
        """
        self.patterns = tuple(patterns)
        self._cache = {}
        self.verbosity = verbosity
        self.ceiling = max((verbosity, *(level for _, level in self.patterns)))

    def appears(self, level: int, module: str) -> bool:
        """Whether a line of this level from this module (dotted name) is to be written."""
        return level <= self.verbosity or level <= self._of(module)

    def _of(self, module: str) -> int:
        known = self._cache.get(module)
        if known is None:
            known = self._cache[module] = self._match(module.replace(".", "/"))
        return known

    def _match(self, path: str) -> int:
        last = path.rpartition("/")[2]
        for pattern, level in self.patterns:
            if fnmatchcase(path if "/" in pattern else last, pattern):
                return level
        return 0
