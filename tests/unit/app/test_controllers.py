"""Controllers that start, with their settings, service accounts and clusters."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from structlog.testing import capture_logs

from ccm.app import clients, controllers, options
from ccm.app.clients import EVENTS, PERSISTENCE, AccountTransports, ClientFactory
from ccm.app.health import DaemonState
from ccm.app.options import gates
from ccm.app.options.controllers import MANIFESTS
from ccm.app.provider import Misconfigured, ProviderHolder
from ccm.base import log
from ccm.base.credentials import KeyPair
from ccm.base.drain import Drain
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Aborted, Context, errors, registry
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.config import READER
from ccm.cloud.interface import Cloud
from ccm.kube import errors as kube_errors
from ccm.kube.credentials import StaticCredentials, TlsSettings, bearer
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import NODES
from ccm.model.times import format_time
from ccm.runtime.controller import DONE, Controller, ReconcileResult
from ccm.runtime.manifest import ClusterContext, ControllerContext
from ccm.sandbox.realserver import write_kubeconfig
from ccm.testing import builders
from ccm.testing.clock import elapsed_s, settle
from providers import sim
from tests.handclock import HandClock
from tests.support.fakecloud import FakeCloud
from tests.unit.doctor.test_kubermatic import KubermaticStuck
from tests.unit.kube.proxy import connect, refuses, says, serve


def cloud(**fields: Any) -> Cloud:
    return Cloud(name="fake", instances=FakeCloud(), **{"routes": object(), **fields})


def started(*flags: str, of: Cloud | None = None) -> list[str]:
    """Build the route and node controllers for these flags without running them."""
    chosen = options.parse(["--controllers=route,cloud-node", *flags])
    unused: Any = SimpleNamespace(informer_for=lambda kind: SimpleNamespace(store=None))
    context = ControllerContext(
        client=Mock(),
        recorder=Mock(),
        informers=unused,
        cloud_client=CloudClient(of or cloud()),
        inventory=None,
        gates=gates.values(chosen.feature_gates),
        deletions=Mock(),
    )
    return [manifest.alias for manifest, _ in controllers.build_enabled(chosen, context)]


@pytest.mark.row("route-range-03")
@pytest.mark.parametrize("flag", ["", " "])
def test_missing_cluster_cidr_skips_only_the_route_controller(flag: str) -> None:
    with capture_logs() as lines:
        names = started(f"--cluster-cidr={flag}")

    assert names == ["cloud-node"]
    (told,) = (line for line in lines if "--cluster-cidr" in line.get("error", ""))
    assert told["log_level"] == "error"


@pytest.mark.virtual_time
async def test_exchanged_provider_retries_failed_keys_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    async def reconcile(_key: str) -> ReconcileResult:
        tried.append(handle.name)
        if handle.name == "old":
            raise errors.PermissionDenied("bad token")
        return DONE

    controller = Controller("paper", queue="paper", reconcile=reconcile)
    monkeypatch.setattr(controllers, "build_enabled", lambda *_: [(MANIFESTS[0], controller)])
    forever = asyncio.Event().wait
    no_caches = MagicMock(run=forever, wait_synced=lambda _limit_s: forever())
    monkeypatch.setattr(controllers, "SharedInformers", Mock(return_value=no_caches))
    clients = Mock()
    clients.named.return_value.resource.return_value.get = AsyncMock(
        side_effect=kube_errors.NotFound(status=404, reason="NotFound", message="no record")
    )
    work = controllers.ControllerRunner(options.parse([]), clients, Mock(), DaemonState())
    holder = ProviderHolder(on_exchanged=work.retry_now)
    handle = await holder.open(lambda: nullcontext(Cloud(name="old")))
    running = spawn(work.run(handle, Mock()), name="controllers")
    controller.queue.add("key")
    await settle()
    assert tried == ["old"]

    await holder.exchange(lambda: nullcontext(Cloud(name="new")), work.check_provider)
    await settle()

    assert tried == ["old", "new"]
    assert elapsed_s() == 0
    await cancel_and_join(running)
    await holder.close()


SETS = ["machinedeployment", "machineovershoot", "machineset"]
"""They ask no cloud."""

MACHINES = sorted(["machine", "machineclass", "machinesafety", *SETS])


@pytest.mark.parametrize(
    ("named", "machines", "wanted"),
    [("*", object(), []), ("", object(), MACHINES), ("", None, SETS)],
    ids=["not-named", "named", "no-machines"],
)
def test_machine_controllers_start_when_named_and_supported(
    named: str, machines: Any, wanted: list[str]
) -> None:
    listed = named or ",".join(MACHINES)
    with capture_logs() as lines:
        found = started(f"--controllers={listed}", of=cloud(machines=machines))

    assert sorted(alias for alias in found if alias in MACHINES) == wanted
    said = {line["log_level"] for line in lines if re.match("machine", str(line.get("controller")))}
    assert said == (set() if machines else {"info"})


@pytest.mark.parametrize(
    "flags", [[], ["--configure-cloud-routes=false"], ["--controllers=-service", "--controllers=*"]]
)
def test_disabled_controllers_leave_no_log_line(flags: list[str]) -> None:
    with capture_logs() as lines:
        names = started("--cluster-cidr=10.0.0.0/16", *flags)

    assert ("route" in names) is ("--configure-cloud-routes=false" not in flags)
    assert "service" not in names
    assert [line for line in lines if "controller" in line] == []


INFRASTRUCTURE = {"cloud", "daemon", "deletions", "machines"}


@pytest.mark.virtual_time
async def test_controllers_log_under_the_names_that_the_flag_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other components of the daemon have names of their own."""
    names, create = set[str](), log.logger

    def recording(name: str, **facts: Any) -> log.Logger:
        names.add(name)
        return create(name, **facts)

    monkeypatch.setattr(log, "logger", recording)
    every = {manifest.name for manifest in MANIFESTS}
    async with KubermaticStuck().leading(controllers=",".join(sorted(every))):
        pass

    assert names - INFRASTRUCTURE == every


