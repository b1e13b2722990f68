"""The commands: command lines, exit status, and terminal output."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyte
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import ccm
from ccm import cli
from ccm.app import main
from ccm.app.machines.commands import COMMANDS
from ccm.app.options import FLAGS, SECTIONS, UsageError
from ccm.base import clock
from ccm.base.tasks import spawn
from ccm.cli import command, completion, doctor, explain, journal, orphans, plan, rollout
from ccm.cloud import (
    Cloud,
    FailedPrecondition,
    LoadBalancerRecord,
    RetryAfter,
    Unavailable,
    default_load_balancer_name,
)
from ccm.cloud.calls.client import CloudClient
from ccm.doctor import ExaminationError, examination, reach, start_forecast
from ccm.doctor import journal as leader_journal
from ccm.doctor.case import CheckResult, warn
from ccm.gardener import names
from ccm.gardener.codec import CODEC
from ccm.kube.client import Page
from ccm.machines import rolloutstatus
from ccm.model import ObjectMeta, Service
from ccm.model.machines import Condition, DeploymentStatus, MachineDeployment, Template
from ccm.planning.changes import BALANCER, ChangedObject, ChangeKind, Forecast, PlannedChange
from ccm.runtime.journal_report import JournalResponse
from ccm.testing import builders
from ccm.testing.clock import advance
from tests.support.services import FakeDigests
from tests.unit.controllers.machines import World

HOSTILE = (
    "\x1b[2J\x1b]52;c;cm0gLXJmIC8=\x07\x9b31m\rok    all is well\nok    all is well\x08\x7f"
    "\u202egnp.exe\u2066\u200f\u2028"
)
"""Clears the screen, sets the clipboard, colours, forges lines, turns the direction."""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("--version", 0, f"kube-ccm {ccm.__version__}\n"),
        ("", 2, "COMMAND"),
        (completion.COMPLETE_COMMAND, 2, ""),
        ("providers --cloud-config x", 2, "needs the NAME of a provider"),
        ("plam", 2, "invalid choice: 'plam', expected sandbox,"),
        ("plam", 2, "; did you mean plan?\n"),
        ("zzz", 2, "new-provider, completion\n"),
        ("--verson", 2, "unknown flag or argument: --verson; did you mean --version?"),
        ("sandbox --lattency 5 poweron", 2, "--lattency; did you mean --latency?"),
        ("sandbox --nodes 5 --lattency=5", 2, "unknown flag or argument: --lattency; did"),
        ("sandbox poweron n1 --foldr=5", 2, "--foldr; did you mean --folder?"),
        ("providers sim --cloud-confg=x", 2, "--cloud-confg; did you mean --cloud-config?"),
        ("providers -o xml", 2, "invalid choice: 'xml', expected table, json, yaml"),
        ("providers sim other", 2, "unknown flag or argument: other\n"),
    ],
)
def test_argparse_exits_with_its_status_and_message(
    words: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())

    said = capsys.readouterr()
    assert ended.value.code == code
    assert told in (said.err if code else said.out)
    assert code == 0 or said.out == ""


def test_cli_parser_imports_no_heavy_modules() -> None:
    script = (
        "import sys; from ccm import cli; cli.build_parser(); "
        "print([name for name in ('aiohttp', 'structlog', 'ccm.app') if name in sys.modules])"
    )

    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert told.stdout.strip() == "[]"


def test_ctrl_c_before_parsing_exits_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupted)

    assert cli.main([]) == cli.INTERRUPTED


# --- command lines ------------------------------------------------------------------------------

WEB = "machinedeployment/web"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("doctor --kubconfig=x", "did you mean --kubeconfig?"),
        ("doctor -o xml", '--output=xml: must be "table", "json" or "yaml"'),
        ("doctor --timeout=0s", "--timeout=0s: must be longer than 0s"),
        ("doctor --timeout=soon", 'invalid argument "soon" for --timeout'),
        ("doctor please", "'please' is not a flag"),
        ("doctor --controllers=nodes", '"nodes" is not in the list of known controllers'),
        ("plan", "--cloud-provider is required; installed: hcloud, openstack, sim, stackit"),
        ("orphans", "--cloud-provider is required; installed: hcloud,"),
        ("backup", "--persistence-config is required"),
        ("explain", "with NAMESPACE/NAME; got 'nothing'"),
        ("explain pod x", "got 'pod x'\n"),
        ("explain servce x", "got 'servce x'; did you mean service?"),
        ("explain node a b", "got 'node a b'"),
        ("explain node a --address=far:1", "--address needs --ca=FILE"),
        ("explain node a --address=far --insecure", "must be HOST:PORT"),
        ("explain node a --ca=/nowhere --address=far:1", "--ca=/nowhere: cannot be read"),
        ("journal", "expected list, or show NAME, or drop NAME, or adopt NAME service"),
        ("journal show", "got 'show'\n"),
        ("journal lst", "got 'lst'; did you mean list?"),
        ("journal adopt a service", "got 'adopt a service'"),
        ("journal list --dry-run", "--dry-run needs drop, adopt, rebuild"),
        ("journal adopt a machine default/b", "adopt NAME service NAMESPACE/NAME"),
        ("journal drop a --watch", "--watch needs list and -o table, without --offline"),
        ("journal list --watch --offline", "--watch needs list"),
        ("journal list --watch -o yaml", "--watch needs list and -o table"),
        ("journal list --address=far:1", "--address needs --ca=FILE"),
        ("backup --keep=0", "--keep=0: must be 1 or more"),
        ("backup now", "'now' is not a flag"),
        ("restore --keep=1", "unknown flag: --keep"),
        ("rollout", "one of status, history, restart, undo, pause, resume, then m"),
        ("rollout status", "got 'status'\n"),
        ("rollout statu mcd/x", "got 'statu mcd/x'; did you mean status?"),
        ("rollout stop mcd/web", "got 'stop mcd/web'"),
        ("rollout status pod/web", "got 'status pod/web'"),
        ("rollout status mcd/", "got 'status mcd/'"),
        ("rollout history mcd/web --revision=-1", "--revision=-1: must be 0 or more"),
        ("rollout undo mcd/web --revision=3", "--revision needs history"),
        ("rollout restart mcd/web --watch", "--watch needs status"),
        ("rollout undo mcd/web -w=false", "--watch needs status"),
        ("rollout pause mcd/web --timeout=5m", "--timeout needs status"),
        ("rollout history mcd/web --to-revision=3", "--to-revision needs undo"),
    ],
)
def test_invalid_command_lines_are_refused(
    words: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = words.split()
    assert cli.main([name, *rest]) == 2

    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"kube-ccm {name}: ")
    assert fault in told.err


# --- output -------------------------------------------------------------------------------------


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@given(st.lists(st.text()))
def test_shown_text_is_one_printable_line_each(texts: list[str]) -> None:
    out = io.StringIO()

    command.show(out, texts)

    assert is_harmless(out.getvalue())
    assert out.getvalue().count("\n") == len(texts)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_documents_are_printable_and_equivalent(
    form: str, read: Callable[[str], Any], text: str
) -> None:
    out = io.StringIO()

    command.show_result(out, form, {text: [text]}, ["for people"])

    assert is_harmless(out.getvalue())
    assert read(out.getvalue()) == {text: [text]}


def test_every_command_that_prints_data_has_the_same_formats() -> None:
    """The others print no data; backup and restore print their progress."""
    for module in (doctor, explain, journal, orphans, plan, rollout):
        flag = module.own_flags()["output"]
        assert (flag.short, flag.default) == ("o", "table")
        assert [form for form in ("table", "json", "yaml") if flag.violation(form)] == []


def test_the_former_format_text_is_a_table_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start_forecast, "forecast_of", stub(CHANGES))
    out, table = io.StringIO(), io.StringIO()

    plan.run(["--cloud-provider=sim", "-o", "text"], out=out)
    warning = capsys.readouterr().err
    plan.run(["--cloud-provider=sim"], out=table)

    assert warning == "kube-ccm plan: -o text is deprecated: use -o table\n"
    assert out.getvalue() == table.getvalue() != ""
    assert capsys.readouterr().err == ""


# --- help -----------------------------------------------------------------------------------------


def helped(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        assert cli.main(words) == 0
    return out.getvalue()


def test_help_begins_with_required_flags() -> None:
    for name, flag in (("plan", "cloud-provider"), ("backup", "persistence-config")):
        text = helped(name, "--help")
        _, _, flags = text.partition("\nRequired flags:\n\n")
        assert flags.startswith(f"      --{flag} string\n")
        assert text.count(f"      --{flag} string") == 1
        assert " flags:" not in text.partition("\nRequired flags:\n")[0].splitlines()[-1]
    assert "Required flags:" not in helped("doctor", "--help")


@pytest.mark.parametrize("name", ["plan", "orphans", "explain"])
def test_flags_without_effect_are_in_the_full_help_only(name: str) -> None:
    brief, full = helped(name, "--help"), helped(name, "--help-all")

    for flag in ("--tls-cert-file", "--shutdown-grace-period", "--own-nodes", "--profiling"):
        assert f" {flag}" not in brief
        assert f" {flag}" in full
    assert "\nDeprecated flags:\n" in full
    assert "\nIneffective flags:\n" in full
    for flag in ("--kubeconfig", "--config"):
        assert f" {flag} " in brief


@pytest.mark.parametrize("program", [main.DAEMON, *(one.program for one in COMMANDS.values())])
def test_the_full_help_of_a_daemon_adds_deprecated_and_ineffective_flags(
    program: main.Program,
) -> None:
    brief, full = str(program.read(["--help"])), str(program.read(["--help-all"]))

    flags = re.compile(r"^  (?:-\w, |    )(--[\w-]+)", re.MULTILINE)
    listed, all_listed = flags.findall(brief), flags.findall(full)
    assert set(all_listed) - set(listed) >= {"--profiling", "--contention-profiling"}
    assert set(listed) < set(all_listed)
    assert len(all_listed) == len(set(all_listed))
    assert "DEPRECATED" not in brief
    if program is main.DAEMON:
        _, _, own = full.partition("      --own-nodes string\n")
        assert own.startswith("          DEPRECATED: use --node-selector.\n")


def test_the_sections_that_commands_do_not_use_exist() -> None:
    titles = {section.title for section in SECTIONS}

    assert {*plan.COMMAND.unused_sections, *doctor.COMMAND.unused_sections} <= titles
    for one in (explain, journal, orphans, rollout):
        assert {*one.COMMAND.used, *one.COMMAND.required} <= {*FLAGS}


def stub(value: Any) -> Callable[..., Any]:
    async def answered(*_: Any, **__: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return answered


async def _examined(*_: Any) -> AsyncIterator[CheckResult]:
    finding = examination._clean(warn(HOSTILE, HOSTILE, details=[HOSTILE]))
    yield CheckResult(check="x", finding=finding)


HOSTILE_PLAN = Forecast(
    changes=[
        PlannedChange(
            subject=ChangedObject("Service", HOSTILE, HOSTILE),
            action=ChangeKind.CREATE,
            what=BALANCER,
        )
    ],
    failures=[HOSTILE],
    left_out={HOSTILE: HOSTILE},
)
ORPHAN = SimpleNamespace(name=HOSTILE, status=SimpleNamespace(ingress=[]))


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        "doctor -o table",
        "doctor -o json",
        "plan -o table --cloud-provider=sim",
        "plan -o json --cloud-provider=sim",
        "plan -o yaml --cloud-provider=sim",
        "orphans --cloud-provider=sim",
        "orphans --cloud-provider=sim -o yaml",
        "explain node a",
        f"rollout status {WEB}",
    ],
)
def test_control_characters_in_cluster_text_never_reach_the_terminal(
    words: str, tty: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examination, "examine", _examined)
    monkeypatch.setattr(start_forecast, "forecast_of", stub(HOSTILE_PLAN))
    handle = CloudClient(Cloud(name="fake", load_balancer=FakeDigests()))
    monkeypatch.setattr(orphans, "_opened", stub(handle))
    monkeypatch.setattr(orphans, "_orphans", stub([ORPHAN]))
    response = JournalResponse(leads=True, orphans={HOSTILE: HOSTILE}, down=HOSTILE)
    monkeypatch.setattr(leader_journal, "ask", stub(response))
    monkeypatch.setattr(reach, "connect", stub(ExaminationError(HOSTILE)))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out: Any = io.StringIO()
    out.isatty = lambda: tty
    name, *rest = words.split()
    of: Any = {"doctor": doctor, "plan": plan, "orphans": orphans, "explain": explain}
    of.get(name, rollout).run(rest, out=out)

    told = out.getvalue() + capsys.readouterr().err
    assert told
    assert is_harmless(told)
    assert name in ("explain", "rollout") or "\nok " not in told


# --- plan ---------------------------------------------------------------------------------------

CHANGES = Forecast(
    changes=[
        PlannedChange(
            subject=ChangedObject("Service", "default", "a"), action=action, what=BALANCER
        )
        for action in ChangeKind
    ]
)
UNKNOWN = Forecast(changes=CHANGES.changes, failures=["list_routes: the cloud is down"])


class Screen(io.StringIO):
    """A terminal."""

    buffer = io.BytesIO()

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("forecast", "code", "last"),
    [
        (Forecast(), 0, "nothing to do"),
        (CHANGES, 3, "3 changes to 1 object"),
        (
            UNKNOWN,
            1,
            "3 changes to 1 object; incomplete: some queries failed, or settings are invalid",
        ),
        (ExaminationError("no kubeconfig is given"), 1, ""),
    ],
    ids=["nothing", "changes", "incomplete", "refused"],
)
def test_plan_exit_status_tells_the_result(
    forecast: Any,
    code: int,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(start_forecast, "forecast_of", stub(forecast))
    out, document, words = io.StringIO(), io.StringIO(), ["--cloud-provider=sim"]

    assert plan.run(words, out=out) == plan.run([*words, "-o", "json"], out=document) == code
    if last:
        assert out.getvalue().splitlines()[-1] == last
        assert json.loads(document.getvalue())["summary"] == last
    else:
        assert capsys.readouterr().err == "kube-ccm plan: no kubeconfig is given\n" * 2


# --- doctor -------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the in-cluster account and the kubeconfig in the home directory."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("HOME", str(tmp_path))


def test_doctor_shows_progress_on_a_terminal_and_clears_it(
    nowhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, out = Screen(), Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "30")

    assert doctor.run([], out=out) == 3

    assert "kubeconfig: kubeconfig or" in screen.getvalue()
    seen = pyte.Screen(30, 5)
    seen.set_mode(pyte.modes.LNM)
    pyte.Stream(seen).feed(screen.getvalue())
    assert "".join(seen.display).strip() == ""
    assert not seen.cursor.hidden
    assert "\x1b[1;31mfail\x1b[0m  kubeconfig: " in out.getvalue()


# --- orphans ------------------------------------------------------------------------------------


def services(*unreadable: str, held: Sequence[Service] = ()) -> Any:
    async def pages() -> AsyncIterator[Page[Service]]:
        yield Page(items=list(held), resource_version="1", malformed_keys=unreadable)

    return SimpleNamespace(client=SimpleNamespace(resource=lambda _: SimpleNamespace(pages=pages)))


def test_orphans_refuses_unreadable_services_and_undeletable_load_balancers() -> None:
    async def work() -> None:
        balancers = FakeDigests()
        balancers.held = {"aleft": ((), ())}
        handle = CloudClient(Cloud(name="fake", load_balancer=balancers))
        listing = await orphans._listing(handle)
        found = await orphans._orphans(services(), handle, listing)
        assert [one.name for one in found] == ["aleft"]
        with pytest.raises(ExaminationError, match="default/web, a Service without a name"):
            await orphans._orphans(services("default/web", ""), handle, listing)
        with pytest.raises(ExaminationError, match="with the tools of the cloud"):
            await orphans._delete(services(), handle, "aleft", listing)

    asyncio.run(work())


class Removable(FakeDigests):
    """Load balancers whose deletion raises these errors, one after the other, then succeeds.

    `shown` are further fields of the listed load balancer; an adopted one is only released.
    """

    def __init__(self, *errors: Exception, **shown: bool) -> None:
        super().__init__()
        self.errors = list(errors)
        self.shown: dict[str, Any] = {**shown}
        self.held = {LEFT: ((), ())}

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        listed = await super().list_load_balancers(cluster_name)
        return [replace(record, **self.shown) for record in listed]

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        self.log.append(("remove", name, ()))
        self.at.append(clock.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        del self.held[name]


LEFT = default_load_balancer_name(builders.service("web"))
PENDING = RetryAfter(f"load balancer {LEFT} is PENDING_DELETE", seconds=7)


async def removed(balancers: Removable, held: Sequence[Service] = ()) -> None:
    handle = CloudClient(Cloud(name="fake", load_balancer=balancers))
    listing = await orphans._listing(handle)
    await orphans._delete(services(held=held), handle, LEFT, listing)


@pytest.mark.virtual_time
async def test_orphans_repeats_a_deletion_until_the_cloud_has_finished(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The provider deletes security groups and credentials after the load balancer is gone."""
    balancers = Removable(
        PENDING, PENDING, Unavailable("HTTP 503"), RetryAfter("still there", seconds=0)
    )
    await removed(balancers)

    assert not balancers.held
    assert [at - balancers.at[0] for at in balancers.at] == [0, 7, 14, 16, 18]
    assert capsys.readouterr().err.splitlines() == [
        f"kube-ccm orphans: waiting for the deletion of {LEFT}: {text}"
        for text in (str(PENDING), "HTTP 503", "still there")
    ]


