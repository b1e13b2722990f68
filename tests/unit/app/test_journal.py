"""`--journal`: its storage, and when calls are recorded."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

from ccm.app import options
from ccm.app.journal import DaemonJournal
from ccm.app.persistence import RETRY_S, PersistenceStores
from ccm.base import clock
from ccm.cloud import Cloud, LoadBalancer, Status, errors
from ccm.cloud.calls.client import CloudClient
from ccm.kube.client import Client
from ccm.kube.errors import Forbidden
from ccm.persistence.journal import EntryState
from ccm.testing.builders import service
from ccm.testing.persistence_harness import captured_logs
from tests.waiting import eventually

ENSURE = LoadBalancer.ensure_load_balancer


class Api:
    """API server that returns the UID of the cluster."""

    async def raw(self, method: str, path: str, **_: Any) -> bytes:
        return json.dumps({"metadata": {"uid": "3f2c9a56-0000-4000-8000-000000000001"}}).encode()


class Balancers:
    """Load balancers that exist at once."""

    def get_load_balancer_name(self, cluster_name: str, service: Any) -> str:
        return str(service.name)

    async def ensure_load_balancer(self, cluster_name: str, service: Any, nodes: Any) -> Status:
        return Status()


def client() -> CloudClient:
    balancers: Any = Balancers()
    return CloudClient(Cloud(name="stub", load_balancer=balancers))


def stores(folder: Path, text: str = "") -> PersistenceStores:
    file = folder / "persistence.yaml"
    file.write_text(text or f"instances: [{{sqlite: {{path: {folder}/store/x.db}}}}]\n")
    return PersistenceStores(str(file), cast("Client", Api()), namespace="kube-system")


def journal_of(made: PersistenceStores, events: list[tuple[str, str, str]]) -> DaemonJournal:
    return DaemonJournal(
        options.parse(["--journal=report"]), made, lambda *event: events.append(event)
    )


async def until_open(journal: DaemonJournal) -> None:
    await eventually(lambda: journal.journal.is_open)


async def test_calls_are_recorded_while_the_daemon_leads(tmp_path: Path) -> None:
    handle, events = client(), list[tuple[str, str, str]]()
    for epoch in (1, 2):
        made = stores(tmp_path)
        journal = journal_of(made, events)
        async with made.opened("kubernetes", "me", epoch), journal.running(handle):
            await until_open(journal)
            await handle.call(ENSURE, "c1", service(f"web-{epoch}"), ())
        assert not journal.journal.is_open
        await handle.call(ENSURE, "c1", service("later"), ())

    found = {entry.intended_name: entry for entry in journal.journal.entries.values()}
    assert {name: entry.state for name, entry in found.items()} == {
        "web-1": EntryState.CREATED,
        "web-2": EntryState.CREATED,
    }
    assert (found["web-1"].epoch, found["web-2"].epoch, found["web-2"].writer) == (1, 2, "me")
    assert events == []


@pytest.mark.virtual_time
@pytest.mark.row("journal-07")
@pytest.mark.parametrize("policy", ["degrade", "block"])
async def test_an_unavailable_journal_is_reported_once(tmp_path: Path, policy: str) -> None:
    """The storage is reached a minute after the daemon leads."""
    text = f"instances: [{{memory: {{}}}}]\nwhen_unavailable: {policy}\n"
    made, handle, events = stores(tmp_path, text), client(), list[tuple[str, str, str]]()
    journal = journal_of(made, events)

    async def on_open(provider: Any, instance: str) -> None:
        await asyncio.sleep(60)
        await journal.journal.open(provider, instance)

    made.on_open = on_open
    async with made.opened("kubernetes", "me", 1), journal.running(handle):
        for number in range(3):
            call = handle.call(ENSURE, "c1", service(f"web-{number}"), ())
            if policy == "degrade":
                await call
            else:
                with pytest.raises(errors.Unavailable, match="loadbalancer web-"):
                    await call
        await asyncio.sleep(61)
        await handle.call(ENSURE, "c1", service("web"), ())

    assert [(kind, reason) for kind, reason, _ in events] == [
        ("Warning", "JournalUnavailable"),
        ("Normal", "JournalAvailable"),
    ]
    assert "cannot be written: the store did not confirm a write within 2 s" in events[0][2]


@pytest.mark.virtual_time
@pytest.mark.row("journal-07")
@pytest.mark.parametrize(
    ("refused", "rule"),
    [
        ("/namespaces/kube-system$", "lacks the verb get of the namespace kube-system"),
        ("/configmaps/", "lacks the verb get of configmaps in this namespace"),
    ],
)
async def test_daemon_without_a_permission_names_it_once_and_keeps_no_journal(
    refused: str, rule: str
) -> None:
    class Refusing(Api):
        async def raw(self, method: str, path: str, **named: Any) -> bytes:
            if re.search(refused, path):
                raise Forbidden(status=403, reason="Forbidden", message="not allowed")
            return await super().raw(method, path, **named)

    events = list[tuple[str, str, str]]()
    made = PersistenceStores(
        "",
        cast("Client", Refusing()),
        namespace="kube-system",
        record_event=lambda *event: events.append(event),
    )
    handle, journal = client(), journal_of(made, events)
    with captured_logs() as logged:
        async with made.opened("kubernetes", "me", 1), journal.running(handle):
            await asyncio.sleep(1)
            began = clock.monotonic()
            for number in range(3):
                await handle.call(ENSURE, "c1", service(f"web-{number}"), ())
            assert clock.monotonic() == began, "no call waits"
            await asyncio.sleep(10 * RETRY_S)
    ((kind, reason, message),) = events
    assert (kind, reason) == ("Warning", "PersistenceUnavailable")
    assert rule in message
    assert "creations are not recorded" in message
    (warning,) = (line for line in logged().splitlines() if line[0] in "WE")
    assert rule in warning
    assert not journal.journal.is_open


@pytest.mark.parametrize("mode", ["off", "report", "delete"])
def test_modes_of_the_journal(mode: str) -> None:
    assert options.parse(["--cloud-provider=sim", f"--journal={mode}"]).journal == mode


def test_another_mode_is_refused() -> None:
    (fault,) = options.faults(options.parse(["--cloud-provider=sim", "--journal=on"]))
    assert '--journal=on: must be "off", "report" or "delete"' in str(fault)
