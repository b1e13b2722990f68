"""Orphans: which VMs without a machine are deleted, and above all which are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from ccm.cloud.machines import Identity, MachineInfo, MachineRecord
from ccm.machines.orphans import (
    MAX_NAMES,
    MIN_AGE_S,
    SETTLE_S,
    SIGHTING_INTERVAL_S,
    DeletedMachine,
    DeletedMachines,
    OrphanCandidates,
    Owners,
    Sighting,
    decide_deletions,
    find_candidates,
    may_leave_vm,
)
from ccm.model import ObjectMeta
from ccm.model.machines import Machine, MachineStatus, Phase

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OLD = NOW - timedelta(seconds=MIN_AGE_S + 1)
SEEN = Sighting(since=OLD, number=1)


def vm(
    name: str,
    *,
    cluster: str = "ours",
    namespace: str = "d",
    uid: str = "u",
    created: datetime | None = OLD,
    provider_id: str | None = None,
) -> MachineRecord:
    found = f"sim://{name}" if provider_id is None else provider_id
    return MachineRecord(
        identity=Identity(cluster=cluster, namespace=namespace, pool="small", name=name, uid=uid),
        info=MachineInfo(provider_id=found, node_name=name),
        created=created,
    )


def unlabelled(name: str) -> MachineRecord:
    return vm(name, cluster="", namespace="", uid="")


def machine(
    name: str, provider_id: str = "", *, uid: str = "u", phase: Phase = Phase.RUNNING
) -> Machine:
    return Machine(
        metadata=ObjectMeta(name=name, namespace="d", uid=uid),
        created=NOW,
        provider_id=provider_id,
        status=MachineStatus(phase=phase),
    )


def found(
    *records: MachineRecord,
    machines: Collection[Machine] = (),
    sightings: Mapping[str, Sighting] | None = None,
    cluster: str = "ours",
    gone: Collection[str] = (),
) -> OrphanCandidates:
    """Result for VMs all of which were seen in an earlier pass, unless a test says otherwise."""
    before = {record.info.provider_id: SEEN for record in records}
    return find_candidates(
        records,
        list(machines),
        before if sightings is None else sightings,
        NOW,
        cluster=cluster,
        namespace="d",
        gone=gone,
    )


def names(records: Collection[MachineRecord]) -> list[str]:
    return [record.identity.name for record in records]


def test_an_old_vm_of_ours_without_machine_is_a_candidate() -> None:
    result = found(vm("b"), vm("a"), vm("a"))
    assert names(result.candidates) == ["a", "b"]
    assert (result.owned_count, result.waiting, result.strangers) == (2, [], [])
    assert result.sightings == dict.fromkeys(("sim://a", "sim://b"), Sighting(since=OLD, number=2))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(vm("a", cluster="theirs"), id="other cluster"),
        pytest.param(vm("a", cluster=""), id="no cluster"),
        pytest.param(vm("a", namespace="other"), id="other namespace"),
        pytest.param(vm("a", cluster="theirs", namespace=""), id="other cluster, no namespace"),
        pytest.param(unlabelled("a"), id="no labels"),
    ],
)
def test_a_vm_that_is_not_ours_is_a_stranger(record: MachineRecord) -> None:
    result = found(record, gone=["b"])
    assert (result.owned_count, result.candidates, result.waiting) == (0, [], [])
    assert result.strangers == [record]
    assert result.sightings == {}


def test_a_stranger_with_a_machine_is_not_reported() -> None:
    taken = machine("m", "sim://a")
    assert found(vm("a", cluster="theirs"), machines=[taken]).strangers == []


@pytest.mark.parametrize("marker", ["", "ours"])
def test_without_a_marker_of_our_cluster_no_vm_is_ours(marker: str) -> None:
    assert names(found(vm("a", cluster=""), cluster=marker).candidates) == []


def test_a_vm_of_a_machine_is_no_candidate() -> None:
    by_id = machine("m", "sim://a", uid="other")
    by_uid = machine("m", uid="u")
    joining = machine("m", "sim://other", uid="u", phase=Phase.CRASH_LOOP)
    for one in (by_id, by_uid, joining):
        result = found(vm("a"), machines=[one])
        assert (result.owned_count, result.candidates, result.sightings) == (1, [], {})
    assert names(found(vm("a"), machines=[machine("m", "sim://other")]).candidates) == ["a"]


@pytest.mark.parametrize(
    ("age_s", "since_s", "number", "is_candidate"),
    [
        (MIN_AGE_S + 1, 60, 1, True),
        (MIN_AGE_S, 60, 1, False),
        (MIN_AGE_S + 1, 60, 0, False),
        (None, MIN_AGE_S + 1, 1, True),
        (None, MIN_AGE_S, 1, False),
        (60, MIN_AGE_S + 1, 5, False),
    ],
)
def test_a_vm_is_deleted_only_when_old_and_seen_twice(
    age_s: float | None, since_s: float, number: int, is_candidate: bool
) -> None:
    record = vm("a", created=None if age_s is None else NOW - timedelta(seconds=age_s))
    seen = Sighting(since=NOW - timedelta(seconds=since_s), number=number)
    result = found(record, sightings={"sim://a": seen})
    assert names(result.candidates) == ["a"] * is_candidate
    assert names(result.waiting) == ["a"] * (not is_candidate)


def test_the_first_sighting_is_remembered() -> None:
    result = found(vm("a"), vm("b", provider_id="", uid="w"), sightings={})
    assert names(result.waiting) == ["a", "b"]
    first = Sighting(since=NOW, number=1)
    assert result.sightings == {"sim://a": first, "b/w": first}


def test_an_unlabelled_vm_is_ours_by_the_name_of_a_deleted_machine_only() -> None:
    at = NOW - timedelta(seconds=SIGHTING_INTERVAL_S)
    seen = {"sim://a": Sighting(since=at, number=1), "sim://b": Sighting(since=at, number=1)}
    result = found(unlabelled("a"), unlabelled("b"), vm("c"), sightings=seen, gone=["a"])
    assert (result.owned_count, names(result.candidates)) == (2, ["a"])
    assert (names(result.waiting), names(result.strangers)) == (["c"], ["b"])

    early = {"sim://a": Sighting(since=at + timedelta(seconds=1), number=1)}
    assert names(found(unlabelled("a"), sightings=early, gone=["a"]).waiting) == ["a"]
    again = found(unlabelled("a"), sightings=seen, gone=["a"], machines=[machine("a", uid="v")])
    assert (again.candidates, again.waiting) == ([], [])
    for labelled in (vm("a", cluster="theirs", uid=""), vm("a", cluster="", uid="v")):
        kept = found(labelled, sightings=seen, gone=["a"])
        assert (kept.candidates, kept.waiting) == ([], [])


def test_a_live_machine_keeps_its_vm() -> None:
    candidates = found(vm("a"), vm("b"))
    decision = decide_deletions(candidates, [machine("m", "sim://a")], all_namespaces=False)
    assert names(decision.to_delete) == ["b"]
    assert (decision.over_limit, decision.unconfirmed) == ([], [])


def test_a_live_machine_of_its_name_keeps_only_an_unlabelled_vm() -> None:
    seen = {"sim://a": SEEN, "sim://b": SEEN}
    candidates = found(unlabelled("a"), vm("b"), gone=["a"], sightings=seen)
    assert names(candidates.candidates) == ["a", "b"]
    live = [machine("a", "sim://x", uid="v"), machine("b", "sim://y", uid="w")]
    assert names(decide_deletions(candidates, live, all_namespaces=False).to_delete) == ["b"]
    assert names(decide_deletions(candidates, [], all_namespaces=False).to_delete) == ["a", "b"]


def test_a_vm_without_namespace_is_deleted_only_if_all_namespaces_were_listed() -> None:
    candidates = found(vm("a", namespace=""), vm("b"))
    some = decide_deletions(candidates, [], all_namespaces=False)
    assert (names(some.to_delete), names(some.unconfirmed)) == (["b"], ["a"])
    every = decide_deletions(candidates, [], all_namespaces=True)
    assert (names(every.to_delete), every.unconfirmed) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("ownerless", "owned", "foreign", "most"),
    [(7, 0, 0, 5), (10, 40, 0, 5), (10, 50, 0, 6), (10, 49, 2, 5)],
)
def test_deletions_of_a_pass_are_limited_by_a_share_of_our_vms(
    ownerless: int, owned: int, foreign: int, most: int
) -> None:
    kept = [machine(f"m{n}", f"sim://k{n}") for n in range(owned)]
    records = [vm(f"o{n:02}") for n in range(ownerless)]
    others = [vm(f"x{n}", namespace="") for n in range(foreign)]
    candidates = found(*records, *others, *(vm(f"k{n}") for n in range(owned)), machines=kept)
    decision = decide_deletions(candidates, kept, all_namespaces=False)
    assert names(decision.to_delete) == [f"o{n:02}" for n in range(most)]
    assert names(decision.over_limit) == [f"o{n:02}" for n in range(most, ownerless)]
    assert len(decision.unconfirmed) == foreign


def test_a_machine_may_own_a_vm_by_provider_id_uid_or_name() -> None:
    owners = Owners([machine("a", "sim://1", uid="v"), machine("b", uid="w")])
    assert owners.owns(vm("x", provider_id="sim://1"))
    assert owners.owns(vm("x", uid="w"))
    assert not owners.owns(vm("a", uid="v"))
    assert not owners.owns(unlabelled("a"))
    assert owners.may_own(unlabelled("a"))
    assert not owners.may_own(unlabelled("x"))
    assert not owners.may_own(vm("a", uid="v"))
    assert not Owners([machine("a")]).owns(vm("x", provider_id="", uid="z"))


def gone(name: str, pool: str = "small", at: float = 0.0) -> DeletedMachine:
    identity = Identity(cluster="ours", namespace="d", pool=pool, name=name, uid=f"{name}-{at}")
    return DeletedMachine(identity=identity, origins=("here",), at=at)


def test_deleted_machines_are_known_by_class_name_and_origin() -> None:
    deleted = DeletedMachines()
    first, second = gone("a"), gone("b", "large")
    for one in (first, second):
        deleted.add(one)
    assert deleted.of("small", "here") == {"a": first.identity}
    assert deleted.of("small", "there") == deleted.of("tiny", "here") == {}
    deleted.remove("x")
    deleted.remove("a")
    assert deleted.of("small", "here") == {}
    assert deleted.of("large", "here") == {"b": second.identity}
    deleted.add(first)
    deleted.keep({"small"})
    assert (deleted.of("large", "here"), len(deleted.of("small", "here"))) == ({}, 1)


def test_the_oldest_deleted_machines_are_forgotten() -> None:
    deleted = DeletedMachines()
    for n in range(MAX_NAMES):
        deleted.add(gone(str(n)))
    deleted.add(gone("0", at=1.0))
    assert len(deleted.of("small", "here")) == MAX_NAMES
    deleted.add(gone("new"))
    known = deleted.of("small", "here")
    assert (len(known), "1" in known, known["0"].uid) == (MAX_NAMES, False, "0-1.0")


def test_a_later_listing_forgets_machines_that_left_no_vm() -> None:
    deleted = DeletedMachines()
    assert not deleted.settle("small", (), 0.0)
    for one in (gone("a", at=10.0), gone("b", at=10.0), gone("c", "large", at=10.0)):
        deleted.add(one)
    assert deleted.settle("small", ["a"], 10.0 + SETTLE_S)
    assert set(deleted.of("small", "here")) == {"a", "b"}
    assert not deleted.settle("small", ["a"], 10.5 + SETTLE_S)
    assert set(deleted.of("small", "here")) == {"a"}
    assert set(deleted.of("large", "here")) == {"c"}


def test_only_a_recorded_creation_may_have_left_a_vm() -> None:
    def left(*, started: bool, origins: tuple[str, ...]) -> bool:
        return may_leave_vm(
            Machine(
                metadata=ObjectMeta(name="a"),
                created=NOW,
                provider_id="sim://a",
                creation_started=started,
                origins=origins,
            )
        )

    assert left(started=True, origins=())
    assert left(started=False, origins=("here",))
    assert not left(started=False, origins=())
