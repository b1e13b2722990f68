"""Dedicated servers: the client of the Robot web service, its cache and pauses, and their nodes."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from ccm import cloud
from ccm.testing.builders import node
from ccm.testing.fake_api import Fault
from providers.hcloud import robot as client
from providers.hcloud.testing import robot
from tests.handclock import HandClock
from tests.hcloud.harness import HcloudHarness, Told
from tests.hcloud.robots import Robots, dedicated, mixed

RUNNING, SHUTDOWN = cloud.Power.RUNNING, cloud.Power.SHUTDOWN
LISTING, SERVER, RESET = "GET /server", "GET /server/{id}", "GET /reset/{id}"


def instances_of(project: cloud.Cloud) -> Any:
    assert project.instances is not None
    return project.instances


# --- nodes --------------------------------------------------------------------------------------


@pytest.mark.row("hcloud-robot-01")
@pytest.mark.parametrize(
    "written", ["hrobot://{}", "hcloud://bm-{}", ""], ids=["id", "old", "name"]
)
async def test_a_dedicated_server_has_metadata_of_its_own(
    harness: HcloudHarness, robots: Robots, written: str
) -> None:
    number = robots.service.add_server("bm", product="Server Auction (EX #42)", dc="NBG1-DC3")
    listed = robots.service.servers[number]
    one = node(
        "bm",
        provider_id=written.format(number),
        addresses=[cloud.address("InternalIP", "10.0.1.7"), cloud.address("Hostname", "x")],
    )

    async with mixed(harness, robots) as project:
        found = await instances_of(project).instance_metadata(one)

    assert found == cloud.InstanceMetadata(
        provider_id=f"hrobot://{number}",
        instance_type="Server-Auction-EX-42",
        zone="nbg1-dc3",
        region="nbg1",
        additional_labels={"instance.hetzner.cloud/provided-by": "robot"},
        addresses=[
            cloud.address("Hostname", "bm"),
            cloud.address("ExternalIP", f"{listed['server_ipv6_net']}1"),
            cloud.address("ExternalIP", listed["server_ip"]),
            cloud.address("InternalIP", "10.0.1.7"),
        ],
    )
    assert not cloud.is_foreign(found.provider_id, project.provider_schemes, project.foreign_ids)


@pytest.mark.row("hcloud-robot-01")
async def test_a_dedicated_server_without_optional_fields_has_metadata(
    harness: HcloudHarness, robots: Robots
) -> None:
    number = robots.service.add_server("bm")
    nothing = dict.fromkeys(("server_ip", "server_ipv6_net", "product", "dc"))
    robots.service.servers[number].update(nothing)

    async with mixed(harness, robots) as project:
        found = await instances_of(project).instance_metadata(dedicated(number))

    assert (found.instance_type, found.zone, found.region) == ("", "", "")
    assert [one.type for one in found.addresses] == ["Hostname"]


@pytest.mark.row("hcloud-robot-02")
@pytest.mark.parametrize(
    ("settings", "kept", "dropped"),
    [
        ({}, ["10.0.1.7", "fd00::7"], ["198.51.100.52"]),
        ({"ROBOT_FORWARD_INTERNAL_IPS": "false"}, [], []),
        ({"HCLOUD_INSTANCES_ADDRESS_FAMILY": "ipv4"}, ["10.0.1.7"], ["198.51.100.52", "fd00::7"]),
        ({"HCLOUD_INSTANCES_ADDRESS_FAMILY": "ipv6"}, ["fd00::7"], ["198.51.100.52", "10.0.1.7"]),
    ],
    ids=["both families", "switched off", "ipv4", "ipv6"],
)
async def test_internal_addresses_come_from_the_kubelet(
    harness: HcloudHarness,
    robots: Robots,
    settings: dict[str, str],
    kept: list[str],
    dropped: list[str],
) -> None:
    told, number = Told(), robots.service.add_server("bm")
    robots.service.servers[number]["server_ip"] = "198.51.100.52"
    reported = [
        cloud.address("InternalIP", text) for text in ("10.0.1.7", "fd00::7", "198.51.100.52")
    ]

    async with mixed(harness, robots, told, **settings) as project:
        for _ in range(2):
            found = await instances_of(project).instance_metadata(dedicated(number, reported))
        assert len(told.events) == bool(dropped)
        await instances_of(project).instance_metadata(dedicated(number))
        await instances_of(project).instance_metadata(dedicated(number, reported))

    internal = [one.address for one in found.addresses if one.type == "InternalIP"]
    assert internal == kept
    assert told.events == [("Node", "bm", "MisconfiguredInternalIP")] * 2 * bool(dropped)
    assert all(text in message for text in dropped for message in told.messages)


@pytest.mark.row("hcloud-robot-03")
async def test_a_name_in_both_apis_is_an_error(harness: HcloudHarness, robots: Robots) -> None:
    told, (twin, other) = Told(), await harness.nodes(2)
    number = robots.service.add_server(twin.name)
    async with mixed(harness, robots, told) as project:
        assert project.inventory is not None
        listing = await project.inventory.list_instances()
        for ask in ("instance_metadata", "instance_exists"):
            with pytest.raises(
                cloud.FailedPrecondition, match=f"{twin.provider_id}, hrobot://{number};"
            ):
                await getattr(instances_of(project), ask)(node(twin.name))
        found = await instances_of(project).instance_metadata(twin)

    names = {one.metadata.provider_id: one.name for one in listing.instances}
    assert names == {twin.provider_id: "", other.provider_id: other.name}
    assert found.provider_id == twin.provider_id
    assert told.events == [("Node", twin.name, "InstanceLookupFailed")] * 2


@pytest.mark.row("hcloud-robot-03")
async def test_a_name_of_several_dedicated_servers_is_an_error(
    harness: HcloudHarness, robots: Robots
) -> None:
    """Also if a server of the cloud has it."""
    (made,) = await harness.nodes(1)
    for name in ("bm", made.name):
        numbers = [robots.service.add_server(name) for _ in range(2)]
        ids = ", ".join(f"hrobot://{number}" for number in numbers)
        async with mixed(harness, robots) as project:
            with pytest.raises(cloud.FailedPrecondition, match=ids):
                await instances_of(project).instance_metadata(node(name))


@pytest.mark.row("hcloud-robot-04")
async def test_a_node_with_another_name_than_its_server_is_left_alone(
    harness: HcloudHarness, robots: Robots
) -> None:
    told, number = Told(), robots.service.add_server("renamed")
    asks = ("instance_metadata", "instance_exists", "instance_state", "instance_shutdown")
    async with mixed(harness, robots, told) as project:
        for ask in asks:
            with pytest.raises(cloud.FailedPrecondition, match="'renamed', not 'bm'"):
                await getattr(instances_of(project), ask)(dedicated(number))

    assert told.events == [("Node", "bm", "PossibleNodeDeletion")] * len(asks)


@pytest.mark.row("hcloud-robot-05")
@pytest.mark.parametrize("login", ["with credentials", "without credentials"])
async def test_an_unknown_node_without_provider_id_is_never_absent(
    harness: HcloudHarness, robots: Robots, login: str
) -> None:
    settings = {} if login == "with credentials" else {"ROBOT_USER": "", "ROBOT_PASSWORD": ""}
    async with mixed(harness, robots, None, **settings) as project:
        for ask in ("instance_exists", "instance_state", "instance_shutdown"):
            with pytest.raises(cloud.FailedPrecondition, match="is kept"):
                await getattr(instances_of(project), ask)(node("unknown"))
        with pytest.raises(cloud.NotFound):
            await instances_of(project).instance_metadata(node("unknown"))


@pytest.mark.row("hcloud-node-05")
@pytest.mark.parametrize(
    "provider_id", ["hcloud://bm-x", "hrobot://", "hrobot://1/2", "hrobot://0"]
)
async def test_a_malformed_provider_id_is_refused_without_a_call(
    harness: HcloudHarness, robots: Robots, provider_id: str
) -> None:
    async with mixed(harness, robots) as project:
        for ask in ("instance_metadata", "instance_exists"):
            with pytest.raises(cloud.InvalidArgument, match=provider_id):
                await getattr(instances_of(project), ask)(node("bm", provider_id=provider_id))

    assert robots.service.calls.total() + harness.service.calls.total() == 0


@pytest.mark.row("hcloud-node-05")
async def test_dedicated_servers_are_foreign_without_credentials(
    harness: HcloudHarness, robots: Robots
) -> None:
    async with mixed(harness, robots, ROBOT_USER="", ROBOT_PASSWORD="") as project:
        for provider_id in ("hrobot://1", "hcloud://bm-1"):
            assert cloud.is_foreign(provider_id, project.provider_schemes, project.foreign_ids)

    assert robots.service.calls.total() == 0


# --- power and absence ----------------------------------------------------------------------------


@pytest.mark.row("hcloud-robot-06")
@pytest.mark.parametrize(
    ("status", "power"),
    [("running", RUNNING), ("shut off", SHUTDOWN), ("not supported", RUNNING), ("", RUNNING)],
)
async def test_power_is_the_operating_status(
    harness: HcloudHarness, robots: Robots, status: str, power: cloud.Power
) -> None:
    number = robots.service.add_server("bm")
    robots.service.statuses[number] = status
    if not status:
        del robots.service.statuses[number]  # no reset option
    async with mixed(harness, robots) as project:
        for _ in range(3):
            found = await instances_of(project).instance_state(dedicated(number))
            assert found == cloud.InstanceState(exists=True, power=power)

    assert robots.service.calls == {LISTING: 1, RESET: 1}


@pytest.mark.row("hcloud-robot-06")
async def test_power_is_read_again_after_a_minute(
    hand: HandClock, harness: HcloudHarness, robots: Robots
) -> None:
    number = robots.service.add_server("bm")
    async with mixed(harness, robots) as project:
        ask = instances_of(project).instance_shutdown
        assert not await ask(dedicated(number))
        robots.service.statuses[number] = "shut off"
        hand.advance(59)
        assert not await ask(dedicated(number))
        hand.advance(1)
        assert await ask(dedicated(number))


@pytest.mark.row("hcloud-robot-07")
async def test_absence_is_proved_by_two_live_answers_about_the_server(
    hand: HandClock, harness: HcloudHarness, robots: Robots
) -> None:
    """As the node lifecycle controller asks: the state, then for a second time the existence."""
    number, *others = [robots.service.add_server(name) for name in ("bm", "a", "b")]
    listed = robots.service.servers[number]
    async with mixed(harness, robots) as project:
        ask = instances_of(project)

        async def outdate_listing(name: str) -> None:
            other = others.pop()
            robots.service.remove_server(other)
            assert (await ask.instance_state(dedicated(other, name=name))).exists

        assert (await ask.instance_state(dedicated(number))).exists
        robots.service.remove_server(number)
        hand.advance(60)
        # The listing still has the server; the answer about its power outdates the listing.
        assert (await ask.instance_state(dedicated(number))).exists
        assert robots.service.calls[SERVER] == 0
        assert not (await ask.instance_state(dedicated(number))).exists
        assert (robots.service.calls[LISTING], robots.service.calls[SERVER]) == (2, 1)
        hand.advance(5)
        assert not await ask.instance_exists(dedicated(number))
        assert robots.service.calls[SERVER] == 2
        # The deletion may be blocked for long: later answers are repeated for a minute.
        for _ in range(11):
            hand.advance(5)
            assert not await ask.instance_exists(dedicated(number))
        assert robots.service.calls[SERVER] == 2
        # The server is back, and gone again at once: two live answers are needed again.
        robots.service.servers[number] = listed
        await outdate_listing("b")
        await ask.instance_metadata(dedicated(number))
        robots.service.remove_server(number)
        await outdate_listing("a")
        for count in (3, 4):
            assert not await ask.instance_exists(dedicated(number))
            assert robots.service.calls[SERVER] == count


@pytest.mark.row("hcloud-robot-07")
async def test_an_account_without_servers_denies_a_server(
    harness: HcloudHarness, robots: Robots
) -> None:
    async with mixed(harness, robots) as project:
        assert not await instances_of(project).instance_exists(dedicated(321))

    assert robots.service.calls == {LISTING: 1, SERVER: 1}


@pytest.mark.row("hcloud-robot-08")
@pytest.mark.parametrize("operation", [LISTING, SERVER, "*"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="drop"),
        Fault(kind="garbage"),
        Fault(kind="garbage", status=404),
        Fault(kind="empty"),
        Fault(code="NOT_FOUND"),
        Fault(code="UNAUTHORIZED"),
        Fault(code="RATE_LIMIT_EXCEEDED"),
        Fault(code="MAINTENANCE"),
        Fault(code="SERVER_NOT_FOUND", status=403),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.code}-{fault.status}",
)
async def test_a_failing_web_service_never_denies_a_server(
    harness: HcloudHarness, robots: Robots, operation: str, fault: Fault
) -> None:
    """Not even about a server that no listing has."""
    robots.service.add_server("other")
    robots.service.script.add(structs.replace(fault, operation=operation))
    async with mixed(harness, robots) as project:
        for _ in range(3):
            for ask in ("instance_exists", "instance_state"):
                with pytest.raises(cloud.CloudError) as caught:
                    await getattr(instances_of(project), ask)(dedicated(321))
                assert not isinstance(caught.value, cloud.NotFound)

    # aiohttp itself repeats a request whose reused connection was cut.
    sent = robots.service.calls[operation if operation != "*" else LISTING]
    assert sent == 1 or (fault.kind, sent) == ("drop", 2)


async def test_an_answer_about_another_dedicated_server_is_an_error(
    harness: HcloudHarness, robots: Robots, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = robots.service.add_server("bm")
    monkeypatch.setitem(robots.service.servers, 7, robots.service.servers[number])
    async with mixed(harness, robots) as project:
        with pytest.raises(cloud.Unknown, match="requested server 7"):
            await instances_of(project).instance_exists(dedicated(7))


@pytest.mark.row("hcloud-call-03")
async def test_unknown_fields_of_robot_are_ignored(harness: HcloudHarness, robots: Robots) -> None:
    number = robots.service.add_server("bm")
    robots.service.script.add(Fault(kind="novelty"))
    async with mixed(harness, robots) as project:
        assert await instances_of(project).instance_exists(dedicated(number))


# --- requests -------------------------------------------------------------------------------------


@pytest.mark.row("hcloud-robot-09")
async def test_a_settled_cluster_makes_at_most_two_requests_a_minute(
    hand: HandClock, harness: HcloudHarness, robots: Robots
) -> None:
    """20 nodes: 10 of the cloud, and 10 dedicated servers.

    Of these, one is off, two do not answer, and the server of one is gone while its deletion is
    blocked. A node without provider ID is unknown everywhere.
    """
    cloud_nodes = await harness.nodes(10)
    numbers = [robots.service.add_server(f"bm-{number}") for number in range(10)]
    mine = [dedicated(number, name=f"bm-{index}") for index, number in enumerate(numbers)]
    async with mixed(harness, robots) as project:
        ask: Any = instances_of(project)
        assert project.inventory is not None

        async def pass_over_suspects() -> None:
            for each in mine[:3]:
                await ask.instance_state(each)
            await ask.instance_exists(mine[3])
            with pytest.raises(cloud.FailedPrecondition):
                await ask.instance_exists(node("unknown"))

        for each in mine:
            await ask.instance_metadata(each)
        assert robots.service.calls == {LISTING: 1}
        robots.service.statuses[numbers[0]] = "shut off"
        robots.service.remove_server(numbers[3])
        hand.advance(301)
        for _ in range(60):  # the first answers about each
            await pass_over_suspects()
            hand.advance(5)
        minutes = []
        for minute in range(60):
            before = robots.service.calls.total()
            if minute % 5 == 0:
                await project.inventory.list_instances()
                for each in (*cloud_nodes, *mine[4:]):
                    await ask.instance_metadata(each)
            for _ in range(12):
                await pass_over_suspects()
                hand.advance(5)
            minutes.append(robots.service.calls.total() - before)

    assert max(minutes) <= 2, minutes
    assert sum(minutes) > 60, "power and absence are no longer read"


@pytest.mark.row("hcloud-robot-09")
@pytest.mark.parametrize(("setting", "lasts_s"), [("", 300), ("0s", 300), ("10m", 600)])
async def test_the_listing_is_kept_for_the_cache_timeout(
    hand: HandClock, harness: HcloudHarness, robots: Robots, setting: str, lasts_s: int
) -> None:
    number = robots.service.add_server("bm")
    async with mixed(harness, robots, ROBOT_CACHE_TIMEOUT=setting) as project:
        ask = instances_of(project).instance_metadata
        await asyncio.gather(*(ask(dedicated(number)) for _ in range(20)))
        hand.advance(lasts_s - 1)
        await ask(dedicated(number))
        assert robots.service.calls == {LISTING: 1}
        hand.advance(1)
        await ask(dedicated(number))

    assert robots.service.calls == {LISTING: 2}


@pytest.mark.row("hcloud-robot-09")
async def test_a_new_dedicated_server_is_found_within_a_minute(
    hand: HandClock, harness: HcloudHarness, robots: Robots
) -> None:
    async with mixed(harness, robots) as project:
        ask = instances_of(project).instance_metadata
        for _ in range(12):
            with pytest.raises(cloud.NotFound):
                await ask(node("bm"))
            hand.advance(5)
        assert robots.service.calls == {LISTING: 1}
        number = robots.service.add_server("bm")

        assert (await ask(node("bm"))).provider_id == f"hrobot://{number}"


@pytest.mark.row("hcloud-robot-10")
@pytest.mark.parametrize(
    ("fault", "setting", "kind", "pause_s"),
    [
        (Fault(code="RATE_LIMIT_EXCEEDED"), "5m", cloud.RetryAfter, 300),
        (Fault(code="SOMETHING", status=403), "5m", cloud.RetryAfter, 300),
        (Fault(code="RATE_LIMIT_EXCEEDED"), "", cloud.RetryAfter, client.PAUSE_S),
        (Fault(code="UNAUTHORIZED"), "5m", cloud.Unauthenticated, client.LOGIN_PAUSE_S),
        (Fault(code="MAINTENANCE"), "5m", cloud.Unavailable, client.PAUSE_S),
        (Fault(kind="drop"), "5m", cloud.Unavailable, client.PAUSE_S),
        (Fault(kind="garbage"), "5m", cloud.Unknown, client.PAUSE_S),
    ],
    ids=lambda value: f"{value.kind}-{value.code}" if isinstance(value, Fault) else None,
)
async def test_an_error_pauses_robot_and_nothing_else(
    hand: HandClock,
    harness: HcloudHarness,
    robots: Robots,
    fault: Fault,
    setting: str,
    kind: type[cloud.CloudError],
    pause_s: float,
) -> None:
    number = robots.service.add_server("bm")
    (made, new) = await harness.nodes(2)
    async with mixed(harness, robots, ROBOT_RATE_LIMIT_WAIT_TIME=setting) as project:
        ask: Any = instances_of(project)
        await ask.instance_metadata(dedicated(number))
        robots.service.script.add(fault)
        with pytest.raises(kind):
            await ask.instance_state(dedicated(number))
        sent = robots.service.calls.total()
        hand.advance(pause_s - 1)
        with pytest.raises(cloud.RetryAfter) as caught:
            await ask.instance_state(dedicated(number))
        assert caught.value.seconds == pytest.approx(1)
        assert (await ask.instance_state(made)).exists
        assert (await ask.instance_metadata(node(new.name))).provider_id == new.provider_id
        assert robots.service.calls.total() == sent
        robots.service.heal()
        hand.advance(1)
        assert (await ask.instance_state(dedicated(number))).exists


@pytest.mark.row("hcloud-robot-10")
@pytest.mark.parametrize("address", ["public", "private", "another", "none"])
async def test_a_name_is_ambiguous_until_robot_has_answered_once(
    harness: HcloudHarness, robots: Robots, address: str
) -> None:
    """A common address proves that the node is the server of the cloud."""
    (made,) = await harness.nodes(1)
    own = {one.type: one.address for one in made.addresses}
    known = {"public": own["ExternalIP"], "private": own["InternalIP"], "another": "10.9.9.9"}
    reported = [cloud.address("InternalIP", known[address])] if address in known else []
    new = node(made.name, addresses=[*reported, cloud.address("Hostname", made.name)])
    robots.service.script.add(Fault(code="RATE_LIMIT_EXCEEDED"))
    async with mixed(harness, robots) as project:
        assert project.inventory is not None
        listing = await project.inventory.list_instances()
        if address in ("public", "private"):
            found = await instances_of(project).instance_metadata(new)
            assert found.provider_id == made.provider_id
        else:
            with pytest.raises(cloud.RetryAfter):
                await instances_of(project).instance_metadata(new)

    assert [one.name for one in listing.instances] == [""]


# --- settings and secrets -------------------------------------------------------------------------


@pytest.mark.row("hcloud-config-04")
async def test_robot_is_not_called_without_the_switch(
    harness: HcloudHarness, robots: Robots
) -> None:
    robots.service.add_server("bm")
    async with mixed(harness, robots, ROBOT_ENABLED="false") as project:
        assert cloud.is_foreign("hrobot://1", project.provider_schemes, project.foreign_ids)
        with pytest.raises(cloud.NotFound):
            await instances_of(project).instance_metadata(node("bm"))
        assert not await instances_of(project).instance_exists(node("bm"))

    assert robots.service.calls.total() == 0


@pytest.mark.row("hcloud-call-06")
async def test_the_password_is_in_no_error(
    harness: HcloudHarness, robots: Robots, caplog: pytest.LogCaptureFixture
) -> None:
    service = robots.service
    secret = b64encode(f"{service.user}:{service.password}".encode()).decode()
    quoted = f"Basic {secret} of {service.password} may not do that"
    service.script.add(Fault(code="MAINTENANCE", message=quoted))
    caplog.set_level("DEBUG")
    told = []
    async with mixed(harness, robots) as project:
        for _ in range(2):
            with pytest.raises(cloud.CloudError) as caught:
                await instances_of(project).instance_exists(dedicated(1))
            told.append(str(caught.value))

    everything = "\n".join([*told, caplog.text])
    assert "may not do that" in everything
    assert secret not in everything
    assert service.password not in everything


# --- the fake -------------------------------------------------------------------------------------


async def answer(robots: Robots, path: str, *, password: str = "") -> tuple[int, Any]:
    login = f"{robots.service.user}:{password or robots.service.password}"
    headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{robots.url}{path}") as response,
    ):
        return response.status, await response.json()


def codes(answers: Sequence[tuple[int, Any]]) -> list[tuple[int, str]]:
    return [(status, body["error"]["code"]) for status, body in answers]


async def test_the_fake_answers_as_the_web_service_does(robots: Robots) -> None:
    assert codes([await answer(robots, "/server")]) == [(404, "SERVER_NOT_FOUND")]
    number = robots.service.add_server("bm")
    bare = robots.service.add_server("bare")
    del robots.service.statuses[bare]

    status, listed = await answer(robots, "/server")
    shown = await answer(robots, f"/server/{number}")
    power = await answer(robots, f"/reset/{number}")
    refused = [
        await answer(robots, "/server", password="wrong"),
        await answer(robots, "/server/7"),
        await answer(robots, "/reset/7"),
        await answer(robots, f"/reset/{bare}"),
        await answer(robots, "/servers"),
    ]

    assert (status, [one["server"]["server_name"] for one in listed]) == (200, ["bm", "bare"])
    assert shown == (200, listed[0])
    assert power[1]["reset"]["operating_status"] == "running"
    assert codes(refused) == [
        (401, "UNAUTHORIZED"),
        (404, "SERVER_NOT_FOUND"),
        (404, "SERVER_NOT_FOUND"),
        (404, "RESET_NOT_AVAILABLE"),
        (404, "NOT_FOUND"),
    ]


async def test_the_fake_limits_the_requests_of_an_hour(hand: HandClock, robots: Robots) -> None:
    robots.service.limits["server"] = 2
    number = robots.service.add_server("bm")
    for _ in range(2):
        assert (await answer(robots, "/server"))[0] == 200

    status, body = await answer(robots, f"/server/{number}")
    other, _ = await answer(robots, f"/reset/{number}")
    hand.advance(robot.INTERVAL_S)
    later, _ = await answer(robots, "/server")

    assert (status, body["error"]["code"]) == (403, "RATE_LIMIT_EXCEEDED")
    assert (body["error"]["max_request"], body["error"]["interval"]) == (2, 3600)
    assert (other, later) == (200, 200)
