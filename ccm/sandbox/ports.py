"""Choose loopback ports for servers that must come back on the same one.

A server that is stopped and started again needs its old port free. Ports that
the kernel hands out for outgoing connections (from 32768 on, Linux) may be
taken meanwhile, so ours come from below that range. A port is listened on only
some time after it was picked: each process picks in order from a place of its
own, so that it picks no port a second time before that, and others rarely do.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import socket
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
_FIRST = 18000
_LAST = 31999
_ATTEMPTS = 200


def pick_port() -> int:
    """A loopback TCP port that nobody listens on now.

    Raises:
        OSError: no free port was found.
    """
    for _ in range(_ATTEMPTS):
        port = _FIRST + next(_steps()) % (_LAST - _FIRST + 1)
        if _is_free(port):
            return port
    raise OSError(f"no free loopback port between {_FIRST} and {_LAST}")


@functools.cache
def _steps() -> Iterator[int]:
    """Return this process's walk through the ports."""
    return itertools.count(random.SystemRandom().randrange(_LAST - _FIRST + 1))


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return True
    return False