async def test_controllers_use_their_own_service_accounts_when_enabled(hand: HandClock) -> None:
    token = {"status": {"token": "theirs", "expirationTimestamp": format_time(hand.now())}}
    async with (
        serve() as server,
        connect(server.url, credentials=StaticCredentials(bearer("ours"))) as transport,
        AccountTransports(transport) as accounts,
    ):
        clients = ClientFactory(transport, None, accounts=accounts)
        server.will(says(token))

        await clients.named("node-controller").raw("GET", "/one")
        await clients.named("node-controller").raw("GET", "/two")
        await clients.named(EVENTS).raw("GET", "/three")
        await clients.lease(10.0).raw("GET", "/four")
        await clients.client(READER).request("GET", "/five")
        await clients.named(PERSISTENCE).raw("GET", "/six")

    asked, *others = server.seen
    assert asked.target.endswith("/kube-system/serviceaccounts/node-controller/token")
    assert [(one.target, one.headers["Authorization"]) for one in others] == [
        ("/one", "Bearer theirs"),
        ("/two", "Bearer theirs"),
        ("/three", "Bearer ours"),
        ("/four", "Bearer ours"),
        ("/five", "Bearer ours"),
        ("/six", "Bearer ours"),
    ]
    agent = others[0].headers["User-Agent"]
    assert agent.endswith("/system:serviceaccount:kube-system:node-controller")


async def test_provider_reads_the_complete_service_object() -> None:
    web = {"metadata": {"uid": "uid-default-web"}, "spec": {"trafficDistribution": "PreferClose"}}
    async with (
        serve() as server,
        connect(server.url, credentials=StaticCredentials(bearer("ours"))) as transport,
    ):
        context = Context(clients=ClientFactory(transport, None))
        server.will(says(web), refuses(404, "NotFound"))

        assert await context.whole(builders.service()) == web
        with pytest.raises(Aborted, match="default/web was deleted"):
            await context.whole(builders.service())

    assert server.seen[0].path == "/api/v1/namespaces/default/services/web"


async def test_service_account_transports_follow_the_ca_bundle() -> None:
    """They adopt a new CA bundle, but never the client certificate of the daemon."""
    async with (
        serve() as server,
        connect(server.url, credentials=StaticCredentials(bearer("ours"))) as transport,
        AccountTransports(transport) as accounts,
    ):
        theirs, user = accounts.get("node-controller")
        ours = KeyPair(chain=b"ours", key=b"ours")
        fresh = TlsSettings(authorities=b"fresh", certificate=ours)
        transport.adopt(replace(transport.config, tls=fresh))

        accounts.update_tls()

        assert theirs.config.tls == TlsSettings(authorities=b"fresh")
        assert accounts.get("node-controller") == (theirs, user)


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_stopping_daemon_starts_no_controller_writes(method: str) -> None:
    """Reads, events and the Lease continue while the daemon stops."""
    stopping = Drain()
    stopping.activate()
    async with serve() as server, connect(server.url) as transport:
        clients = ClientFactory(transport, None)
        assert await stopping.drain(1.0)

        await clients.named("node-controller").raw("GET", "/read")
        await clients.named(EVENTS).raw("POST", "/event", body=b"{}")
        await clients.lease(10.0).raw("PUT", "/lease", body=b"{}")
        write = spawn(clients.named("node-controller").raw(method, "/write"), name="write")
        await asyncio.sleep(0.05)

        assert [one.target for one in server.seen] == ["/read", "/event", "/lease"]
        await cancel_and_join(write)


