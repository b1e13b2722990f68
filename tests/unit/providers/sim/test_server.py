"""The simulated cloud over HTTP."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from ccm import cloud
from providers.sim import api, faults, server, world
from tests.unit.providers.sim.conftest import Remote
from tests.waiting import DEADLINE_S


def fill(service: server.Service, number: int) -> None:
    service.world.put_all([world.GivenInstance(name=f"n{index}") for index in range(number)])


async def arm(remote: Remote, **fault: object) -> None:
    await remote.ok("POST", "/admin/faults", {"faults": [fault]})


async def test_an_instance_lives_from_order_to_deletion(remote: Remote) -> None:
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
async def test_refusals_have_one_shape(
    remote: Remote, method: str, path: str, body: object, status: int, code: str
) -> None:
    found, answer, _ = await remote.call(method, path, body)

    error = answer["error"]
    assert isinstance(error, dict)
    assert (found, error["code"], set(error)) == (status, code, {"code", "message", "request_id"})


async def test_the_administrator_needs_the_token_too(remote: Remote) -> None:
    assert (await remote.call("GET", "/admin/snapshot", token="wrong"))[0] == 401


async def test_exceeding_the_rate_limit_is_429_with_retry_after(remote: Remote) -> None:
    await remote.ok("PATCH", "/admin/settings", {"rate_limit": 1})

    answers = [await remote.call("GET", "/v1/instances") for _ in range(2)]

    assert [status for status, _, _ in answers] == [200, 429]
    assert answers[1][2]["Retry-After"] == "1"  # type: ignore[index]


async def test_changing_one_setting_keeps_the_others(remote: Remote) -> None:
    await remote.ok("PATCH", "/admin/settings", {"page_size": 9, "linger_s": 3})

    settings = await remote.ok("PATCH", "/admin/settings", {"latency_s": 0.001})

    assert (settings["page_size"], settings["linger_s"], settings["latency_s"]) == (9, 3, 0.001)
    assert settings == await remote.ok("GET", "/admin/settings")


async def test_latency_precedes_every_answer_but_the_administrators(remote: Remote) -> None:
    await remote.ok("PATCH", "/admin/settings", {"latency_s": 0.1})

    start = time.monotonic()
    await remote.ok("GET", "/v1/instances")
    took_s = time.monotonic() - start
    await remote.ok("PATCH", "/admin/settings", {"latency_s": 3600})
    await remote.ok("GET", "/admin/snapshot")

    assert took_s >= 0.1


async def test_the_log_holds_cloud_calls_only_and_in_order(remote: Remote) -> None:
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


async def test_the_snapshot_tells_the_truth_while_listings_lag(remote: Remote) -> None:
    await remote.ok("PATCH", "/admin/settings", {"list_delay_s": 60, "get_delay_s": 60})
    made = await remote.ok("POST", "/v1/instances", {"name": "a"})

    snapshot = await remote.ok("GET", "/admin/snapshot")
    listed = await remote.ok("GET", "/v1/instances")
    status, _, _ = await remote.call("GET", f"/v1/instances/{made['id']}")

    assert len(snapshot["instances"]) == 1  # type: ignore[arg-type]
    assert listed["instances"] == []
    assert status == 404


async def test_a_scripted_rate_limit_names_its_seconds(remote: Remote) -> None:
    await arm(remote, kind="rate_limit", retry_after_s=7)

    status, _, headers = await remote.call("GET", "/v1/instances")

    assert (status, headers["Retry-After"]) == (429, "7")  # type: ignore[index]


@pytest.mark.parametrize(
    "fault", [{"kind": "drop"}, {"kind": "hang", "delay_s": 0.05}], ids=["drop", "hang"]
)
async def test_a_cut_connection_is_logged_without_status(
    remote: Remote, fault: dict[str, object]
) -> None:
    await arm(remote, **fault)

    with pytest.raises(aiohttp.ClientError):
        await remote.call("POST", "/v1/instances", {"name": "a"})
    log = await remote.ok("GET", "/admin/calls")

    assert [call["status"] for call in log["calls"]] == [0]  # type: ignore[attr-defined]
    assert (await remote.ok("GET", "/admin/snapshot"))["instances"] == []


async def test_a_fault_strikes_the_instance_it_names(
    service: server.Service, remote: Remote
) -> None:
    fill(service, 2)
    first, second = service.world.snapshot()
    await arm(remote, kind="error", instance="n1")

    statuses = []
    for path in (first.id, second.id, "?name=n0", "?name=n1", ""):
        separator = "" if path.startswith("?") or not path else "/"
        status, _, _ = await remote.call("GET", f"/v1/instances{separator}{path}")
        statuses.append(status)

    assert statuses == [200, 500, 200, 500, 200]


async def test_clearing_the_faults_lets_hanging_calls_go(remote: Remote) -> None:
    await arm(remote, kind="hang")
    # Not a GET: the HTTP library would silently send it again.
    hanging = asyncio.create_task(remote.call("POST", "/v1/instances", {"name": "a"}))
    while not (await remote.ok("GET", "/admin/calls"))["total"]:
        await asyncio.sleep(0.01)

    await remote.ok("DELETE", "/admin/faults")

    with pytest.raises(aiohttp.ClientError):
        await asyncio.wait_for(hanging, DEADLINE_S)


async def test_a_caller_who_hangs_up_early_changes_nothing(
    service: server.Service, remote: Remote
) -> None:
    await remote.ok("PATCH", "/admin/settings", {"latency_s": 3600})

    calling = asyncio.create_task(remote.call("POST", "/v1/instances", {"name": "a"}))
    async with asyncio.timeout(DEADLINE_S):
        while not service.calls.entries:
            await asyncio.sleep(0.01)
        calling.cancel()
        while service.calls.entries[0].status is None:
            await asyncio.sleep(0.01)

    assert service.world.snapshot() == ()
    assert service.calls.entries[0].status == 0


async def test_the_service_describes_every_operation(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/docs") as response:
        document = await response.json()

    described = {
        (method.upper(), path) for path, rows in document["paths"].items() for method in rows
    }
    assert described == {(row.method, row.path) for row in api.OPERATIONS}
    limit = document["paths"]["/v1/instances"]["get"]["parameters"][0]
    assert (limit["name"], limit["schema"]["maximum"]) == ("limit", 500)


async def test_a_closed_service_ends_a_hanging_call(service: server.Service) -> None:
    service.script.add(faults.Fault(kind="hang"))
    async with aiohttp.ClientSession() as session:
        async with server.serve(service) as url:
            headers = {"Authorization": "Bearer a-tokens-text"}
            hanging = asyncio.create_task(session.get(f"{url}/v1/instances", headers=headers))
            while not service.calls.entries:
                await asyncio.sleep(0.01)
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(hanging, DEADLINE_S)


async def test_listing_five_thousand_instances_is_cheap(
    service: server.Service, provider: cloud.Cloud
) -> None:
    fill(service, 5000)
    assert provider.inventory is not None

    start = time.process_time()
    listing = await provider.inventory.list_instances()

    assert (len(listing.instances), listing.requests) == (5000, 10)
    assert time.process_time() - start < 3.0
