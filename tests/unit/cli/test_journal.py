"""`kube-ccm journal`, and the journal in `orphans` and `doctor`."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from msgspec import structs

from ccm.base.tasks import cancel_and_join, spawn
from ccm.cli import command, journal, orphans
from ccm.cloud import Cloud
from ccm.cloud.calls.client import CloudClient
from ccm.doctor import ExaminationError, explain_facts, reach
from ccm.doctor import journal as source
from ccm.doctor.case import Severity
from ccm.doctor.explain import NoAnswer
from ccm.persistence.journal import EntryState, JournalEntry, Owner
from ccm.runtime.journal_report import JournalChange, JournalResponse
from ccm.testing.clock import advance
from tests.support.services import FakeBalancers

pytestmark = pytest.mark.virtual_time

WEB = JournalEntry(
    name="loadbalancer-1",
    resource="loadbalancer",
    provider="sim",
    owner=Owner(api_version="v1", kind="Service", namespace="default", name="web", uid="u"),
    state=EntryState.CREATED,
    intended_name="a1",
    annotations={"lb/size": "large"},
    created_at="2012-01-01T00:00:00Z",
    last_error="quota\nexceeded",
)
OTHER = structs.replace(WEB, name="server-2", resource="server", state=EntryState.INTENT)
ORPHANS = {"loadbalancer-1": "The owner is gone"}
BOTH = JournalResponse(leads=True, entries=[WEB, OTHER], orphans=ORPHANS)


class Daemon:
    """Responses in turn; the last one is repeated."""

    def __init__(self, *responses: JournalResponse) -> None:
        self.responses = list(responses)
        self.changes: list[JournalChange | None] = []

    async def __call__(self, change: JournalChange | None) -> JournalResponse:
        self.changes.append(change)
        return self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]


async def shown(daemon: Daemon, name: str = "", **how: Any) -> str:
    out = io.StringIO()
    await journal._show(daemon, name, out, **{"form": "table", "watch": False, **how})
    return out.getvalue()


async def test_list_is_a_table_that_marks_orphans() -> None:
    head, first, second = (await shown(Daemon(BOTH))).splitlines()

    assert head.split() == ["NAME", "AGE", "KIND", "OWNER", "STATE", "LAST", "ERROR"]
    assert "loadbalancer  Service default/web  Created, orphan  quota\\nexceeded" in first
    assert "  Intent  " in second
    assert re.search(r"  \d{4} d  loadbalancer  ", first)


async def test_json_has_all_fields() -> None:
    found = json.loads(await shown(Daemon(BOTH), form="json"))

    assert [one["name"] for one in found["entries"]] == ["loadbalancer-1", "server-2"]
    assert found["orphans"] == ORPHANS
    one = json.loads(await shown(Daemon(BOTH), "server-2", form="json"))
    assert (one["state"], one["owner"]["uid"]) == ("Intent", "u")
    assert yaml.safe_load(await shown(Daemon(BOTH), form="yaml")) == found


async def test_show_has_each_field_and_the_text_of_the_orphan() -> None:
    lines = (await shown(Daemon(BOTH), "loadbalancer-1")).splitlines()

    assert {"owner.name: web", "annotations.lb/size: large", "intendedName: a1"} <= set(lines)
    assert lines[-1] == "orphan: The owner is gone"
    with pytest.raises(ExaminationError, match="there is no entry x"):
        await shown(Daemon(BOTH), "x")


@pytest.mark.row("journal-07")
async def test_a_line_says_that_the_journal_cannot_be_written() -> None:
    down = structs.replace(BOTH, down="disk full; unavailable since 12:00")

    for name in ("", "server-2"):
        first, *_ = (await shown(Daemon(down), name)).splitlines()
        assert first == "the journal cannot be written: disk full; unavailable since 12:00"
    assert json.loads(await shown(Daemon(down), form="json"))["down"].startswith("disk full")


async def test_watch_shows_changed_entries_only() -> None:
    changed = structs.replace(OTHER, state=EntryState.DELETING)
    after = structs.replace(BOTH, entries=[WEB, changed])
    out = io.StringIO()
    follow = spawn(
        journal._show(Daemon(BOTH, BOTH, after), "", out, form="table", watch=True), name="watch"
    )
    await advance(60)
    await cancel_and_join(follow)

    said = out.getvalue()
    assert [said.count(text) for text in ("NAME", "Deleting", "loadbalancer-1  ")] == [1, 1, 1]


def test_services_may_be_named_as_for_kubectl() -> None:
    for kind in ("service", "services", "svc"):
        assert journal.read(["adopt", "x", kind, "default/web"]).arguments[2] == kind


# --- the daemon -----------------------------------------------------------------------------------


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[Any]:
    requests: list[Any] = []

    async def ask(_case: Any, request: Any, *_: Any) -> Any:
        requests.append(request)
        return answer

    monkeypatch.setattr(explain_facts, "ask_daemon", ask)
    return requests


CASE: Any = None


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (NoAnswer(why="no leader", advice="start it"), "no leader; start it"),
        (JournalResponse(leads=True, fault="the journal is off"), "the journal is off"),
        (JournalResponse(), "does not lead"),
    ],
)
async def test_missing_and_refusing_responses_are_errors(
    answer: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, answer)
    with pytest.raises(ExaminationError, match=fault):
        await source.ask(CASE)


async def test_changes_are_posted_and_need_the_verb_post(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = answering(monkeypatch, BOTH)
    await source.ask(CASE)
    await source.ask(CASE, JournalChange(action="drop", name="x"))

    assert [request.method for request in requests] == ["GET", "POST"]
    assert requests[1].body == b'{"action":"drop","name":"x"}'
    assert "--verb=post --non-resource-url=/journal" in requests[1].missing_right


@pytest.mark.parametrize("words", ["drop a", "adopt a service default/web", "rebuild"])
async def test_offline_changes_need_the_lease(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a running daemon would write the former entry back."""

    async def connected(_case: Any) -> None:
        return

    monkeypatch.setattr(reach, "connect", connected)
    request = journal.read([*words.split(), "--offline", "--leader-elect=false"])
    with pytest.raises(ExaminationError, match=r"stop the daemon and omit --leader-elect=false$"):
        await journal.show_or_change(request, io.StringIO(), environ={})


