"""Expectations: what was done counts before the cache shows it, and is not waited for for ever."""

from __future__ import annotations

import asyncio

import pytest

from ccm.gardener.types import Machine
from ccm.kube.errors import NotFound
from ccm.kube.store import Store
from ccm.model import ObjectMeta
from ccm.runtime.expectations import Expectations

pytestmark = pytest.mark.virtual_time

OWNER = "uid-of-web"


def machine(name: str = "a", uid: str = "u-a", *, is_deleting: bool = False) -> Machine:
    stamp = "2026-01-01T00:00:00Z" if is_deleting else None
    meta = ObjectMeta(name=name, namespace="n", uid=uid, deletion_timestamp=stamp)
    return Machine(metadata=meta)


class Api:
    """What the API server has."""

    def __init__(self, *there: Machine) -> None:
        self.there = {one.key: one for one in there}
        self.reads: list[str] = []

    async def get(self, name: str, *, namespace: str = "") -> Machine:
        self.reads.append(name)
        if (found := self.there.get(f"{namespace}/{name}")) is None:
            raise NotFound(status=404, reason="NotFound", message="gone")
        return found


def cache(*shown: Machine) -> Store[Machine]:
    found: Store[Machine] = Store()
    found._objects.update({one.key: one for one in shown})
    return found


def test_a_creation_is_awaited_until_the_cache_shows_it() -> None:
    found = Expectations()
    found.creating(OWNER, "n", "a")
    assert not found.satisfied(OWNER)
    assert found.satisfied("another")

    found.seen(machine("b"))
    assert not found.satisfied(OWNER)
    found.seen(machine("a"))
    assert found.satisfied(OWNER)


def test_what_came_and_went_was_shown() -> None:
    found = Expectations()
    found.creating(OWNER, "n", "a")
    found.gone(machine("a"))
    assert found.satisfied(OWNER)


def test_what_was_refused_is_not_awaited() -> None:
    found = Expectations()
    found.creating(OWNER, "n", "a")
    found.refused("n", "a")
    assert found.satisfied(OWNER)
    assert list(found.doubtful(OWNER)) == []


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_deletion_is_awaited_until_the_cache_shows_it(is_gone: bool) -> None:
    found = Expectations()
    found.deleting(OWNER, machine())
    found.seen(machine())
    assert not found.satisfied(OWNER)

    if is_gone:
        found.gone(machine())
    else:
        found.seen(machine(is_deleting=True))
    assert found.satisfied(OWNER)


def test_a_deletion_is_of_one_object_whoever_has_its_name() -> None:
    found = Expectations()
    found.deleting(OWNER, machine())
    found.gone(machine(uid="u-older"))
    assert not found.satisfied(OWNER)


def test_what_was_not_deleted_is_not_awaited() -> None:
    found = Expectations()
    found.deleting(OWNER, machine())
    found.kept(machine())
    assert found.satisfied(OWNER)


def test_a_creation_in_doubt_keeps_its_name() -> None:
    found = Expectations()
    for name in ("a", "b", "c"):
        found.creating(OWNER, "n", name)
        found.in_doubt("n", name)
    assert found.satisfied(OWNER)
    assert list(found.doubtful(OWNER)) == ["a", "b", "c"]

    found.seen(machine("a"))
    found.creating(OWNER, "n", "b")
    assert list(found.doubtful(OWNER)) == ["c"]
    found.seen(machine("c"))
    assert list(found.doubtful(OWNER)) == []


def test_an_owner_that_is_gone_waits_for_nothing() -> None:
    found = Expectations()
    found.creating(OWNER, "n", "a")
    found.in_doubt("n", "a")
    found.creating(OWNER, "n", "b")
    found.deleting(OWNER, machine("c"))

    found.forget(OWNER)

    assert found.satisfied(OWNER)
    assert found.due_s(OWNER) is None
    assert list(found.doubtful(OWNER)) == []


async def test_nothing_is_looked_up_before_its_time() -> None:
    found, api = Expectations(timeout_s=60.0), Api()
    found.creating(OWNER, "n", "a")
    await asyncio.sleep(59.0)

    assert found.due_s(OWNER) == pytest.approx(1.0)
    assert await found.look_up(OWNER, api, cache()) == 0
    assert api.reads == []
    assert not found.satisfied(OWNER)


@pytest.mark.parametrize(
    ("shown", "there", "late"),
    [
        pytest.param([], [], 0, id="it came and went unseen"),
        pytest.param([], [machine()], 1, id="it is there, the cache lags"),
        pytest.param([machine()], [machine()], 0, id="the cache shows it"),
    ],
)
async def test_a_creation_that_is_late_is_looked_up(
    shown: list[Machine], there: list[Machine], late: int
) -> None:
    found = Expectations(timeout_s=60.0)
    found.creating(OWNER, "n", "a")
    await asyncio.sleep(60.0)

    assert await found.look_up(OWNER, Api(*there), cache(*shown)) == late
    assert found.satisfied(OWNER) is (late == 0)
    assert (found.due_s(OWNER) or 0.0) == pytest.approx(60.0 * late)


@pytest.mark.parametrize(
    ("shown", "there", "late"),
    [
        pytest.param([machine()], [], 1, id="it is gone, the cache lags"),
        pytest.param([machine()], [machine(is_deleting=True)], 1, id="it goes, the cache lags"),
        pytest.param([machine()], [machine(uid="u-new")], 1, id="another has its name"),
        pytest.param([machine()], [machine()], 0, id="it was never deleted"),
        pytest.param([], [], 0, id="the cache shows it"),
        pytest.param([machine(uid="u-new")], [], 0, id="the cache shows another of its name"),
        pytest.param([machine(is_deleting=True)], [], 0, id="the cache shows it going"),
    ],
)
async def test_a_deletion_that_is_late_is_looked_up(
    shown: list[Machine], there: list[Machine], late: int
) -> None:
    found = Expectations(timeout_s=60.0)
    found.deleting(OWNER, machine())
    await asyncio.sleep(60.0)

    assert await found.look_up(OWNER, Api(*there), cache(*shown)) == late
    assert found.satisfied(OWNER) is (late == 0)
