"""The simulated cloud: its state over time, its HTTP API, and its process."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ccm.testing.fake_api import Fault, FaultScript
from providers.sim import __main__ as sim_main
from providers.sim import server, state, world, world_balancers
from providers.sim.world import NewRoute
from providers.sim.world_balancers import BalancerSpec, Listener, NewBalancer
from tests.handclock import HandClock
from tests.unit.providers.sim.conftest import Remote, refused
from tests.waiting import DEADLINE_S


@pytest.fixture
def vms(hand: HandClock) -> world.InstanceStore:
    return world.InstanceStore(random.Random(7))


def put(vms: world.InstanceStore, name: str = "a", state: world.State = "running") -> str:
    return vms.put(world.Instance(name=name, state=state)).id


def names(page: world.Page) -> list[str]:
    return [one.name for one in page.instances]


@pytest.mark.parametrize(("action", "state"), [("start", "running"), ("stop", "stopped")])
def test_repeated_instance_action_changes_nothing(
    vms: world.InstanceStore, action: world.Action, state: world.State
) -> None:
    assert vms.act(put(vms, state=state), action).state == state


@pytest.mark.parametrize("action", ["start", "stop"])
@pytest.mark.parametrize("state", ["starting", "stopping", "deleted"])
def test_action_on_an_instance_in_transition_is_a_conflict(
    vms: world.InstanceStore, action: world.Action, state: world.State
) -> None:
    with refused("conflict"):
        vms.act(put(vms, state=state), action)


def test_stale_read_shows_creation_and_deletion_late(
    vms: world.InstanceStore, hand: HandClock
) -> None:
    one = put(vms)
    hand.advance(4.0)
    early = names(vms.page(limit=10, stale_s=5.0))
    hand.advance(1.0)
    seen = names(vms.page(limit=10, stale_s=5.0))
    vms.delete(one)
    hand.advance(4.0)
    ghost = vms.get(one, stale_s=5.0).state
    hand.advance(1.0)

    assert (early, seen, ghost) == ([], ["a"], "running")
    assert names(vms.page(limit=10, stale_s=5.0)) == []


def test_page_boundary_survives_deletions(vms: world.InstanceStore, hand: HandClock) -> None:
    ids = [put(vms, f"n{number}") for number in range(6)]
    first = vms.page(limit=3)

    for gone in ids[1:4]:
        vms.delete(gone)
    hand.advance(world.HISTORY_S + 1)
    put(vms, "late")

    assert first.after is not None
    assert names(vms.page(limit=3, after=first.after)) == ["n4", "n5", "late"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([("a", ""), ("", "")], "invalid"),
        ([("a", "x"), ("b", "x")], "conflict"),
        ([("a", ""), ("b", "old")], "conflict"),
    ],
    ids=["no name", "an ID twice", "an ID that exists"],
)
def test_several_instances_are_placed_all_or_none(
    vms: world.InstanceStore, given: list[tuple[str, str]], code: world.Code
) -> None:
    vms.put(world.Instance(name="old", id="old"))

    with refused(code):
        vms.put_all([world.Instance(name=name, id=key) for name, key in given])

    assert names(vms.page(limit=10)) == ["old"]


@pytest.fixture
def cloud(hand: HandClock) -> state.CloudState:
    return state.CloudState(random.Random(7))


def order(cloud: state.CloudState, name: str = "a", **fields: Any) -> world.Instance:
    return cloud.order(state.Order(name=name, **fields))


def test_repeated_order_with_the_same_token_returns_the_same_instance(
    cloud: state.CloudState, hand: HandClock
) -> None:
    made = order(cloud, token="t-1")
    hand.advance(60.0)

    assert order(cloud, token="t-1").id == made.id
    assert order(cloud, token="t-2").id != made.id
    assert order(cloud).id != order(cloud).id


@pytest.mark.parametrize("removal_s", [0.0, 30.0])
def test_repeated_order_of_a_deleted_instance_creates_a_new_one(
    cloud: state.CloudState, removal_s: float
) -> None:
    made = order(cloud, token="t-1")
    cloud.instances.removal_s = removal_s
    cloud.instances.delete(made.id)

    assert order(cloud, token="t-1").id != made.id


def test_instance_is_deleted_after_its_removal_time(
    cloud: state.CloudState, hand: HandClock
) -> None:
    cloud.apply_settings(state.Settings(removal_s=10.0, linger_s=5.0))
    made = order(cloud)
    states = []

    for _ in range(3):
        cloud.instances.delete(made.id)
        states.append(cloud.instances.get(made.id).state)
        with refused("conflict"):
            cloud.instances.update(made.id, world.Change(type="big"))
        hand.advance(6.0)

    assert states == ["deleting", "deleting", "deleted"]
    with refused("not_found"):
        cloud.instances.get(made.id)


def test_volumes_stay_attached_while_their_instance_exists(cloud: state.CloudState) -> None:
    volume = cloud.volumes.create(world.NewVolume(name="v", size_gib=1, labels={"k": "v"}))
    made = order(cloud, volumes=(volume.id,))

    assert cloud.volumes.get(volume.id).instance == made.id
    with refused("busy"):
        cloud.volumes.delete(volume.id)
    with refused("conflict"):
        order(cloud, "b", volumes=(volume.id,))
    with refused("not_found"):
        order(cloud, "c", volumes=("v-none",))
    assert [one.name for one in cloud.instances.snapshot()] == ["a"]

    cloud.instances.delete(made.id)
    assert cloud.volumes.list(label=("k", "v")) == [volume]
    assert cloud.volumes.list(label=("k", "w")) == []
    cloud.volumes.delete(volume.id)
    assert cloud.volumes.list() == []
    with refused("not_found"):
        cloud.volumes.delete(volume.id)


TWICE = ["10.0.0.1", "10.0.0.1"]
PORT = Listener(protocol="TCP", port=80, target_port=30080)


@pytest.fixture
def lbs(hand: HandClock) -> world_balancers.Balancers:
    return world_balancers.Balancers(random.Random(1))


def balancer(name: str = "web", **fields: object) -> NewBalancer:
    return NewBalancer(name=name, listeners=(PORT,), **fields)  # type: ignore[arg-type]


def test_load_balancer_in_transition_refuses_changes_but_not_deletion(
    lbs: world_balancers.Balancers, hand: HandClock
) -> None:
    lbs.change_s = 5.0
    made = lbs.create(balancer())
    changed = lbs.set_members(made.id, ["10.0.0.1"])

    with refused("busy"):
        lbs.change(made.id, BalancerSpec(listeners=(PORT,)))

    assert changed.state == "updating"
    lbs.delete(made.id)
    assert lbs.list() == []


def route(destination: str = "10.9.0.0/24", **fields: str) -> NewRoute:
    return NewRoute(destination=destination, gateway=fields.pop("gateway", "10.0.0.1"), **fields)


@pytest.mark.parametrize(
    "order",
    [
        lambda made: made.volumes.create(world.NewVolume(name="", size_gib=1)),
        lambda made: made.volumes.create(world.NewVolume(name="v", size_gib=0)),
        lambda made: made.balancers.create(NewBalancer(name="", listeners=(PORT,))),
        lambda made: made.balancers.create(NewBalancer(name="a", listeners=())),
        lambda made: made.balancers.create(NewBalancer(name="a", listeners=(PORT, PORT))),
        lambda made: made.balancers.create(balancer("a", families=())),
        lambda made: made.balancers.create(balancer("a", source_ranges=("all",))),
        lambda made: made.balancers.set_members(made.balancers.create(balancer()).id, ["a"]),
        lambda made: made.balancers.set_members(made.balancers.create(balancer()).id, TWICE),
        lambda made: made.routes.create(route("10.9.0.1/24")),
        lambda made: made.routes.create(route("all")),
        lambda made: made.routes.create(route(gateway="a")),
    ],
)
def test_invalid_orders_are_refused(
    cloud: state.CloudState, order: Callable[[state.CloudState], Any]
) -> None:
    with refused("invalid"):
        order(cloud)


def new_cloud() -> state.CloudState:
    return state.CloudState(random.Random(1))


async def test_all_cloud_objects_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    before, after = new_cloud(), new_cloud()

    async with state.persisted(before, path):
        vms = before.instances
        given: Any = {"labels": {"x": "1"}, "state": "error", "reason": "no host", "joins": False}
        kept = vms.put(world.Instance(name="a", **given))
        vms.delete(vms.put(world.Instance(name="b")).id)
        listener = world_balancers.Listener(protocol="TCP", port=80, target_port=30080)
        balancer = before.balancers.create(
            world_balancers.NewBalancer(name="web", listeners=(listener,))
        )
        made = before.routes.create(
            world.NewRoute(destination="10.9.0.0/24", gateway=kept.addresses[0].value)
        )
        volume = before.volumes.create(world.NewVolume(name="v", size_gib=1))
    async with state.persisted(after, path):
        assert after.instances.snapshot() == (kept,)
        assert after.balancers.list() == [balancer]
        assert after.routes.list() == [made]
        assert after.volumes.list() == [volume]


GET = ("get_instance", ("i-1", "a"))


@pytest.fixture
def script(hand: HandClock) -> FaultScript:
    return FaultScript()


def test_fault_with_a_time_window_applies_only_within_it(
    script: FaultScript, hand: HandClock
) -> None:
    script.add(Fault(kind="drop", start_s=2.0, for_s=2.0))

    struck = []
    for _ in range(5):
        struck.append(script.match(*GET)[1] is not None)
        hand.advance(1.0)

    assert struck == [False, False, True, True, False]


def fill(service: server.Service, number: int) -> None:
    service.world.put_all([world.Instance(name=f"n{index}") for index in range(number)])


async def arm(remote: Remote, **fault: object) -> None:
    await remote.ok("POST", "/admin/faults", {"faults": [fault]})


async def test_instance_is_created_changed_listed_and_deleted_over_http(remote: Remote) -> None:
    await remote.ok("PATCH", "/admin/settings", {"transition_s": 0})
    made = await remote.ok("POST", "/v1/instances", {"name": "a", "labels": {"x": "1"}})
    path = f"/v1/instances/{made['id']}"

    stopped = await remote.ok("POST", f"{path}/actions", {"action": "stop"})
    changed = await remote.ok("PATCH", path, {"type": "huge", "labels": {"x": None, "y": "2"}})
    listed = await remote.ok("GET", "/v1/instances?name=a")
    await remote.ok("DELETE", path)
    status, _, _ = await remote.call("GET", path)

    assert (stopped["state"], changed["type"], changed["labels"]) == ("stopped", "huge", {"y": "2"})
    assert listed == {"instances": [changed], "next_cursor": None}
    assert status == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/instances?limit=501", None, 400, "invalid"),
        ("GET", "/v1/instances?limit=0", None, 400, "invalid"),
        ("GET", "/v1/instances?colour=red", None, 400, "invalid"),
        ("GET", "/v1/instances?cursor=xyz", None, 400, "invalid"),
        ("GET", "/v1/instances?cluster=x", None, 400, "invalid"),
        ("GET", "/v1/balancers?label=a", None, 400, "invalid"),
        ("GET", "/v1/routes?label=a", None, 400, "invalid"),
        ("GET", "/v1/volumes?cluster=x", None, 400, "invalid"),
        ("GET", "/v1/instances/i-0", None, 404, "not_found"),
        ("GET", "/v2/instances", None, 404, "no_such_path"),
        ("PUT", "/v1/instances", None, 405, "method_not_allowed"),
        ("POST", "/v1/instances", {"name": ""}, 400, "invalid"),
        ("POST", "/v1/instances", {"name": "a", "id": "i-1"}, 400, "invalid"),
        ("POST", "/v1/instances", None, 400, "invalid"),
        ("PATCH", "/admin/settings", {"page_size": 501}, 400, "invalid"),
        ("POST", "/admin/faults", {"faults": [{"kind": "odd"}]}, 400, "invalid"),
    ],
)
async def test_error_responses_have_one_format(
    remote: Remote, method: str, path: str, body: object, status: int, code: str
) -> None:
    found, answer, _ = await remote.call(method, path, body)

    error = answer["error"]
    assert isinstance(error, dict)
    assert (found, error["code"], set(error)) == (status, code, {"code", "message", "request_id"})


async def test_admin_api_requires_the_token(remote: Remote) -> None:
    assert (await remote.call("GET", "/admin/snapshot", token="wrong"))[0] == 401


async def test_exceeded_rate_limit_returns_429_with_retry_after(remote: Remote) -> None:
    await remote.ok("PATCH", "/admin/settings", {"rate_limit": 1})

    answers = [await remote.call("GET", "/v1/instances") for _ in range(2)]

    assert [status for status, _, _ in answers] == [200, 429]
    assert answers[1][2]["Retry-After"] == "1"  # type: ignore[index]


async def test_changing_one_setting_keeps_the_others(remote: Remote) -> None:
    await remote.ok("PATCH", "/admin/settings", {"page_size": 9, "linger_s": 3})

    settings = await remote.ok("PATCH", "/admin/settings", {"latency_s": 0.001})

    assert (settings["page_size"], settings["linger_s"], settings["latency_s"]) == (9, 3, 0.001)
    assert settings == await remote.ok("GET", "/admin/settings")


async def test_call_log_has_only_cloud_calls_in_order(remote: Remote) -> None:
    made = await remote.ok("POST", "/admin/instances", {"instances": [{"name": "a"}]})
    instance = made["instances"][0]["id"]  # type: ignore[index]
    await remote.ok("GET", "/v1/instances?name=a")
    await remote.call("GET", "/v1/instances/none")
    await remote.call("GET", f"/v1/instances/{instance}", token="wrong")
    await remote.ok("PATCH", f"/admin/instances/{instance}", {"type": "huge"})
    await remote.ok("POST", f"/admin/instances/{instance}/actions", {"action": "stop"})
    await remote.ok("DELETE", f"/admin/instances/{instance}")

    log = await remote.ok("GET", "/admin/calls")
    rest = await remote.ok("GET", "/admin/calls?after=2")
    await remote.ok("DELETE", "/admin/calls")
    empty = await remote.ok("GET", "/admin/calls")

    seen = [(call["operation"], call["status"]) for call in log["calls"]]  # type: ignore[attr-defined]
    assert seen == [("list_instances", 200), ("get_instance", 404), ("get_instance", 401)]
    assert log["counts"] == {"list_instances": 1, "get_instance": 2}
    assert log["total"] == 3
    assert [call["sequence"] for call in rest["calls"]] == [3]  # type: ignore[attr-defined]
    assert empty == {"calls": [], "counts": {}, "total": 0}


@pytest.mark.parametrize(
    "fault", [{"kind": "drop"}, {"kind": "hang", "delay_s": 0.05}], ids=["drop", "hang"]
)
async def test_dropped_connection_is_logged_without_a_status(
    remote: Remote, fault: dict[str, object]
) -> None:
    await arm(remote, **fault)

    with pytest.raises(aiohttp.ClientError):
        await remote.call("POST", "/v1/instances", {"name": "a"})
    log = await remote.ok("GET", "/admin/calls")

    assert [call["status"] for call in log["calls"]] == [0]  # type: ignore[attr-defined]
    assert (await remote.ok("GET", "/admin/snapshot"))["instances"] == []


async def test_clearing_the_faults_ends_hanging_calls(remote: Remote) -> None:
    await arm(remote, kind="hang")
    # Not a GET: the HTTP library would silently repeat it.
    hanging = asyncio.create_task(remote.call("POST", "/v1/instances", {"name": "a"}))
    while not (await remote.ok("GET", "/admin/calls"))["total"]:
        await asyncio.sleep(0.01)

    await remote.ok("DELETE", "/admin/faults")

    with pytest.raises(aiohttp.ClientError):
        await asyncio.wait_for(hanging, DEADLINE_S)


COMMAND = [sys.executable, "-m", "providers.sim"]


def ask(url: str, body: str | None = None) -> dict[str, object]:
    request = urllib.request.Request(
        url, data=body.encode() if body else None, headers={"Authorization": "Bearer a-tokens-text"}
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        answer: dict[str, object] = json.load(response)
        return answer


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "token").write_text("a-tokens-text\n")
    command = [*COMMAND, "--token-file", str(tmp_path / "token")]
    command += ["--latency", "1ms", "--page-size", "7"]
    command += ["--rate-limit", "100", "--seed", "3", "--state", str(tmp_path / "state.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_prints_its_url_and_saves_its_state_on_a_stop_signal(
    process: subprocess.Popen[str], number: signal.Signals, tmp_path: Path
) -> None:
    assert process.stdout
    ready = json.loads(process.stdout.readline())
    made = ask(f"{ready['url']}/v1/instances", '{"name": "a"}')
    settings = ask(f"{ready['url']}/admin/settings")

    process.send_signal(number)
    code = process.wait(timeout=DEADLINE_S)

    assert ready["token"] == "a-tokens-text"
    assert (settings["latency_s"], settings["page_size"]) == (0.001, 7)
    assert settings["rate_limit"] == 100
    assert code == 0
    saved = json.loads((tmp_path / "state.json").read_text())
    assert [one["id"] for one in saved["instances"]] == [made["id"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--latency", "fast"], "not a duration"),
        (["--latency=-1s"], "negative"),
        (["--page-size", "501"], "not between 1 and 500"),
        (["--rate-limit=-1"], "negative"),
    ],
)
def test_invalid_options_are_refused_with_the_reason(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        sim_main.main(arguments)

    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_unreadable_state_file_ends_the_process_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    path.write_text("{")

    assert sim_main.main(["--state", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
