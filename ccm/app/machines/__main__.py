"""`python -m ccm.app.machines NAME` runs the machine command of that name."""

from __future__ import annotations

import sys

from ccm.app.machines.commands import COMMANDS
from ccm.app.main import exit_process, main

if __name__ == "__main__":
    name, *words = sys.argv[1:] or [""]
    if name not in COMMANDS:
        sys.exit(f"command missing or unknown; use one of {', '.join(COMMANDS)}")
    exit_process(main(words, COMMANDS[name].program))
