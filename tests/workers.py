"""Workers of pytest-xdist that are forked when the tests are collected.

Each worker collects all tests for itself, which costs as much as a tenth of running them all
in one: nine seconds of CPU. Here one process collects them, once, and becomes each worker.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from _pytest import tmpdir
from _pytest.config import _prepareconfig
from execnet import gateway_base, gateway_io

from tests import forkserver

_MAIN = "import sys; sys.path[:] = {!r}; from tests import workers; workers.collect_and_serve()"
# What execnet runs in a worker, where xdist would have its own module run.
REMOTE = "from tests import workers; workers.work(channel)"

_FOLLOWED = ("logstart", "testreport", "logfinish")
"""What xdist tells of a test before it tells that the test is complete."""


def fork_workers(config: pytest.Config) -> None:
    """Have the workers of this run forked."""
    words = tuple(str(word) for word in config.invocation_params.args)
    folder = str(config.invocation_params.dir)

    class Worker(forkserver.Popen):
        server = staticmethod(functools.partial(_server, words, folder))

    class Master(gateway_io.Popen2IOMaster):
        def __init__(self, _: Any, execmodel: gateway_base.ExecModel) -> None:
            command = [sys.executable, "-m", "tests.workers"]
            self.popen = Worker(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            ends = (self.popen.stdin, self.popen.stdout)
            gateway_base.Popen2IO.__init__(self, *ends, execmodel=execmodel)

    gateway_io.Popen2IOMaster = Master  # type: ignore[assignment,misc]


@functools.cache
def _server(words: Sequence[str], folder: str) -> socket.socket:
    command = [sys.executable, "-c", _MAIN.format(sys.path)]
    return forkserver.started(command, json.dumps(words), cwd=folder, stdout=subprocess.DEVNULL)


class _Template:
    """What a worker is before it works: a session with its tests."""

    session: pytest.Session

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self.troubles: list[pytest.CollectReport] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.troubles.append(report)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Name the groups, as each worker would."""
        _remote().WorkerInteractor.pytest_collection_modifyitems(Any, config, items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve; each worker goes on from here."""
        self.session = session
        session.config.pluginmanager.unregister(self)
        # Its files would be shared by all workers.
        _capture(session.config).stop_global_capturing()
        forkserver.common = forkserver.new_server()
        gc.collect()
        gc.freeze()
        # The default, 700, is for small programs: its rounds took a tenth of all the time.
        gc.set_threshold(10_000)
        gc.enable()
        try:
            forkserver.next_child(self._orders, forkserver.set_streams)
        except SystemExit:  # nobody can order any more
            return True
        exec(eval(sys.stdin.readline()))  # execnet's beginning, which calls `work`
        atexit._run_exitfuncs()
        os._exit(0)  # the session has ended there


_templates: list[_Template] = []


def is_forked() -> bool:
    """Whether this process is a worker that was forked."""
    return bool(_templates)


def collect_and_serve() -> None:
    """Collect the tests as a worker does, and become one for each order."""
    gc.disable()  # while the heap only grows
    words = json.loads(sys.argv[2])
    config = _prepareconfig(words, None)
    _remote().setup_config(config, None)
    config.workerinput, config.workeroutput = {}, {}  # type: ignore[attr-defined]
    _templates.append(_Template(socket.socket(fileno=int(sys.argv[1]))))
    config.pluginmanager.register(_templates[0])
    config.hook.pytest_cmdline_main(config=config)


def work(channel: Any) -> None:
    """What `xdist.remote` does, from the point where the tests are collected."""
    session = _templates[0].session
    config: Any = session.config
    given, _, options, _ = channel.receive()
    os.environ["PYTEST_XDIST_TESTRUNUID"] = given["testrunuid"]
    os.environ["PYTEST_XDIST_WORKER"] = given["workerid"]
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(given["workercount"])
    config.workerinput |= given
    config.option.basetemp = options.get("basetemp")
    tmpdir.pytest_configure(config)
    _capture(config).start_global_capturing()
    _capture(config).suspend_global_capture()
    worker = _remote().interactor = _remote().WorkerInteractor(config, channel)
    _tell_each_test_at_once(worker)
    worker.pytest_sessionstart(session)
    for trouble in _templates[0].troubles:
        worker.pytest_collectreport(trouble)
    worker.pytest_collection_finish(session)
    worker.pytest_runtestloop(session)
    config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)


def _tell_each_test_at_once(worker: Any) -> None:
    """Six messages of a test are one on the wire: each wakes the process that reads them."""
    wire, send = worker.channel.gateway._io, worker.sendevent
    write, held = wire.write, list[bytes]()

    def sendevent(name: str, **facts: Any) -> None:
        wire.write = held.append
        send(name, **facts)
        wire.write = write
        if name not in _FOLLOWED:
            write(b"".join(held))
            held.clear()

    worker.sendevent = sendevent


def _remote() -> Any:
    """A module of a plugin; pytest has to import those itself."""
    return importlib.import_module("xdist.remote")


def _capture(config: pytest.Config) -> Any:
    return config.pluginmanager.getplugin("capturemanager")
