"""Replicas and their Leases: which one is active after a stop, a crash or a stolen Lease."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ccm.model.times import format_micro_time
from tests import servers
from tests.faults import Exchange, FaultProxy, Match
from tests.scenario import harness
from tests.scenario.examination import examined
from tests.scenario.harness import Daemon, Environment, install, wait_for

MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
"""How client-go writes the times of a Lease."""

PROMPT_S = 15.0
"""Time for a busy machine; an unreleased Lease would last a minute."""


async def two_replicas(env: Environment, **flags: str) -> tuple[Daemon, Daemon]:
    """Start a leader and a standby; wait until the standby knows the leader."""
    leader = await env.start_leading(flags=flags)
    standby = await env.start(flags=flags)
    await standby.says("new leader elected")
    return leader, standby


def claims(proxy: FaultProxy, holder: str | None = None) -> list[Exchange]:
    """Accepted writes of the Lease; by a holder, or those that give it back ("")."""

    def fits(exchange: Exchange) -> bool:
        held = exchange.json()["spec"].get("holderIdentity") or ""
        return exchange.status in (200, 201) and (holder is None or held == holder)

    return [one for one in proxy.requests(harness.LEASE_WRITE) if fits(one)]


def first_claim_s(proxy: FaultProxy) -> float:
    """Time at which the Lease of a replica was confirmed."""
    ended = claims(proxy)[0].ended_s
    assert ended is not None
    return ended


def node_writes(proxy: FaultProxy) -> list[float]:
    """When a replica wrote nodes."""
    return [one.started_s for one in proxy.requests(harness.NODE_WRITE)]


@pytest.mark.row("daemon-lease-14")
@pytest.mark.both_servers
async def test_the_standby_leads_at_once_when_the_leader_is_stopped(env: Environment) -> None:
    """SIGTERM: the leader releases the Lease, the standby leads within a second."""
    leader, standby = await two_replicas(env)
    ours, theirs = env.proxies
    for number in range(6):
        await env.node(f"before-{number}")

    assert await leader.stop() == 0
    await standby.says("became leader")

    (released,) = claims(ours, "")
    assert first_claim_s(theirs) - released.started_s < PROMPT_S
    for number in range(6):
        await env.node(f"after-{number}")
    await env.cluster.initialised(*(f"{w}-{n}" for w in ("before", "after") for n in range(6)))
    assert max(node_writes(ours), default=0.0) < released.started_s
    assert min(node_writes(theirs)) > first_claim_s(theirs)
    assert (await env.cluster.lease())["leaseTransitions"] == 1


async def test_the_standby_leads_after_lease_expiry_when_the_leader_is_killed(
    env: Environment,
) -> None:
    """SIGKILL: not before the Lease expires, and soon after."""
    leader, standby = await two_replicas(env, **harness.SHORT_LEASE)
    ours, theirs = env.proxies
    for number in range(6):
        await env.node(f"before-{number}")

    await leader.kill()
    await standby.says("became leader")

    last_sign = claims(ours)[-1]
    waited = first_claim_s(theirs) - last_sign.started_s
    assert harness.LEASE_S - 0.1 < waited < harness.LEASE_S + PROMPT_S
    await env.node("after")
    await env.cluster.initialised("after", *(f"before-{number}" for number in range(6)))
    assert max(node_writes(ours), default=0.0) < first_claim_s(theirs)
    assert min(node_writes(theirs)) > first_claim_s(theirs)


@pytest.mark.row("daemon-lease-13")
async def test_a_leader_that_cannot_renew_exits_before_the_standby_leads(env: Environment) -> None:
    """Exit 1."""
    leader, standby = await two_replicas(env, **harness.SHORT_LEASE)
    ours, theirs = env.proxies
    await env.node("before")
    await env.cluster.initialised("before")

    await ours.down()
    assert await leader.ended() == 1
    await standby.says("became leader")
    await ours.up()

    gone = leader.lines("stopped leading")[0]["ts"]
    assert gone < standby.lines("became leader")[0]["ts"]
    await leader.says("leaderelection lost")
    await env.node("after")
    await env.cluster.initialised("after")
    assert max(node_writes(ours)) < first_claim_s(theirs) < min(node_writes(theirs))


@pytest.mark.row("daemon-lease-12")
@pytest.mark.both_servers
async def test_the_lease_has_the_fields_and_formats_of_client_go(env: Environment) -> None:
    """While it is held, renewed and released."""
    daemon = await env.start_leading()
    held = await env.cluster.lease()

    async def renewed() -> dict[str, Any]:
        now = await env.cluster.lease()
        return now if now["renewTime"] != held["renewTime"] else {}

    later = await wait_for(renewed, "a renewal")
    assert await daemon.stop() == 0
    given_back = await env.cluster.lease()

    assert set(held) == {
        *("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime"),
        "leaseTransitions",
    }
    assert re.fullmatch(r"\S+_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", held["holderIdentity"])
    assert held["leaseDurationSeconds"] == 60
    assert held["leaseTransitions"] == 0
    assert MICRO_TIME.fullmatch(held["acquireTime"])
    assert MICRO_TIME.fullmatch(held["renewTime"])
    assert later == held | {"renewTime": later["renewTime"]}
    assert given_back.get("holderIdentity", "") == ""
    assert given_back["leaseDurationSeconds"] == 1
    assert given_back["leaseTransitions"] == 0
    # On the wire every field is there, as client-go's encoder has it.
    (released,) = claims(env.proxy, "")
    assert released.json()["spec"]["holderIdentity"] == ""
    assert MICRO_TIME.fullmatch(released.json()["spec"]["renewTime"])


@pytest.mark.row("daemon-lease-12")
async def test_an_abandoned_lease_of_a_go_replica_is_taken_after_its_expiry(
    env: Environment,
) -> None:
    """By the local clock; the number of transitions continues."""
    now = format_micro_time(datetime.now(UTC))
    spec = {
        "holderIdentity": "go-host_4c2b1b9e-5c7a-4a51-9d4f-0a8f2f4b7c11",
        "leaseDurationSeconds": 4,
        "acquireTime": "2020-01-01T00:00:00.000000Z",
        "renewTime": now,
        "leaseTransitions": 7,
    }
    left = harness.lease("cloud-controller-manager", **spec)
    await env.cluster.create(harness.LEASES, left)

    daemon = await env.start(flags=harness.SHORT_LEASE)
    await daemon.says("new leader elected", leader=spec["holderIdentity"])
    seen = env.proxy.requests(Match(method="GET", path="/leases/"))[0].started_s
    await daemon.says("became leader")

    assert first_claim_s(env.proxy) - seen > harness.LEASE_S - 0.1
    taken = await env.cluster.lease()
    assert taken["leaseTransitions"] == 8
    assert taken["acquireTime"] > now


THIEF = "another-account-with-the-right-to-write-leases"
FAR = "2999-01-01T00:00:00.000000Z"
MOST = 2**31 - 1
"""Largest duration in seconds, and largest count, that the API server accepts."""


async def steal(env: Environment, **spec: Any) -> None:
    """Write the Lease under another account."""
    stolen = {"holderIdentity": THIEF, "renewTime": FAR, **spec}
    await env.cluster.patch(harness.LEASE, {"spec": stolen}, kind="merge")


@pytest.mark.both_servers
async def test_a_stolen_lease_ends_the_leader_and_is_retaken_after_expiry(
    env: Environment,
) -> None:
    """Neither a renew time in the future nor a maximal `leaseTransitions` protects the holder."""
    flags = harness.SHORT_LEASE
    leader = await env.start_leading(flags=flags)
    await steal(env, leaseDurationSeconds=4, leaseTransitions=MOST)

    assert await leader.ended() == 1
    assert f"held by {THIEF}" in leader.lines("leaderelection lost")[0]["err"]
    standby = await env.start(flags=flags)
    await standby.says("new leader elected", leader=THIEF)
    await standby.says("became leader")
    assert (await env.cluster.lease())["leaseTransitions"] == MOST
    assert await standby.stop() == 0


@pytest.mark.both_servers
async def test_a_lease_held_for_decades_can_be_retaken_only_after_its_deletion(
    env: Environment,
) -> None:
    """The doctor advises to delete the Lease."""
    leader = await env.start_leading(flags=harness.SHORT_LEASE)
    await steal(env, leaseDurationSeconds=MOST)
    assert await leader.ended() == 1
    standby = await env.start(flags=harness.SHORT_LEASE)
    await standby.says("new leader elected", leader=THIEF)

    told = await examined(env)
    (held,) = [line for line in told.troubles if line.startswith("warn  lease: ")]
    assert THIEF in held
    advice = " ".join(told.advice(held))
    assert "kubectl -n kube-system delete lease cloud-controller-manager" in advice
    assert str(MOST) in advice
    assert not standby.lines("became leader")

    await env.cluster.delete(harness.LEASE)
    await standby.says("became leader")
    # The leader recreates its deleted Lease.
    await env.cluster.delete(harness.LEASE)

    async def made_anew() -> bool:
        return bool((await env.cluster.lease()).get("holderIdentity"))

    await wait_for(made_anew, "the leader makes its Lease anew")
    assert standby.exit_code is None
    assert await standby.stop() == 0


async def test_storage_is_open_only_while_the_lease_is_held(
    env: Environment, tmp_path: Path
) -> None:
    """Opened after the Lease is acquired, closed before its release, never by a standby."""
    database, file = tmp_path / "store" / "x.db", tmp_path / "persistence.yaml"
    file.write_text(f"instances: [{{sqlite: {{path: {database}}}}}]\n")
    flags = {"persistence-config": str(file)}
    leader = await env.start_leading(flags=flags)
    await leader.says("controllers started")
    await leader.says("persistence opened")
    standby = await env.start(flags=flags)
    space = await env.cluster.get("/api/v1/namespaces/kube-system")
    with closing(sqlite3.connect(database)) as db:
        marker = json.loads(db.execute("SELECT marker FROM instance").fetchone()[0])
    assert space is not None
    assert marker["clusterUID"] == space["metadata"]["uid"]

    assert await leader.stop() == 0
    await standby.says("controllers started")

    said = [line["msg"] for line in leader.lines()]
    for order in (
        ["became leader", "persistence opened", "persistence closed", "lease released"],
        ["became leader", "controllers started", "persistence closed"],
    ):
        assert sorted(order, key=said.index) == order
    assert not standby.lines("persistence closed")
    assert await standby.stop() == 0


async def test_storage_in_config_maps_is_kept_by_the_next_leader_of_a_recreated_lease(
    env: Environment, tmp_path: Path
) -> None:
    """The new Lease counts from 0; storage goes on with the next epoch."""
    file = tmp_path / "persistence.yaml"
    file.write_text("instances: [{kubernetes: {}}]\n")
    flags = {"persistence-config": str(file)}

    async def markers() -> list[str]:
        found = await env.cluster.get("/api/v1/namespaces/kube-system/configmaps") or {}
        label = {"kube-ccm.io/persistence": "cloud-controller-manager"}
        return [
            item["metadata"]["resourceVersion"]
            for item in found["items"]
            if item["metadata"].get("labels") == label
        ]

    for _ in range(2):  # the second leader counts one transition
        leader = await env.start_leading(flags=flags)
        await leader.says("persistence opened")
        assert await leader.stop() == 0
    (before,) = await markers()
    await env.cluster.delete(harness.LEASE)

    last = await env.start_leading(flags=flags)
    await last.says("persistence opened")

    assert (await env.cluster.lease())["leaseTransitions"] == 0
    assert (await markers()) != [before]
    assert not last.lines("persistence cannot be opened, retrying")
    assert await last.stop() == 0


SHARED_NAME = "cloud-provider-extraction-migration"
SHARED = f"{harness.LEASES}/{SHARED_NAME}"
TERMS = {
    "leaseDurationSeconds": 3600,
    "leaseTransitions": 0,
    "acquireTime": "2026-01-01T00:00:00.000000Z",
    "renewTime": "2026-01-01T00:00:00.000000Z",
}


def plan(folder: Path, component: str) -> dict[str, str]:
    """Flags under which both managers may run the node life cycle."""
    file = folder / "migration.yaml"
    file.write_text(
        "apiVersion: controllermanager.config.k8s.io/v1\nkind: LeaderMigrationConfiguration\n"
        "leaderName: cloud-provider-extraction-migration\ncontrollerLeaders:\n"
        f"- {{name: cloud-node-lifecycle, component: '{component}'}}\n"
    )
    return {"enable-leader-migration": "true", "leader-migration-config": str(file)}


async def holder(env: Environment) -> str:
    """Holder of the shared Lease."""
    lease: dict[str, Any] = await env.cluster.get(SHARED) or {"spec": {}}
    return str(lease["spec"].get("holderIdentity", ""))


@pytest.mark.both_servers
async def test_a_migrated_controller_waits_for_the_shared_lease(env: Environment) -> None:
    """The node lifecycle starts when the other manager releases the shared Lease."""
    held = harness.lease(SHARED_NAME, **TERMS, holderIdentity="the-other-manager")
    await env.cluster.create(harness.LEASES, held)
    daemon = await env.start_leading(flags=plan(env.folder, "*"))
    machine = await env.node("a")
    await env.cluster.initialised("a")
    assert await holder(env) == "the-other-manager"
    await env.cluster.patch(SHARED, {"spec": {"holderIdentity": ""}}, kind="merge")
    await daemon.says("became leader", count=2)
    env.cloud.world.delete(machine.id)
    await env.cluster.gone("a")

    assert await daemon.stop() == 0
    assert await holder(env) == ""


async def test_a_controller_migrated_to_another_manager_does_not_run(env: Environment) -> None:
    daemon = await env.start_leading(flags=plan(env.folder, "kube-controller-manager"))
    machine = await env.node("a")
    await env.cluster.initialised("a")
    env.cloud.world.delete(machine.id)

    await asyncio.sleep(4 * harness.MONITOR_S)

    assert await env.cluster.node("a") is not None
    assert await daemon.stop() == 0


@pytest.mark.row("daemon-migration-05")
async def test_losing_the_shared_lease_ends_the_process(env: Environment) -> None:
    daemon = await env.start_leading(flags=plan(env.folder, "*"))
    await daemon.says("became leader", count=2)

    await env.cluster.patch(SHARED, {"spec": {"holderIdentity": "thief"}}, kind="merge")

    assert await daemon.ended() == 1
    assert daemon.lines("migration leaderelection lost")


PROVIDER = '''
"""A cloud without capabilities that notes what is done with it."""

from pathlib import Path

from ccm import cloud


@cloud.provider(sdk="2.0")
async def open_cloud(context):
    file = Path(context.config.decode().strip())

    def note(what):
        with file.open("a") as notes:
            notes.write(what + "\\n")

    note("opened")
    yield cloud.Cloud(
        name="noted", has_cluster_id=True, set_informers=lambda informers: note("informers")
    )
    note("closed")
'''


@pytest.mark.row("daemon-migration-06")
@servers.only_builtin
async def test_the_provider_is_opened_once_for_both_leases(env: Environment) -> None:
    notes = env.folder / "notes"
    env.cloud_config.write_text(str(notes))

    daemon = await env.start_leading(
        flags={**plan(env.folder, "*"), "cloud-provider": "noted"},
        env=install(env.folder, "noted", PROVIDER),
    )
    await daemon.says("became leader", count=2)
    assert await daemon.stop() == 0

    assert notes.read_text().split() == ["opened", "informers", "closed"]
