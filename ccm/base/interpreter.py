"""This interpreter once more, for a module of ours."""

from __future__ import annotations

import site
import sys
from pathlib import Path


def command(module: str, *words: str) -> list[str]:
    """The command line of a process that runs an installed module.

    Neither the folder we stand in nor a variable PYTHON... has a say in what code that is. What
    -X options we were started with hold there too.
    """
    # -I leaves out the packages in the user's home too: there we may be one of them.
    is_at_home = Path(__file__).is_relative_to(site.getusersitepackages())
    found = [sys.executable, *(("-E", "-P") if is_at_home else ("-I",))]
    for name, value in sys._xoptions.items():  # noqa: SLF001 - has no other name
        found.append(f"-X{name}" if value is True else f"-X{name}={value}")
    return [*found, "-m", module, *words]
