"""Callers who mean harm, each kind a function; run as `python -m tests.hostile.attacks`.

Arguments: `attack:port:how many`, made one after the other. It writes `done` when all have been
at it and keeps what the server leaves it until its standard input ends. A process of its own,
so that it gets a processor and file descriptors of its own.
"""

from __future__ import annotations

import contextlib
import resource
import secrets
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from tests.waiting import DEADLINE_S

REVIEW = "/service-annotations"
_PAUSE_S = 0.2
_SLOW_S = 3.0
_AT_ONCE, _BREATH_S = 100, 0.02
_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_CONTEXT.check_hostname = False
_CONTEXT.verify_mode = ssl.CERT_NONE


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)


def secured(port: int) -> ssl.SSLSocket:
    return _CONTEXT.wrap_socket(connect(port))


def silent(port: int, number: int) -> Iterator[socket.socket]:
    """Connections on which nothing is ever sent."""
    for _ in range(number):
        yield connect(port)


def unfinished(port: int, number: int) -> Iterator[socket.socket]:
    """Headers that never end."""
    begun = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(
        b"X-%d: %s\r\n" % (each, b"x" * 1000) for each in range(60)
    )
    for _ in range(number):
        with contextlib.suppress(OSError):
            caller = secured(port)
            caller.sendall(begun)
            yield caller


def cycles(port: int, number: int) -> Iterator[socket.socket]:
    """Connections that are closed as soon as they are open."""
    for _ in range(number):
        connect(port).close()
    yield from ()


def paths(port: int, number: int) -> Iterator[socket.socket]:
    """Anonymous requests for long paths, each another one."""
    return _requested(port, number, size=8192)


def longest_paths(port: int, number: int) -> Iterator[socket.socket]:
    """The same with paths that are just short enough to be asked about and remembered."""
    return _requested(port, number, size=1000)


def _requested(port: int, number: int, *, size: int) -> Iterator[socket.socket]:
    callers: list[ssl.SSLSocket] = []
    for each in range(number):
        path = b"/%d/%s" % (each, b"x" * size)
        for _ in range(3):
            try:
                if len(callers) < 16:
                    callers.append(secured(port))
                caller = callers.pop(0)
                caller.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
                if caller.recv(65536):
                    callers.append(caller)
                    break
            except OSError:
                continue
    yield from callers


def bodies(port: int, number: int) -> Iterator[socket.socket]:
    """Large reviews that come slowly."""
    head = b"POST %s HTTP/1.1\r\nHost: x\r\n" % REVIEW.encode()
    head += b"Content-Type: application/json\r\nContent-Length: 7000000\r\n\r\n"
    callers = [secured(port) for _ in range(number)]
    for caller in callers:
        caller.settimeout(_PAUSE_S)
    ends = time.monotonic() + _SLOW_S
    piece = head + b" " * 65536
    while callers and time.monotonic() < ends:
        for caller in list(callers):
            try:
                caller.sendall(piece)
            except OSError:
                callers.remove(caller)
        piece = b" " * 65536
        time.sleep(_PAUSE_S)
    yield from callers


def one_byte(port: int, number: int) -> Iterator[socket.socket]:
    """Connections on which a single byte is sent, one after the other without end; so many of
    them are held."""
    held = deque[socket.socket](maxlen=number)
    made = threading.Event()

    def flood() -> None:
        while True:
            for _ in range(_AT_ONCE):
                with contextlib.suppress(OSError):
                    held.append(connect(port))
                    held[-1].sendall(b"\x16")
            if len(held) == number:
                made.set()
            time.sleep(_BREATH_S)

    threading.Thread(target=flood, daemon=True).start()
    made.wait(DEADLINE_S)
    yield from ()


def tokens(port: int, number: int) -> Iterator[socket.socket]:
    """Callers that try one token after the other, and come back when they are thrown out."""
    tried = [threading.Event() for _ in range(number)]

    def guess(is_tried: threading.Event) -> None:
        while True:
            with contextlib.suppress(OSError), secured(port) as caller:
                while True:
                    caller.sendall(_GUESS % secrets.token_hex(32).encode())
                    is_tried.set()
                    if not caller.recv(65536):
                        break

    for each in tried:
        threading.Thread(target=guess, args=(each,), daemon=True).start()
    # Not all get so far: they throw each other out.
    ends = time.monotonic() + _SLOW_S
    for each in tried:
        each.wait(max(0.0, ends - time.monotonic()))
    yield from ()


_GUESS = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n"

ATTACKS: Mapping[str, Callable[[int, int], Iterator[socket.socket]]] = {
    each.__name__: each
    for each in (silent, one_byte, unfinished, cycles, paths, longest_paths, tokens, bodies)
}


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = [
        caller
        for name, port, number in (word.split(":") for word in sys.argv[1:])
        for caller in ATTACKS[name](int(port), int(number))
    ]
    print("done", flush=True)
    sys.stdin.read()
    for each in held:
        each.close()


if __name__ == "__main__":
    main()
