"""The whole daemon, an API server and the fake of a cloud: lives of machines and Services."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ccm.cli import doctor, explain
from ccm.model import names
from ccm.sandbox import process
from providers.hcloud import service_annotations as ann
from providers.stackit.testing.server import Service
from providers.stackit.testing.state import Settings
from tests import pki, servers
from tests.scenario import harness
from tests.scenario.harness import EVENTS, NODES, Environment, wait_for
from tests.scenario.machines import MACHINES, SERVICES, Costs, installed, life
from tests.vendors import lives
from tests.vendors.clouds import QUOTED, Hcloud, OpenStack, Stackit, Vendor

REST_S = 600.0


async def lived(vendor: Vendor, api_server: servers.ApiServer, folder: Path, **how: Any) -> Costs:
    """A life, whose restart wrote nothing, and which told nobody a secret."""
    async with vendor.opened(api_server, folder) as (env, _):
        farm = await installed(env, vendor.pool())
        costs = await life(farm, env, vendor.fake, vendor.how, **how)
        said = "".join(one.output for one in env.daemons)
    assert (costs.restart_writes, costs.restart.total() > 0) == (0, True), costs
    assert [one for one in vendor.secrets() if one in said] == []
    return costs


@pytest.mark.slow
@pytest.mark.both_servers
@pytest.mark.row("hcloud-call-01", "hcloud-balancer-20")
async def test_hcloud_machines_become_nodes_within_the_budget_of_calls(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    costs = await lived(Hcloud(), api_server, tmp_path, nodes=5, services=2, rest_s=1.0)

    assert costs.from_nothing.total() <= 4 * 5 + 2 * 2 + 15, costs
    assert costs.at_rest.total() <= 5, costs


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.row("hcloud-call-01", "hcloud-balancer-20")
@servers.only_real
@pytest.mark.parametrize(("first", "rest_s"), [("nodes", REST_S), ("services", 10.0)])
async def test_ninety_hcloud_machines_stay_within_the_budget_of_calls(
    api_server: servers.ApiServer, tmp_path: Path, first: str, rest_s: float
) -> None:
    """With Services first, each node costs a call per Service, which adds one target."""
    vendor, is_late = Hcloud(), first == "services"
    vendor.flags = {"cluster-cidr": vendor.flags["cluster-cidr"]}
    how = {"nodes": 90, "services": 5, "rest_s": rest_s, "services_first": is_late}
    costs = await lived(vendor, api_server, tmp_path, **how)

    assert costs.from_nothing.total() <= 400 + (90 * 5 if is_late else 0), costs
    assert costs.at_rest.total() <= 60, costs


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.row("stackit-call-01", "stackit-balancer-23")
@pytest.mark.parametrize(
    ("count", "services", "rest_s", "slow_s"),
    [(5, 2, 2.0, 0.0), pytest.param(200, 20, REST_S, 2.0, marks=pytest.mark.soak)],
)
async def test_stackit_machines_become_nodes_within_the_budget_of_calls(
    api_server: servers.ApiServer,
    tmp_path: Path,
    count: int,
    services: int,
    rest_s: float,
    slow_s: float,
) -> None:
    vendor = Stackit(Service(Settings(boot_s=slow_s, balancer_s=slow_s)))
    costs = await lived(vendor, api_server, tmp_path, nodes=count, services=services, rest_s=rest_s)

    assert vendor.fake.cloud.nics == {}
    # Per machine: look-up, creation, listing, polls until it boots, its network interfaces, and
    # a change of one. Per node: its metadata once. Per Service: look-up, creation, and polls
    # until it is ready.
    assert costs.from_nothing.total() <= 9 * count + 12 * services + 20, costs
    assert costs.at_rest.total() <= 10, costs
    assert costs.restart.total() <= 10, costs


WEB = {
    ann.PROTOCOL.name: "https",
    ann.CERTIFICATE_TYPE.name: "managed",
    ann.MANAGED_DOMAINS.name: "example.com",
    ann.IPV4_RDNS.name: "web.example.com",
}
CATTLE: Mapping[type[Vendor], dict[str, Any]] = {
    Hcloud: {"annotations": WEB, "volumes": [10], "placementGroupPrefix": "workers"},
    OpenStack: {"rootDiskSize": 10},
}
"""One of everything that there is."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("made", "every"),
    [
        (Hcloud, 11),
        (Stackit, 7),
        (OpenStack, 11),
        pytest.param(Hcloud, 1, marks=pytest.mark.soak),
        pytest.param(OpenStack, 1, marks=pytest.mark.soak),
        pytest.param(Stackit, 1, marks=pytest.mark.soak),
    ],
)
async def test_a_daemon_killed_at_a_writing_call_is_recovered(
    api_server: servers.ApiServer,
    tmp_path: Path,
    made: type[Hcloud | OpenStack | Stackit],
    every: int,
) -> None:
    vendor = made()
    vendor.flags = {**vendor.flags, **lives.FLAGS}
    async with vendor.opened(api_server, tmp_path) as (env, proxy):
        farm = await installed(env, vendor.pool(**CATTLE.get(made, {})))
        run = lives.Lives(env, farm, proxy, vendor)
        await lives.assert_mended(run, every=every)
        assert {n for name, n in run.expected.items() if name != "nics"} == {1}