@pytest.mark.virtual_time
async def test_orphans_ends_a_deletion_that_takes_too_long_and_other_errors_at_once() -> None:
    balancers = Removable(*[PENDING] * 200)
    with pytest.raises(ExaminationError, match=r"within 600 s: .* is PENDING_DELETE; repeat"):
        await removed(balancers)
    assert balancers.at[-1] - balancers.at[0] == 595

    balancers = Removable(PENDING, FailedPrecondition("protected"))
    with pytest.raises(FailedPrecondition, match="protected"):
        await removed(balancers)
    assert len(balancers.of("remove")) == 2


@pytest.mark.virtual_time
async def test_orphans_keeps_a_load_balancer_that_a_new_service_got_during_the_deletion() -> None:
    """In some clouds, names have no UID: the recreated Service gets the name that is deleted."""
    balancers, held = Removable(PENDING, PENDING), list[Service]()
    deletion = spawn(removed(balancers, held), name="deletion")
    await advance(8)
    held.append(builders.service("web"))
    with pytest.raises(ExaminationError, match="or belongs to a Service"):
        await deletion

    assert len(balancers.of("remove")) == 2
    assert list(balancers.held) == [LEFT]


@pytest.mark.virtual_time
async def test_orphans_neither_shows_nor_deletes_a_load_balancer_without_a_marker() -> None:
    """It may belong to another cluster of the same project."""
    balancers = Removable(marked=False)
    handle = CloudClient(Cloud(name="fake", load_balancer=balancers))
    assert await orphans._orphans(services(), handle, await orphans._listing(handle)) == []
    with pytest.raises(ExaminationError, match="lacks the marker of this cluster"):
        await removed(balancers)

    assert not balancers.of("remove")