NOWHERE = "http://127.0.0.1:1"


def chosen(*words: str) -> options.Options:
    return options.parse(["--cloud-provider=sim", *words])


def kubeconfig(folder: Path, name: str) -> str:
    path = folder / name
    write_kubeconfig(path, url=NOWHERE, token="t")
    return str(path)


async def test_control_and_target_kubeconfigs_are_separate_clusters(tmp_path: Path) -> None:
    words = [f"--{role}-kubeconfig={kubeconfig(tmp_path, role)}" for role in ("control", "target")]
    async with clients.other_clusters(chosen(*words), {}) as found:
        assert [list(one.roles) for one in found] == [["control"], ["target"]]
        contexts = [one.context(0.0) for one in found]
        assert contexts[0].informers is not contexts[1].informers


@pytest.mark.parametrize(
    ("words", "others", "wanted"),
    [
        (["--controllers=*"], [], "own"),
        (["--controllers=*,machine"], ["target"], "own"),
        (["--controllers=machine"], [], "own"),
        (["--controllers=machine"], ["target"], "target"),
        (["--controllers=machine"], ["control"], "own"),
        (["--controllers=machine", "--target-kubeconfig=none"], [], None),
    ],
)
async def test_provider_gets_the_node_informer_of_the_cluster_with_the_nodes(
    words: list[str], others: list[str], wanted: str | None
) -> None:
    made: dict[str, Any] = {name: SharedInformers(_Client()) for name in ("own", *others)}  # type: ignore[arg-type]
    unused: Any = None
    contexts = {
        name: ClusterContext(client=unused, recorder=unused, informers=made[name])
        for name in others
    }

    found = controllers._node_informer(chosen(*words), made["own"], contexts)

    if wanted is None:
        assert found is None
        assert not made["own"].all
    else:
        assert found is made[wanted].informer_for(NODES)
        assert [name for name, each in made.items() if each.all] == [wanted]


class _Client:
    """Client without any call."""

    def resource(self, _kind: object) -> Any:
        return SimpleNamespace()


async def test_lost_lease_abandons_the_events_of_all_clusters() -> None:
    """After a lost Lease the daemon writes no event to any cluster."""
    from ccm.app.clients import EventRecorders

    client: Any = _Client()
    async with EventRecorders(client) as other, EventRecorders(client, [other]) as own:
        other.recorder("a")
        own.abandon()
        await asyncio.sleep(0)
        assert all(task.cancelled() or task.cancelling() for task in other._tasks)


OPENERS_MACHINES = "--controllers=machine,machineclass,machinesafety"


def test_machine_controllers_alone_need_no_cloud_config() -> None:
    alone = options.parse(["--cloud-provider=sim", OPENERS_MACHINES])

    assert clients.provider_opener(alone) is registry.declaration_of(sim.open_cloud).machines


def test_unknown_provider_is_a_configuration_error() -> None:
    with pytest.raises(Misconfigured, match="nobody"):
        clients.provider_opener(options.parse(["--cloud-provider=nobody"]))


async def test_unusable_kubeconfig_error_names_the_flag(tmp_path: Path) -> None:
    words = ["--kubeconfig=own", f"--control-kubeconfig={tmp_path / 'absent'}"]
    with pytest.raises(Misconfigured, match=r"--control-kubeconfig=.*absent"):
        async with clients.other_clusters(chosen(*words), {}):
            pass


async def test_kubeconfig_of_another_cluster_is_reloaded(tmp_path: Path) -> None:
    """A changed server is refused, and the former kubeconfig stays in use."""
    from ccm.app.reload import ContentRejected

    file = kubeconfig(tmp_path, "t")
    words = ["--kubeconfig=own", f"--target-kubeconfig={file}"]
    async with clients.other_clusters(chosen(*words), {}) as found:
        write_kubeconfig(Path(file), url="http://127.0.0.1:2", token="t")
        with pytest.raises(ContentRejected, match="the server changed to http"):
            await found[0].source.reload()
