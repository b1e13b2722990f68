"""Our programs as processes that start at once: forked from one that has imported everything.

`Popen` and `run` take the place of `subprocess`'s for `[sys.executable, "-m", MODULE, ...]`.
The server has no event loop, thread, TLS context or open socket but its own; each child
becomes the program as `exec` would make it: session, directory, environment, arguments,
standard streams, signals, and the way it ends. Of what a new interpreter does by itself it
only reads PYTHONPATH and PYTHONWARNINGS; a test of more starts one by `subprocess`.

Started by exec a daemon costs two seconds of CPU, forked a hundredth.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ccm.sandbox import cluster, process

_ROOT = Path(__file__).parent.parent
_LARGEST_ORDER = 200_000

common: socket.socket | None = None
"""The way to a server that forks servers: importing everything costs each of them a second."""

_PROGRAM = """\
#!{python} -IS
import json, os, socket, sys
told, telling = os.pipe()
order = {{"argv": [{module!r}, *sys.argv[1:]], "env": dict(os.environ), "cwd": os.getcwd()}}
order |= {{"new_session": True, "address": {address!r}, "for": os.getpid()}}
way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
way.connect({address!r})
socket.send_fds(way, [json.dumps(order).encode()], [0, 1, 2, telling])
os.close(telling)
os.read(told, 16)
code = os.waitstatus_to_exitcode(int(os.read(told, 16) or 9))
sys.exit(code if code >= 0 else 128 - code)
"""
"""Program that has a module forked, and ends as the module does; its start costs 20 ms of CPU."""

_address = ""
"""Address of the server for the children of this process; empty: the process is not the module of
a program."""


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, forked; it dies with the process that started it."""

    @staticmethod
    def server() -> socket.socket:
        """The way to the server that forks it."""
        return _connected(_address) if _address else _server()

    def _execute_child(self, *given: Any) -> None:
        how = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        python, dash_m, *argv = how["args"]
        assert (python, dash_m) == (sys.executable, "-m"), "only our own modules are forked"
        order = {
            "argv": argv,
            "env": dict(os.environ if how["env"] is None else how["env"]),
            "cwd": os.fspath(how["cwd"] or Path.cwd()),
            "new_session": how["start_new_session"],
        }
        if _address:
            order |= {"address": _address, "for": os.getpid()}
        streams = [how["p2cread"], how["c2pwrite"], how["errwrite"]]
        own = [stream if stream >= 0 else number for number, stream in enumerate(streams)]
        self._told, telling = os.pipe()
        socket.send_fds(self.server(), [json.dumps(order).encode()], [*own, telling])
        os.close(telling)
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(how[end] for end in pipes))  # type: ignore[attr-defined]
        self._child_created = True
        self.pid = int(os.read(self._told, 16))

    def _try_wait(self, flags: int) -> tuple[int, int]:
        ready, _, _ = select.select([self._told], [], [], 0 if flags & os.WNOHANG else None)
        if not ready:
            return 0, 0
        status = int(os.read(self._told, 16) or signal.SIGKILL)
        os.close(self._told)
        return self.pid, status

    def _internal_poll(self, **_: Any) -> int | None:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None and (ended := self._try_wait(os.WNOHANG))[0]:
                self._handle_exitstatus(ended[1])  # type: ignore[attr-defined]
        return self.returncode