@pytest.mark.parametrize(
    ("answer", "severity", "text"),
    [
        (BOTH, Severity.WARN, "2 entries, 1 orphan"),
        (structs.replace(BOTH, orphans={}), Severity.OK, "2 entries, no orphan"),
        (
            structs.replace(BOTH, orphans={}, down="disk full"),
            Severity.WARN,
            "the journal cannot be written: disk full",
        ),
        (NoAnswer(why="no leader", advice=""), Severity.SKIP, "was not asked: no leader"),
    ],
)
async def test_doctor_reports_the_orphans_of_the_leader(
    answer: Any, severity: Severity, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, answer)

    finding = await source.check(CASE)

    assert (finding.severity, text in finding.message) == (severity, True)
    assert finding.details == (("loadbalancer-1: The owner is gone",) if "1 orphan" in text else ())


@pytest.mark.row("journal-04")
@pytest.mark.parametrize(
    ("answer", "lines", "code"),
    [
        (
            BOTH,
            ["NAME            DETAIL", "loadbalancer-1  journal: The owner is gone"],
            3,
        ),
        (structs.replace(BOTH, orphans={}), ["no orphans were found"], 0),
        (
            structs.replace(BOTH, down="disk full"),
            [
                "NAME            DETAIL",
                "loadbalancer-1  journal: The owner is gone",
                "journal: cannot be written: disk full",
            ],
            1,
        ),
        (
            structs.replace(BOTH, orphans={}, down="disk full"),
            ["no orphans were found", "journal: cannot be written: disk full"],
            1,
        ),
        (
            NoAnswer(why="no leader", advice="x"),
            ["no orphans were found", "journal: the leader was not asked: no leader; x"],
            1,
        ),
    ],
)
async def test_orphans_shows_orphans_of_the_journal_if_the_provider_cannot_list(
    answer: Any, lines: Sequence[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(_case: Any) -> CloudClient:
        return CloudClient(Cloud(name="fake", load_balancer=FakeBalancers()))

    monkeypatch.setattr(orphans, "_opened", opened)
    answering(monkeypatch, answer)
    out = io.StringIO()

    request = orphans.read(["--cloud-provider=sim", "--journal=report"])
    assert await orphans.show_or_delete(request, out, environ={}) == code

    assert out.getvalue().splitlines() == lines
    for words in (["--journal=off"], ["--journal=report", "--delete=a1"]):
        request = orphans.read(["--cloud-provider=sim", *words])
        with pytest.raises(ExaminationError, match="cannot list load balancers"):
            await orphans.show_or_delete(request, out, environ={})


def test_commands_run_in_their_own_event_loop() -> None:
    """A command line with an unusable kubeconfig ends with one message."""
    assert journal.run(["list", "--kubeconfig=/does/not/exist"]) == command.EXIT_FAILED
