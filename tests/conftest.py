"""Settings of every test: its own modules can be imported, and only loopback is reachable."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from ccm.base import redact
from ccm.testing.clock import VirtualTimeLoop

_TESTS = Path(__file__).parent
_ROOT = str(_TESTS.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from tests.shifted import ShiftedTimeLoop  # noqa: E402 - found through the line above

pytest_plugins = ["tests.handclock", "tests.servers", "tests.storage"]

# Each run tries a few examples of a property, and `make soak` many.
settings.register_profile("few", max_examples=25, deadline=None)
settings.register_profile("soak", max_examples=300, deadline=None)
settings.load_profile("few")


@pytest.hookimpl(wrapper=True)  # before xdist reads the groups, and when all is chosen
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Tests that share something of their module run in the same worker: it is made once."""
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        if not isinstance(item, pytest.Function) or item.get_closest_marker("xdist_group"):
            continue
        fixtures = item._fixtureinfo.name2fixturedefs.values()
        if any(one.scope == "module" for several in fixtures for one in several):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    yield
    if hasattr(config, "workerinput"):  # a worker's: in one process they keep their order
        items[:] = _mixed(items)


def _mixed(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Each room's tests spread over the run: those of some wait, those of others compute, and
    together they keep the cores busy. The short ones of `unit` are the last.
    """
    rooms: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        rooms[item.path.relative_to(_TESTS).parts[0]].append(item)
    placed = [
        ((n + 0.5) / len(room) * (1.0 if name == "unit" else 0.85), item)
        for name, room in rooms.items()
        for n, item in enumerate(room)
    ]
    return [item for _, item in sorted(placed, key=itemgetter(0))]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Workers are forked when the tests are collected."""
    from tests import workers

    workers.fork_workers(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_getremotemodule() -> str:
    """They have nothing to collect."""
    from tests import workers

    return workers.REMOTE


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests that do no real input or output run in virtual time, some in one they move."""
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    if item.get_closest_marker("shifted_time"):
        return {"shifted": ShiftedTimeLoop}
    return {"real": asyncio.new_event_loop}


class NetworkForbidden(RuntimeError):
    """A test connected to another host. No `OSError`, so that it is not handled as an outage."""


@pytest.fixture(autouse=True)
def _secrets_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of one test is a plain word in the texts of the next."""
    monkeypatch.setattr(redact, "_lasting", redact._lasting.copy())
    monkeypatch.setattr(redact, "_transient", redact._transient.copy())
    monkeypatch.setattr(redact, "_held", redact._held.copy())
    monkeypatch.setattr(redact, "_needles", None)


@pytest.fixture(autouse=True, scope="session")
def _only_loopback() -> Iterator[None]:
    """No test reaches another machine, whatever it does wrong."""
    with pytest.MonkeyPatch.context() as patches:
        for name in ("connect", "connect_ex"):
            patches.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
        yield


def _guarded(connect: Any) -> Any:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise NetworkForbidden(f"a test may not connect to {address}")
        return connect(self, address)

    return guarded


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
