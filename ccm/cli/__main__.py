"""Entry points of `kube-ccm`, `kubectl ccm` and `python -m ccm.cli`."""

from __future__ import annotations

import os
import sys
import threading

from ccm.cli import completion
from ccm.cli import main as run


def complete() -> None:
    """Print the completions of a `kubectl ccm` command line; kubectl runs this on Tab."""
    sys.exit(run([completion.COMPLETE_COMMAND, "kube-ccm", *sys.argv[1:]]))


def main() -> None:
    """Run `kube-ccm`, and exit even if a thread of a vendor's library hangs."""
    code = run()
    if all(thread.daemon for thread in threading.enumerate()[1:]):
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
