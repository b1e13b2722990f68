"""Command lines that run a module of this project with the same interpreter."""

from __future__ import annotations

import site
import sys
from pathlib import Path


def command(module: str, *words: str) -> list[str]:
    """Return the command line of a process that runs an installed module.

    Neither the current folder nor PYTHON... variables affect which code runs. The -X options of
    this process apply to the new one.
    """
    # -I also ignores packages in the user's home, where this package may be installed.
    is_at_home = Path(__file__).is_relative_to(site.getusersitepackages())
    arguments = [sys.executable, *(("-E", "-P") if is_at_home else ("-I",))]
    for name, value in sys._xoptions.items():  # noqa: SLF001 - there is no public name
        arguments.append(f"-X{name}" if value is True else f"-X{name}={value}")
    return [*arguments, "-m", module, *words]