@pytest.mark.virtual_time
async def test_orphans_reports_a_load_balancer_that_the_provider_did_not_delete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    balancers = Removable()

    async def ignored(_cluster_name: str, _name: str) -> None:
        """Do nothing, and raise nothing."""

    monkeypatch.setattr(balancers, "delete_load_balancer", ignored)
    with pytest.raises(ExaminationError, match=f"provider fake did not delete {LEFT}"):
        await removed(balancers)


@pytest.mark.parametrize(("is_adopted", "verb"), [(False, "deleted"), (True, "released")])
async def test_orphans_does_not_report_a_released_load_balancer_as_deleted(
    is_adopted: bool, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = CloudClient(Cloud(name="fake", load_balancer=Removable(adopted=is_adopted)))
    monkeypatch.setattr(orphans, "_opened", stub(handle))
    monkeypatch.setattr(orphans, "_orphans", stub([SimpleNamespace(name=LEFT)]))
    request = orphans.read(["--cloud-provider=sim", f"--delete={LEFT}"])
    out = io.StringIO()
    assert await orphans.show_or_delete(request, out, environ={}) == command.EXIT_OK
    assert out.getvalue() == f"{LEFT} {verb}\n"


def test_rollout_refuses_a_negative_revision_and_a_missing_kubeconfig(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UsageError):
        rollout.read(["status", WEB, "--to-revision=-1"])
    assert rollout.run(["status", WEB, "--kubeconfig=/does/not/exist"]) == 1
    assert "/does/not/exist" in capsys.readouterr().err


# --- rollout ------------------------------------------------------------------------------------

DONE = {"updated": 3, "replicas": 3, "available": 3}


def progressing(reason: str, message: str) -> dict[str, Any]:
    conditions = [Condition(type="Progressing", status="False", reason=reason, message=message)]
    return {"conditions": conditions}


@pytest.mark.parametrize(
    ("status", "paused", "end", "state"),
    [
        ({"observed": 1}, False, "to be observed by its controller...", ""),
        ({"updated": 1}, False, "1 of 3 machines are new...", ""),
        ({"updated": 1}, True, "1 of 3 machines are new; the rollout is paused...", ""),
        (progressing("MachineSetCreateError", "quota"), False, "quota; retrying...", ""),
        ({**DONE, "replicas": 4}, False, "1 old machine left...", ""),
        ({**DONE, "updated": 5, "replicas": 5}, False, "2 surplus machines left...", ""),
        ({**DONE, "available": 2}, False, "2 of 3 new machines are available...", ""),
        (DONE, False, "is rolled out", "done"),
        (
            progressing("ProgressDeadlineExceeded", "late"),
            False,
            "cannot continue: late",
            "failed",
        ),
    ],
)
def test_rollout_status_describes_the_progress(
    status: dict[str, Any], paused: bool, end: str, state: str
) -> None:
    obj = MachineDeployment(
        metadata=ObjectMeta(name="web", generation=2),
        template=Template(essence=""),
        replicas=3,
        is_paused=paused,
        status=DeploymentStatus(**{"observed": 2, **status}),
    )

    found = rolloutstatus.rollout_progress(obj)

    assert found.text.endswith(end)
    assert found.text.startswith('Waiting for "web"') is not bool(state)
    assert (found.done, found.failed) == (bool(state), state == "failed")


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("strategy", "note"),
    [
        ("RollingUpdate", ""),
        ("Recreate", ""),
        (
            "InPlaceUpdate",
            "; no machine is replaced (InPlaceUpdate): nodes wait for their updaters",
        ),
    ],
)
async def test_a_restart_says_when_no_machine_is_replaced(strategy: str, note: str) -> None:
    server, out = World().server, io.StringIO()
    place = f"/apis/{names.GROUP}/v1alpha1/namespaces/default/machinedeployments"
    spec = {"replicas": 1, "strategy": {"type": strategy}, "template": {"spec": {}}}
    server.put(place, {"metadata": {"name": "web"}, "spec": spec})

    request = rollout.read(["restart", "mcd/web", "--namespace=default"])
    await rollout._change_rollout(server.client(), CODEC, request, out)

    assert out.getvalue() == f"machinedeployment.{names.GROUP}/web restarted{note}\n"
    changed = (server.get(f"{place}/web") or {})["spec"]["template"]["metadata"]
    assert "kubectl.kubernetes.io/restartedAt" in changed["annotations"]


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_a_rollout_that_cannot_continue_is_a_finding(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document has the last state only."""
    stuck = progressing("ProgressDeadlineExceeded", "late")
    states = [
        MachineDeployment(
            metadata=ObjectMeta(name="web"),
            template=Template(essence=""),
            replicas=3,
            status=DeploymentStatus(**status),
        )
        for status in ({"updated": 1}, {"updated": 1}, stuck)
    ]

    async def followed(*_: Any) -> AsyncIterator[MachineDeployment]:
        for state in states:
            yield state

    monkeypatch.setattr(rollout, "_states", followed)
    out, words = io.StringIO(), ["status", WEB, "-o", form]

    code = asyncio.run(rollout._status(MagicMock(), MagicMock(), rollout.read(words), out))

    last = '"web" cannot continue: late'
    assert code == 3
    if form == "table":
        assert out.getvalue() == f'Waiting for "web": 1 of 3 machines are new...\n{last}\n'
    else:
        found = yaml.safe_load(out.getvalue())
        assert found == {"text": last, "done": True, "failed": True}
