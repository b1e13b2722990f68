"""The copy of a cluster answers as its API server would."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from ccm.app import options
from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.informer import Informers
from ccm.kube.resources import NODES, SERVICES
from ccm.kube.transport import MAX_RETRIES
from ccm.model import Service, Taint
from ccm.planning.cluster import ClusterCopy
from ccm.planning.forecast import ANSWER_S, copied
from ccm.runtime import deletions
from ccm.testing.builders import node, service
from ccm.testing.clock import settle

pytestmark = pytest.mark.virtual_time


def cluster(*services: Service) -> ClusterCopy:
    copy = ClusterCopy()
    copy.load(NODES, {"a": node("a", resource_version="7")}, malformed=["broken"])
    copy.load(SERVICES, {one.key: one for one in services})
    return copy


def nodes(copy: ClusterCopy) -> Any:
    return copy.named("somebody").resource(NODES)


async def test_a_cache_follows_it() -> None:
    copy = cluster()
    informers = Informers(copy.named("informers"))
    cache = informers.of(NODES)
    running = spawn(informers.run(), name="informers")
    await informers.wait_synced(1.0)
    assert (list(cache.store.keys()), list(cache.undecodable)) == (["a"], ["broken"])

    await nodes(copy).patch_strategic("a", {"spec": {"providerID": "x://1"}})
    await settle()
    assert [one.provider_id for one in cache.store.list()] == ["x://1"]
    await nodes(copy).delete("a", uid="uid-a")
    await settle()

    assert len(cache.store) == 0
    await cancel_and_join(running)


@pytest.mark.parametrize(
    "metadata", [{"resourceVersion": "6"}, {"uid": "another"}], ids=["version", "uid"]
)
async def test_a_patch_for_another_state_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises((errors.Conflict, errors.Invalid)):
        await nodes(cluster()).patch_strategic("a", {"metadata": metadata, "spec": {"x": 1}})


class Hesitating(Client):
    """A client of an API server that asks to be asked again, and again."""

    def __init__(self, answers: Collection[str]) -> None:
        self._answers = answers

    async def raw(self, method: str, path: str, **_: Any) -> bytes:
        if path.rpartition("/")[2] not in self._answers:
            await asyncio.sleep(9.0 * MAX_RETRIES)
        return b'{"items": []}'


@pytest.mark.parametrize("answers", [(), ("nodes", "services")], ids=["nodes", deletions.NAME])
async def test_a_cluster_is_read_in_time_or_not_at_all(answers: Collection[str]) -> None:
    flags, began = options.parse(["--cloud-provider=fake"]), clock.monotonic()

    with pytest.raises(errors.Unreachable, match="gave no answer within 30 s"):
        await copied(flags, Hesitating(answers))

    assert clock.monotonic() - began == ANSWER_S


async def test_an_odd_value_of_a_real_object_stays() -> None:
    copy = ClusterCopy()
    copy.load(
        NODES, {"a": node("a", taints=[Taint(key="k", effect="NoExecute", time_added="odd")])}
    )

    (read,) = copy.of(NODES).now.values()

    assert read.taints[0].time_added == "odd"


async def test_a_patch_that_changes_nothing_is_no_new_state() -> None:
    copy = cluster()

    same = await nodes(copy).patch_strategic("a", {"metadata": {"uid": "uid-a"}})

    assert (same.resource_version, dict(copy.of(NODES).touched)) == ("7", {})


async def test_what_its_finalizers_hold_goes_with_the_last_of_them() -> None:
    copy = cluster(service("web", finalizers=["f"]))
    api = copy.named("somebody").resource(SERVICES)
    await api.delete("web", namespace="default")
    assert (await api.get("web", namespace="default")).is_deleting

    lifted = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f"]}}
    await api.patch_strategic("web", lifted, namespace="default", subresource="status")

    found = copy.of(SERVICES)
    assert (found.now, [*found.last]) == ({}, ["default/web"])
