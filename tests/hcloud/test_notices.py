"""What is served, but perhaps not as people think: events and lines of the log."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm import cloud
from ccm.cloud.settings import table
from ccm.testing.builders import node
from ccm.testing.contract_balancers import deleted, ensured
from ccm.testing.contract_routes import CIDR, created
from ccm.testing.network_probes import CLUSTER
from ccm.testing.network_probes import nodes as make_nodes
from providers.hcloud import config
from tests.hcloud.balancing import UID, balancer_of, only, service, settled
from tests.hcloud.conftest import Told, in_cluster, opened
from tests.hcloud.harness import HcloudHarness

UNCONFIGURED, DEPRECATED, FULL = (
    "LoadBalancerTypeUnconfigured",
    "LoadBalancerTypeDeprecated",
    "MaxTargetsReached",
)


@pytest.mark.row("hcloud-balancer-08")
async def test_a_type_that_nobody_chose_is_told_of_when_it_is_ordered(
    harness: HcloudHarness,
) -> None:
    told = Told()
    async with in_cluster(harness, told, {}) as project:
        for wanted in (service("uid-1"), service("uid-1"), service("uid-2", type="lb11")):
            await ensured(balancer_of(project), wanted, [])
        assert told.events == [("Service", service("uid-1").name, UNCONFIGURED)]
        assert "lb11" in told.messages[0]
        await deleted(balancer_of(project), service("uid-1"))
        await deleted(balancer_of(project), service("uid-2"))
        settled(harness, labels={UID: "uid-3"})
        await ensured(balancer_of(project), service("uid-3"), [])  # somebody else chose it
    async with in_cluster(harness, told, {"HCLOUD_LOAD_BALANCERS_TYPE": "lb21"}) as project:
        await ensured(balancer_of(project), service("uid-4"), [])

    assert len(told.events) == 1


@pytest.mark.row("hcloud-balancer-08")
async def test_a_deprecated_type_is_told_of(harness: HcloudHarness) -> None:
    told, made = Told(), settled(harness, labels={UID: "uid-1"})
    made["load_balancer_type"] = {
        **made["load_balancer_type"],
        "deprecated": "2026-01-30T23:50:00Z",
    }
    async with in_cluster(harness, told, {}) as project:
        await ensured(balancer_of(project), service("uid-1"), [])

    assert [reason for _, _, reason in told.events] == [DEPRECATED]


@pytest.mark.row("hcloud-balancer-12")
async def test_nodes_that_get_no_traffic_are_told_of(harness: HcloudHarness) -> None:
    told = Told()
    async with in_cluster(harness, told, {"HCLOUD_LOAD_BALANCERS_TYPE": "lb11"}) as project:
        nodes = await make_nodes(project, harness, 26)
        await ensured(balancer_of(project), service(), nodes)
        only(harness)["load_balancer_type"] = {
            **only(harness)["load_balancer_type"],
            "max_targets": 20,
        }
        members = only(harness)["targets"]
        only(harness)["targets"] = members[5:]
        del told.events[:]
        await balancer_of(project).update_load_balancer(CLUSTER, service(), nodes[:20])
        assert told.events == []
        only(harness)["targets"] = [{"type": "ip", "ip": {"ip": "192.0.2.1"}}, *members[:19]]
        robot = node("bm", provider_id="hrobot://1")
        await balancer_of(project).update_load_balancer(CLUSTER, service(), [*nodes[:20], robot])

    assert told.events == [("Service", service().name, FULL)]
    assert "too many targets" in told.messages[-1]  # the cloud's word, for we left room
    assert "26 nodes" in told.messages[0]


# --- routes -------------------------------------------------------------------------------------


@pytest.mark.row("hcloud-route-06")
async def test_a_route_outside_of_the_pods_is_never_touched(harness: HcloudHarness) -> None:
    """Those of another cluster in the network: listed, and whatever is asked for, left alone."""
    told, theirs = Told(), {"destination": "10.99.0.0/24", "gateway": "10.0.0.200"}
    harness.network["routes"].append(theirs)
    async with in_cluster(harness, told, {}, pods="10.120.0.0/16") as project:
        assert project.routes is not None
        (one,) = await make_nodes(project, harness, 1)
        (listed,) = await project.routes.list_routes(CLUSTER)
        before = harness.service.writes
        with pytest.raises(cloud.FailedPrecondition, match="left alone"):
            await project.routes.delete_route(CLUSTER, listed)
        assert harness.service.writes == before
        with pytest.raises(cloud.AlreadyExists, match="left alone"):
            await created(project.routes, one, theirs["destination"])
        assert told.events == [("Node", one.name, "ClusterCIDRMisconfigured")]
        await created(project.routes, one, CIDR)
        mine = next(
            one for one in await project.routes.list_routes(CLUSTER) if one.destination_cidr == CIDR
        )
        await project.routes.delete_route(CLUSTER, mine)

    assert harness.network["routes"] == [theirs]
    assert len(told.events) == 1


@pytest.mark.row("hcloud-route-06")
@pytest.mark.parametrize(
    ("pods", "switched", "said"),
    [
        ("10.244.0.0/16", {}, "10.244.0.0/16"),
        ("10.0.0.0/15, fd00::/48", {}, "10.0.0.0/15"),
        ("10.0.128.0/17, fd00::/48", {}, ""),
        ("10.244.0.0/16", {"HCLOUD_NETWORK_ROUTES_ENABLED": "false"}, ""),
        ("", {}, ""),
    ],
    ids=["elsewhere", "wider", "within", "no routes", "no range"],
)
async def test_pods_outside_of_the_network_are_told_of_once(
    harness: HcloudHarness, pods: str, switched: dict[str, str], said: str
) -> None:
    with capture_logs() as lines:
        async with in_cluster(harness, Told(), switched, pods=pods) as project:
            assert project.inventory is not None
            await project.inventory.list_instances()
            await project.inventory.list_instances()

    found = [line["cluster_cidr"] for line in lines if "cluster_cidr" in line]
    assert found == ([said] if said else [])


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.row("hcloud-config-04")
@pytest.mark.parametrize(
    ("given", "level", "said"),
    [
        ({}, "", []),
        ({"HCLOUD_SERVER_CACHE_MODE": "all"}, "", []),
        (
            {
                "HCLOUD_SERVER_CACHE_MODE": "off",
                "HCLOUD_SERVER_CACHE_MAX_AGE": "1m",
                "HCLOUD_DEBUG": "1",
            },
            "info",
            ["HCLOUD_DEBUG", "HCLOUD_SERVER_CACHE_MODE", "HCLOUD_SERVER_CACHE_MAX_AGE"],
        ),
        (
            {"ROBOT_USER": "me", "ROBOT_PASSWORD": "s3cret"},
            "info",
            ["ROBOT_USER", "ROBOT_PASSWORD"],
        ),
        ({"HCLOUD_TOKEN": "s3cret"}, "warning", []),
    ],
    ids=["nothing", "as it is anyway", "modes of a cache", "Robot", "a short token"],
)
async def test_settings_that_do_nothing_are_named(
    harness: HcloudHarness, given: dict[str, str], level: str, said: list[str]
) -> None:
    with capture_logs() as lines:
        async with opened(harness, **given):
            pass

    ours: list[Any] = [line for line in lines if {"settings", "length"} & line.keys()]
    assert [line["log_level"] for line in ours] == ([level] if level else [])
    assert [line.get("settings", []) for line in ours] == ([said] if level else [])
    assert "s3cret" not in str(lines)


@pytest.mark.row("hcloud-config-04")
def test_the_table_says_which_those_are() -> None:
    words = {one.name for one in table(config.Config) if one.help.startswith("No effect")}
    changed = dict.fromkeys(words, "true") | {
        "HCLOUD_SERVER_CACHE_MODE": "one",
        "HCLOUD_SERVER_CACHE_MAX_AGE": "1s",
        "HCLOUD_METRICS_ENABLED": "false",
        "ROBOT_CACHE_TIMEOUT": "1s",
        "ROBOT_RATE_LIMIT_WAIT_TIME": "1s",
        "ROBOT_FORWARD_INTERNAL_IPS": "false",
    }
    given = cloud.Context(environ={"HCLOUD_TOKEN": "t", **changed})

    assert set(config.idle(given.settings(config.Config, environment=True))) == words