# --- secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(Hcloud, marks=[pytest.mark.slow, pytest.mark.row("hcloud-call-06")]),
        pytest.param(OpenStack, marks=[pytest.mark.slow, pytest.mark.row("openstack-call-04")]),
        # What is of the provider itself, its own tests look for.
        pytest.param(Stackit, marks=[pytest.mark.soak, pytest.mark.row("stackit-auth-04")]),
    ],
)
async def test_logs_objects_metrics_and_commands_contain_no_secret(
    api_server: servers.ApiServer, tmp_path: Path, made: type[Hcloud | OpenStack | Stackit]
) -> None:
    """Logs, objects and events, metrics, and the output of commands."""
    vendor = made.gossip("n1")
    port = process.pick_port()
    vendor.flags = {
        **vendor.flags,
        "v": "10",
        "secure-port": str(port),
        "authorization-always-allow-paths": "/metrics",
    }
    async with vendor.opened(api_server, tmp_path) as (env, _):
        farm = await installed(env, vendor.pool())
        daemon = await env.start_leading(**vendor.how)
        await env.cluster.register("n1", ready=names.STATUS_TRUE, **vendor.node)
        await farm.expose(1)
        await farm.order(1)
        said = await wait_for(lambda: quoted(env, daemon, made is not Stackit), "refusals are told")
        said += await commands(env, vendor) + await metrics(port)
        assert await daemon.stop() == 0
        said += daemon.output

    assert said.count(QUOTED) > len(vendor.gossips)
    for secret in vendor.secrets():
        for form in (secret, base64.b64encode(secret.encode()).decode()[:-4]):
            assert [line for line in said.splitlines() if form in line] == []


async def quoted(env: Environment, daemon: harness.Daemon, routed: bool) -> str:
    """What the cluster and the log say, once each refusal is in it."""
    told = {path: await env.cluster.items(path) for path in (EVENTS, MACHINES, SERVICES, NODES)}
    events = json.dumps(told[EVENTS])
    whole = QUOTED in json.dumps(told[MACHINES]) and "web-0" in events and QUOTED in events
    routes = any("route" in line and QUOTED in line for line in daemon.output.splitlines())
    whole = whole and (routes or not routed)
    return f"{json.dumps(told)}\n{daemon.output}" if whole else ""


async def commands(env: Environment, vendor: Vendor) -> str:
    """What people are told: by `doctor`, and by `explain` of each kind."""
    out, environ = io.StringIO(), vendor.how.get("env", {})
    words = [
        f"--kubeconfig={env.server.kubeconfig_path}",
        *harness.command_line({**vendor.all_flags, "cloud-config": str(env.cloud_config)}),
    ]
    await doctor.examine_and_show(doctor.read(words), out, environ=environ)
    for thing in (("service", "default/web-0"), ("node", "n1"), ("machine", "default/m0-0")):
        await explain.explain_object(explain.read([*thing, *words]), out, environ=environ)
    return out.getvalue()


async def metrics(port: int) -> str:
    connector = aiohttp.TCPConnector(ssl=pki.client_context())
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://{process.LOOPBACK}:{port}/metrics") as response,
    ):
        assert response.status == 200
        return await response.text()
