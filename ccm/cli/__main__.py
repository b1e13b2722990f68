"""`kube-ccm`, `kubectl ccm` and `python -m ccm.cli`: the command for people."""

from __future__ import annotations

import os
import sys
import threading

from ccm.cli import completion
from ccm.cli import main as run


def complete() -> None:
    """Tell kubectl what Tab may offer behind `kubectl ccm` and the words that it hands on."""
    sys.exit(run([completion.ASK, "kube-ccm", *sys.argv[1:]]))


def main() -> None:
    """Run the command and end the process, also while a thread of a vendor's library hangs."""
    code = run()
    if all(thread.daemon for thread in threading.enumerate()[1:]):
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
