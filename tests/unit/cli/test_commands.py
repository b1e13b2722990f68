"""The commands: command lines, exit status, and terminal output."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ccm
from ccm import cli
from ccm.app.options.argv import UsageError
from ccm.cli import command, completion, doctor, explain, orphans, plan, rollout
from ccm.cloud import Cloud
from ccm.cloud.calls.client import CloudClient
from ccm.doctor import ExaminationError, examination, journal, reach, start_forecast
from ccm.doctor.case import CheckResult, warn
from ccm.kube.client import Page
from ccm.machines import rolloutstatus
from ccm.model import ObjectMeta, Service
from ccm.model.machines import Condition, DeploymentStatus, MachineDeployment, Template
from ccm.planning.changes import BALANCER, ChangedObject, ChangeKind, Forecast, PlannedChange
from tests.support.services import FakeDigests

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
        ("doctor -o yaml", "--output=yaml: must be table or json"),
        ("doctor --timeout=0s", "--timeout=0s: must be longer than 0s"),
        ("doctor --timeout=soon", 'invalid argument "soon" for --timeout'),
        ("doctor please", "'please' is not a flag"),
        ("doctor --controllers=nodes", '"nodes" is not in the list of known controllers'),
        ("plan -o table --cloud-provider=sim", "--output=table: must be text or json"),
        ("plan", "--cloud-provider"),
        ("orphans", "--cloud-provider"),
        ("explain", "with NAMESPACE/NAME; got 'nothing'"),
        ("explain pod x", "got 'pod x'"),
        ("explain node a b", "got 'node a b'"),
        ("explain node a --address=far:1", "--address needs --ca=FILE"),
        ("explain node a --address=far --insecure", "must be HOST:PORT"),
        ("explain node a --ca=/nowhere --address=far:1", "--ca=/nowhere: cannot be read"),
        ("journal", "expected list, or show NAME, or drop NAME, or adopt NAME service"),
        ("journal show", "got 'show'"),
        ("journal adopt a service", "got 'adopt a service'"),
        ("journal list --dry-run", "--dry-run needs drop, adopt, rebuild"),
        ("journal adopt a machine default/b", "adopt NAME service NAMESPACE/NAME"),
        ("journal drop a --watch", "--watch needs list, and neither --offline nor -o json"),
        ("journal list --watch --offline", "--watch needs list"),
        ("journal list --watch -o json", "--watch needs list"),
        ("journal list -o yaml", "--output=yaml: must be table or json"),
        ("journal list --address=far:1", "--address needs --ca=FILE"),
        ("backup --keep=0", "--keep=0: must be 1 or more"),
        ("backup now", "'now' is not a flag"),
        ("restore --keep=1", "unknown flag: --keep"),
        ("rollout", "one of status, history, restart, undo, pause, resume, then m"),
        ("rollout status", "got 'status'"),
        ("rollout stop mcd/web", "got 'stop mcd/web'"),
        ("rollout status pod/web", "got 'status pod/web'"),
        ("rollout status mcd/", "got 'status mcd/'"),
        ("rollout history mcd/web --revision=-1", "--revision=-1: must be 0 or more"),
    ],
)
def test_invalid_command_lines_are_refused(
    words: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = words.split()
    # The exit status 2 of plan means changes.
    assert cli.main([name, *rest]) == (1 if name in ("plan", "rollout") else 2)

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
def test_json_output_is_printable_and_equivalent(text: str) -> None:
    out = io.StringIO()

    command.show_json(out, {text: [text]})

    assert is_harmless(out.getvalue())
    assert json.loads(out.getvalue()) == {text: [text]}


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
        "plan -o text --cloud-provider=sim",
        "plan -o json --cloud-provider=sim",
        "orphans --cloud-provider=sim",
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
    monkeypatch.setattr(journal, "check", stub(warn(HOSTILE, details=[HOSTILE])))
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
        (CHANGES, 2, "3 changes to 1 object"),
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

    assert doctor.run([], out=out) == 1

    assert "kubeconfig: kubeconfig or" in screen.getvalue()
    seen = pyte.Screen(30, 5)
    seen.set_mode(pyte.modes.LNM)
    pyte.Stream(seen).feed(screen.getvalue())
    assert "".join(seen.display).strip() == ""
    assert not seen.cursor.hidden
    assert "\x1b[1;31mfail\x1b[0m  kubeconfig: " in out.getvalue()


# --- orphans ------------------------------------------------------------------------------------


def services(*unreadable: str) -> Any:
    async def pages() -> AsyncIterator[Page[Service]]:
        yield Page(items=[], resource_version="1", malformed_keys=unreadable)

    return SimpleNamespace(client=SimpleNamespace(resource=lambda _: SimpleNamespace(pages=pages)))


def test_orphans_refuses_unreadable_services_and_undeletable_load_balancers() -> None:
    async def work() -> None:
        balancers = FakeDigests()
        balancers.held = {"aleft": ((), ())}
        handle = CloudClient(Cloud(name="fake", load_balancer=balancers))
        found = await orphans._orphans(services(), handle)
        assert [one.name for one in found] == ["aleft"]
        with pytest.raises(ExaminationError, match="default/web, a Service without a name"):
            await orphans._orphans(services("default/web", ""), handle)
        with pytest.raises(ExaminationError, match="with the tools of the cloud"):
            await orphans._delete(handle, "aleft", found)

    asyncio.run(work())


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
