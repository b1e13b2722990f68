"""Files in memory: what is secret has no business on a disk.

A container's root file system may be read-only too, and have no folder for such things.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import IO


def memory_file() -> IO[bytes]:
    """An empty file that is gone when it is closed; outside Linux a temporary one of ours alone."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("ccm"), "w+b")
    else:  # noqa: RET505 - mypy knows this form
        return tempfile.NamedTemporaryFile(prefix="ccm-")


def path_of(file: IO[bytes]) -> str:
    """The path under which this process can read a file in memory."""
    return f"/proc/self/fd/{file.fileno()}" if sys.platform == "linux" else file.name
