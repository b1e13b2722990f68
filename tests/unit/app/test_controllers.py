"""Which controllers start, and with what settings."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock, patch

import pytest
from structlog.testing import capture_logs

from ccm.app import controllers, options
from ccm.app.health import (
    Vitals,
)
from ccm.app.options import gates
from ccm.app.options.names import (
    MANIFESTS,
)
from ccm.app.provider import ProviderHolder
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import errors
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Cloud
from ccm.cloud.types import Limits
from ccm.controllers.route.plan import Settings
from ccm.kube import errors as kube_errors
from ccm.runtime.controller import DONE, Controller, Result
from ccm.runtime.manifest import ControllerContext
from ccm.testing.clock import elapsed_s, settle
from tests.support.fakecloud import FakeCloud

POLLING = "--feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation=false"


def cloud(**fields: Any) -> Cloud:
    return Cloud(name="fake", instances=FakeCloud(), **{"routes": object(), **fields})


def started(*flags: str, of: Cloud | None = None) -> list[str]:
    """The controllers that flags make for a cloud, which nobody runs; those of routes and nodes."""
    chosen = options.parse(["--controllers=route,cloud-node", *flags])
    unused: Any = SimpleNamespace(of=lambda kind: SimpleNamespace(store=None))
    context = ControllerContext(
        client=Mock(),
        recorder=Mock(),
        informers=unused,
        handle=Handle(of or cloud()),
        inventory=None,
        gates=gates.build(chosen.feature_gates),
        deletions=Mock(),
    )
    return [manifest.alias for manifest, _ in controllers.enabled(chosen, context)]


def settings(*flags: str, of: Cloud | None = None) -> Settings:
    """What the route controller is made with."""
    with patch("ccm.controllers.route.controller.RouteController") as made:
        assert "route" in started("--cluster-cidr=10.0.0.0/8", *flags, of=of)
    found = made.call_args.kwargs["settings"]
    assert isinstance(found, Settings)
    return found


@pytest.mark.row("route-range-03")
@pytest.mark.parametrize("flag", ["", " "])
def test_a_missing_range_stops_this_controller_alone_and_is_told_once(flag: str) -> None:
    with capture_logs() as lines:
        names = started(f"--cluster-cidr={flag}")

    assert names == ["cloud-node"]
    (told,) = (line for line in lines if "--cluster-cidr" in line.get("error", ""))
    assert told["log_level"] == "error"


@pytest.mark.parametrize(
    ("flags", "offered"),
    [
        (["--configure-cloud-routes=false", "--cluster-cidr=10.0.0.0/8"], object()),
        (["--cluster-cidr=10.0.0.0/8"], None),
        ([], None),
    ],
    ids=["turned_off", "not_offered", "not_offered_without_range"],
)
def test_it_is_left_out(flags: list[str], offered: object) -> None:
    assert started(*flags, of=cloud(routes=offered)) == ["cloud-node"]


@pytest.mark.parametrize(
    ("explicit", "warned"), [(frozenset({"controllers"}), 3), (frozenset[str](), 0)]
)
def test_only_what_somebody_turned_off_is_warned_of(explicit: frozenset[str], warned: int) -> None:
    """A command for machines has its controllers by itself, and never had the others."""
    chosen = replace(options.parse(["--controllers=cloud-node"]), explicit=explicit)
    context: Any = SimpleNamespace(handle=Handle(Cloud(name="fake")))

    with capture_logs() as lines:
        assert list(controllers.enabled(chosen, context)) == []

    told = [line for line in lines if line["event"] == "controller is disabled"]
    assert len([line for line in told if line["log_level"] == "warning"]) == warned
    (skipped,) = (line for line in lines if line["event"] == "controller is skipped")
    assert ("reason" in skipped, "error" in skipped) == (True, False)


def test_it_watches_unless_the_gate_is_off() -> None:
    period = "--route-reconciliation-period=7s"

    watching = settings(period, of=cloud(limits=Limits(concurrent_routes=3)))
    polling = settings(period, POLLING)

    assert (watching.period_s, watching.concurrency) == (None, 3)
    assert (polling.period_s, polling.concurrency) == (7.0, 200)


def test_its_own_flags_reach_it() -> None:
    found = settings(
        "--route-shortest-interval=3s",
        "--route-safety-period=4m",
        "--route-grace-period=0",
        "--route-keep-foreign-conditions",
    )

    assert (found.interval_s, found.safety_s, found.grace_s) == (3.0, 240.0, 0.0)
    assert found.keep_foreign_reason


def test_its_own_flags_have_its_own_defaults() -> None:
    assert settings() == Settings()


@pytest.mark.virtual_time
async def test_what_was_refused_is_tried_at_once_with_another_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    async def reconcile(_key: str) -> Result:
        tried.append(handle.name)
        if handle.name == "old":
            raise errors.PermissionDenied("bad token")
        return DONE

    controller = Controller("paper", queue="paper", reconcile=reconcile)
    monkeypatch.setattr(controllers, "enabled", lambda *_: [(MANIFESTS[0], controller)])
    forever = asyncio.Event().wait
    no_caches = MagicMock(run=forever, wait_synced=lambda _limit_s: forever())
    monkeypatch.setattr(controllers, "Informers", Mock(return_value=no_caches))
    clients = Mock()
    clients.named.return_value.resource.return_value.get = AsyncMock(
        side_effect=kube_errors.NotFound(status=404, reason="NotFound", message="no record")
    )
    work = controllers.Controllers(options.parse([]), clients, Mock(), Vitals())
    holder = ProviderHolder(exchanged=work.retry_now)
    handle = await holder.open(lambda: nullcontext(Cloud(name="old")))
    running = spawn(work.run(handle, Mock()), name="controllers")
    controller.queue.add("key")
    await settle()
    assert tried == ["old"]

    await holder.exchange(lambda: nullcontext(Cloud(name="new")), work.accept)
    await settle()

    assert tried == ["old", "new"]
    assert elapsed_s() == 0
    await cancel_and_join(running)
    await holder.close()


@pytest.mark.virtual_time
async def test_a_standby_imports_what_it_will_run_before_its_turn() -> None:
    chosen = options.parse(["--controllers=route"])
    made = controllers.Controllers(chosen, MagicMock(), MagicMock(), Vitals())
    with patch("importlib.import_module") as imported:
        preparing = spawn(made.prepare(), name="prepare")
        await settle()
        assert not imported.mock_calls  # what the first request needs comes first
        await preparing

    assert [call.args for call in imported.mock_calls] == [("ccm.controllers.route.controller",)]
    assert elapsed_s() == controllers.PREPARE_AFTER_S


SETS = ["machinedeployment", "machineovershoot", "machineset"]
"""They ask no cloud."""

MACHINES = sorted(["machine", "machineclass", "machinesafety", *SETS])


@pytest.mark.parametrize(
    ("named", "machines", "wanted"),
    [("*", object(), []), ("", object(), MACHINES), ("", None, SETS)],
    ids=["not-named", "named", "no-machines"],
)
def test_machine_controllers_start_where_they_are_named_and_can(
    named: str, machines: Any, wanted: list[str]
) -> None:
    listed = named or ",".join(MACHINES)
    with capture_logs() as lines:
        found = started(f"--controllers={listed}", of=cloud(machines=machines))

    assert sorted(alias for alias in found if alias in MACHINES) == wanted
    said = {line["log_level"] for line in lines if "machine" in str(line.get("controller"))}
    assert said == (set() if wanted == MACHINES else {"info"})