class Child(process.Child):
    """A `process.Child` of a module of ours: `argv` is its name and arguments."""

    def __init__(
        self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = argv[0]
        self.log = log
        with log.open("ab") as sink:
            self._process = Popen(
                [sys.executable, "-m", *argv],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )


def write_program(file: Path, module: str) -> None:
    """Write a program for shells that runs a module of ours, forked.

    The processes of a sandbox that the module starts are forked too. A module whose program was
    killed gets SIGTERM.
    """
    text = _PROGRAM.format(python=sys.executable, module=module, address=_listening())
    file.write_text(text)
    file.chmod(0o755)


@contextlib.asynccontextmanager
async def open_child(
    argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Child]:
    """`ccm.sandbox.cluster.open_child`, forked."""
    child = Child(argv, log=log, env=environment)
    try:
        yield child
    finally:
        await child.stop(grace_s=cluster.GRACE_S)


def run(command: Sequence[str], *, timeout: float, **how: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with both outputs caught as text."""
    with Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    ) as child:
        try:
            said, complaint = child.communicate(timeout=timeout)
        finally:
            child.kill()
    return subprocess.CompletedProcess(command, child.returncode, said, complaint)


@functools.cache
def _server() -> socket.socket:
    """The way to this process's server."""
    if common is None:
        return new_server()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, Path(os.devnull).open("wb") as nobody:
        socket.send_fds(common, [b"{}"], [theirs.fileno(), 1, 2, nobody.fileno()])
    return ours


@functools.cache
def _listening() -> str:
    """The address at which a server of this process takes one order from each connection."""
    address = f"\0forkserver-{uuid.uuid4()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener, Path(os.devnull).open("wb") as nobody:
        listener.bind(address)
        listener.listen(100)
        way = common or _server()
        socket.send_fds(way, [b"{}"], [listener.fileno(), 1, 2, nobody.fileno()])
    return address


def _connected(address: str) -> socket.socket:
    way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    way.connect(address)
    return way


def new_server() -> socket.socket:
    """The way to a new server of our programs."""
    return started([sys.executable, "-m", "tests.forkserver"], cwd=_ROOT)


def started(command: Sequence[str], *words: str, **how: Any) -> socket.socket:
    """The way to a new server, which ends when we do; it is told its own end first."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [*command, str(theirs.fileno()), *words]
    server = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True, **how)
    theirs.close()

    @atexit.register
    def _end() -> None:
        ours.close()
        server.wait()

    return ours


def _import_everything() -> None:
    # What is forked runs on the standard library's event loop, what is started on uvloop's.
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # absent, to `import`
    for package in ("ccm", "providers"):
        folder = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(folder, f"{package}."):
            if not module.name.startswith("ccm.testing") and "__main__" not in module.name:
                importlib.import_module(module.name)


def next_child(orders: socket.socket, take: Callable[[Sequence[int]], None]) -> dict[str, Any]:
    """Serve; returns in each child, with its order, after it took its standard streams."""
    ended, wakeup = os.pipe()
    for end in (ended, wakeup):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    dies_with_us = process._dies_with(os.getpid())
    children: dict[int, int] = {}
    listens = orders.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    while True:
        ready, _, _ = select.select([orders.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _tell_ends(children)
        if orders.fileno() in ready:
            way = orders.accept()[0] if listens else orders
            text, streams, _, _ = socket.recv_fds(way, _LARGEST_ORDER, 4)
            if listens:
                way.close()
            elif not text:
                sys.exit()
            if not text:
                continue
            pid = os.fork()
            if pid == 0:
                if dies_with_us is not None:
                    dies_with_us()
                take(streams[:3])
                return dict(json.loads(text))
            children[pid] = streams[3]
            _tell(streams[3], pid)
            for stream in streams[:3]:
                os.close(stream)


def _tell(way: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # a killed program does not listen
        os.write(way, f"{number:16}".encode())


def _tell_ends(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        _tell(children[pid], status)
        os.close(children.pop(pid))


def set_streams(streams: Sequence[int]) -> None:
    """Make these the standard streams, and forget the server's signals."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _take(streams: Sequence[int]) -> None:
    """Make these the standard streams, and close all else."""
    set_streams(streams)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _end_with(pid: int) -> None:
    """End this process when another one has ended."""
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def _become(order: Mapping[str, Any]) -> None:
    global _address
    if address := order.get("address"):
        _address, cluster.open_child = address, open_child
        threading.Thread(target=_end_with, args=[order["for"]], daemon=True).start()
    if order["new_session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if os.environ.get("PYTHONWARNINGS") == "always":
        warnings.simplefilter("always")
    module, *sys.argv[1:] = order["argv"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    channel = socket.socket(fileno=int(sys.argv[1]))
    _import_everything()
    gc.freeze()
    gc.set_threshold(10_000)  # as in the workers
    order = next_child(channel, _take)
    channel.detach()  # closed already
    if not order:  # a server, whose orders come on its standard input
        channel = socket.socket(fileno=os.dup(0))
        order = next_child(channel, _take)
        channel.detach()
    _become(order)
