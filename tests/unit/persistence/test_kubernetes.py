"""ConfigMaps as storage: several daemons, other writers, sizes, permissions and leaders."""

from __future__ import annotations

import base64
import json
import random
import uuid
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from ccm.app.clients import ProviderClient
from ccm.persistence import errors, kubestore
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.interface import ABSENT
from ccm.persistence.journal import (
    PAGE_SIZE,
    EntryState,
    Journal,
    JournalEntry,
    Owner,
    entry_name,
)
from ccm.persistence.kubestore import ANNOTATION, FIELD, LABEL, KubernetesConfig, storage
from ccm.persistence.objects import place_of
from ccm.persistence.registry import BackendContext
from ccm.testing.persistence_harness import ELSEWHERE
from tests.contract.persistence.cluster import Cluster
from tests.unit.controllers.memory_server import MemoryServer
from tests.unit.persistence.helpers import HERE, KIND, thing

LEASE = "cloud-controller-manager"


def make(cluster: Cluster, *, lease: str = LEASE, epoch: int = 0, **config: Any) -> StoreProvider:
    context = BackendContext(
        writer=lambda: WriterIdentity(identity="test", epoch=epoch),
        requests=cluster,
        lease=lease,
    )
    return storage([KubernetesConfig(**config)], context)  # type: ignore[no-any-return]


@asynccontextmanager
async def opened(cluster: Cluster, **settings: Any) -> AsyncIterator[tuple[StoreProvider, str]]:
    provider = make(cluster, **settings)
    await provider.initialize(HERE)
    try:
        yield provider, provider.instances()[0]
    finally:
        await provider.close()


async def test_daemons_of_one_namespace_do_not_see_each_other() -> None:
    cluster = Cluster()
    async with opened(cluster) as (one, first), opened(cluster, lease="blue") as (two, second):
        assert first != second
        await one.put_object(first, thing(by="one"))
        await two.put_object(second, thing(by="two"))

        assert await one.get_all_objects(first, KIND) == [thing(by="one")]
        assert await two.get_all_objects(second, KIND) == [thing(by="two")]
    assert {path.rpartition("/")[0] for path in cluster.held} == {
        "/api/v1/namespaces/kube-system/configmaps"
    }


async def test_long_name_of_a_lease_becomes_a_valid_label() -> None:
    cluster = Cluster()
    async with opened(cluster, lease="a" * 253) as (store, instance):
        await store.put_object(instance, thing())
        assert await store.get_all_objects(instance, KIND) == [thing()]
    for item in cluster.held.values():
        assert len(item["metadata"]["labels"][LABEL]) <= 63


async def test_object_is_compressed_and_bounded() -> None:
    cluster = Cluster()
    async with opened(cluster) as (store, instance):
        with pytest.raises(errors.ObjectTooLarge, match=r"limit of kubernetes-.* is 1000000"):
            await store.put_object(instance, thing(fill="x" * 1_000_000))
        sent = len(cluster.requests)
        noise = "".join(random.Random(1).choices("0123456789abcdef", k=900_000))
        await store.put_object(instance, thing(fill="x" * 900_000))
        (item,) = cluster.stored()
        assert item["kind"] == "ConfigMap"
        assert len(item["binaryData"][FIELD]) < 10_000
        assert len(cluster.requests) == sent + 3  # the object, the marker, the write
        await store.put_object(instance, thing(fill=noise))
        assert await store.get_all_objects(instance, KIND) == [thing(fill=noise)]


async def test_conditional_write_is_two_requests() -> None:
    """The marker and the write: the journal passes the version that it has read."""
    cluster = Cluster()
    async with opened(cluster) as (store, instance):
        sent = len(cluster.requests)
        _, version = await store.put_versioned(instance, thing(), expect=ABSENT)
        assert [method for method, _ in cluster.requests[sent:]] == ["GET", "POST"]
        sent = len(cluster.requests)
        await store.put_versioned(instance, thing(size=2), expect=version)
        assert [method for method, _ in cluster.requests[sent:]] == ["GET", "PUT"]
        assert await store.get_all_objects(instance, KIND) == [thing(size=2)]


@pytest.mark.parametrize("marker", ["lost", "set back"])
async def test_conditional_write_of_a_former_leader_without_a_marker_is_fenced(marker: str) -> None:
    """The object itself has the epoch of the newer leader, though the version is right."""
    cluster = Cluster()
    async with opened(cluster, epoch=3) as (old, instance):
        key, _ = await old.put_versioned(instance, thing(), expect=ABSENT)
        before = {path: json.dumps(item) for path, item in cluster.held.items()}
        async with opened(cluster, epoch=4) as (new, _):
            await new.put_object(instance, thing(by="new"))
        (path,) = [path for path in cluster.held if path.endswith(_marker(old, instance))]
        del cluster.held[path]
        if marker == "set back":
            held = json.loads(before[path])
            held["binaryData"][FIELD] = _with_epoch(held["binaryData"][FIELD], 2)
            cluster.held[path] = held
        found = await old.get_versioned(instance, KIND, key)
        assert found is not None
        with pytest.raises(errors.Fenced):
            await old.put_versioned(instance, thing(by="old"), expect=found[1])
        assert await old.get_all_objects(instance, KIND) == [thing(by="new")]


def _marker(provider: StoreProvider, instance: str) -> str:
    store: Any = provider._instances[instance].store
    return f"/{store._marker}"


def _with_epoch(stored: str, epoch: int) -> str:
    marker = json.loads(zlib.decompress(base64.b64decode(stored))) | {"epoch": epoch}
    return base64.b64encode(zlib.compress(json.dumps(marker).encode())).decode()


async def test_conditional_write_of_a_config_map_that_lost_its_label_is_refused() -> None:
    cluster = Cluster()
    async with opened(cluster) as (store, instance):
        _, version = await store.put_versioned(instance, thing(), expect=ABSENT)
        (item,) = cluster.stored()
        item["metadata"] |= {"labels": {}, "resourceVersion": "1000"}
        before = json.dumps(cluster.held)
        for expect in (version, ABSENT):
            with pytest.raises(errors.CorruptObject, match="lacks the label"):
                await store.put_versioned(instance, thing(size=1), expect=expect)
        assert json.dumps(cluster.held) == before


async def test_bytes_that_expand_without_end_are_damage() -> None:
    cluster = Cluster()
    async with opened(cluster) as (store, instance):
        key = await store.put_object(instance, thing())
        (item,) = cluster.stored()
        bomb = base64.b64encode(zlib.compress(b"0" * 50_000_000)).decode()
        for body in (bomb, "no base64", base64.b64encode(b"not compressed").decode()):
            item["binaryData"][FIELD] = body
            with pytest.raises(errors.CorruptObject):
                await store.get_object(instance, KIND, key)
        await store.put_object(instance, thing())
        assert await store.get_object(instance, KIND, key) == thing()


async def test_config_map_without_the_label_is_never_changed() -> None:
    cluster = Cluster()
    async with opened(cluster) as (store, instance):
        key = await store.put_object(instance, thing())
        (item,) = cluster.stored()
        item["metadata"]["labels"] = {}
        before = json.dumps(cluster.held)
        for call in (
            store.put_object(instance, thing(size=1)),
            store.get_object(instance, KIND, key),
            store.delete_object(instance, KIND, key),
        ):
            with pytest.raises(errors.CorruptObject, match=f"lacks the label {LABEL}={LEASE}"):
                await call
        assert json.dumps(cluster.held) == before


async def test_config_map_without_the_label_in_the_place_of_the_marker_is_refused() -> None:
    cluster = Cluster()
    async with opened(cluster):
        pass
    (marker,) = cluster.held.values()
    marker["metadata"]["labels"] = {}
    store = make(cluster)
    (instance,) = store.instances()
    for call in (store.initialize(HERE), store.get_all_objects(instance, KIND)):
        with pytest.raises(errors.BackendDead, match=r"lacks the label .* was not changed"):
            await call
    await store.close()


async def test_object_of_another_cluster_is_refused() -> None:
    """ConfigMaps that a backup tool copied from another cluster."""
    cluster = Cluster()
    async with opened(cluster) as (store, instance):
        await store.put_object(instance, thing())
    foreign = make(cluster)
    with pytest.raises(errors.BackendDead, match="belongs to the cluster"):
        await foreign.initialize(ELSEWHERE)
    await foreign.close()


async def test_former_leader_cannot_change_an_object_that_no_newer_leader_wrote() -> None:
    cluster = Cluster()
    async with opened(cluster, epoch=3) as (old, instance):
        key, version = await old.put_versioned(instance, thing(), expect=ABSENT)
        async with opened(cluster, epoch=4):
            before = json.dumps(cluster.held)
            for call in (
                old.put_object(instance, thing(by="old")),
                old.put_versioned(instance, thing("new"), expect=ABSENT),
                old.put_versioned(instance, thing(by="old"), expect=version),
                old.delete_object(instance, KIND, key),
            ):
                with pytest.raises(errors.Fenced):
                    await call
            assert json.dumps(cluster.held) == before


async def test_newer_leader_between_the_check_and_the_write_wins() -> None:
    """The former leader has read the marker; its write fails because the object has changed."""
    cluster = Cluster()
    async with opened(cluster, epoch=3) as (old, instance):
        _, version = await old.put_versioned(instance, thing(by="old"), expect=ABSENT)
        store: Any = old._instances[instance].store
        put = store._put

        async def late(*given: Any) -> Any:
            store._put = put
            async with opened(cluster, epoch=4) as (new, _):
                await new.put_object(instance, thing(by="new"))
            return await put(*given)

        store._put = late
        with pytest.raises(errors.Fenced):
            await old.put_versioned(instance, thing(by="old again"), expect=version)
        assert await old.get_all_objects(instance, KIND) == [thing(by="new")]


@pytest.mark.parametrize("expects", [True, False])
async def test_write_that_the_client_repeated_after_its_success_is_no_conflict(
    expects: bool,
) -> None:
    """The API server made the change but responded with 503, so the client repeated the request."""

    class Repeating(Cluster):
        async def request(self, method: str, path: str, **given: Any) -> bytes:
            if method in ("PUT", "POST"):
                await super().request(method, path, **given)
            return await super().request(method, path, **given)

    cluster = Cluster()
    async with opened(cluster) as (store, instance):
        cluster.__class__ = Repeating
        _, first = await store.put_versioned(instance, thing(), expect=ABSENT)
        expect = first if expects else None
        _, second = await store.put_versioned(instance, thing(size=2), expect=expect)
        assert await store.get_versioned(instance, KIND, place_of(thing()).key) == (
            thing(size=2),
            second,
        )


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            403,
            (
                "GET of ConfigMaps in the namespace here failed: 403; the role of the daemon lacks "
                "the verb get of configmaps in this namespace: apply rbac.yaml"
            ),
        ),
        (503, r"GET of ConfigMaps in the namespace here failed: 503$"),
    ],
)
async def test_refused_request_names_the_resource_and_the_namespace(status: int, said: str) -> None:
    cluster = Cluster()
    async with opened(cluster, namespace="here") as (store, instance):
        cluster.status = status
        with pytest.raises(errors.BackendUnavailable, match=said):
            await store.put_object(instance, thing())
        cluster.status = 0
        await store.put_object(instance, thing())


async def test_response_that_is_no_json_is_a_temporary_failure() -> None:
    """A proxy in front of the API server answers with a page of its own."""

    class Page(Cluster):
        async def request(self, method: str, path: str, **given: Any) -> bytes:
            return b"<html>"

    cluster = Cluster()
    async with opened(cluster) as (store, instance):
        cluster.__class__ = Page
        with pytest.raises(errors.BackendUnavailable, match="failed: DecodeError"):
            await store.put_object(instance, thing())
        assert not (await store.instance_status(instance)).status


async def test_absent_namespace_is_named() -> None:
    class WithoutNamespace(Cluster):
        async def request(self, method: str, path: str, **given: Any) -> bytes:
            self.status = 404
            return await super().request(method, path, **given)

    provider = make(WithoutNamespace(), namespace="absent")
    with pytest.raises(errors.BackendDead, match="the namespace absent does not exist"):
        await provider.initialize(HERE)
    await provider.close()


def test_invalid_namespace_is_refused_by_name_and_value() -> None:
    with pytest.raises(errors.BackendDead, match=r"kubernetes\.namespace is 'a/\.\./b'; use"):
        make(Cluster(), namespace="a/../b")


async def test_listing_has_objects_of_one_kind_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubestore, "PAGE", 2)
    cluster = Cluster()
    async with opened(cluster) as (store, instance):
        for at in range(5):
            await store.put_object(instance, thing(f"n{at}"))
            await store.put_object(instance, thing(f"n{at}") | {"kind": "Other"})
        assert len(await store.get_all_objects(instance, KIND)) == 5
        cluster.stored()[0]["metadata"]["annotations"].pop(ANNOTATION)
        assert len(await store.get_all_objects(instance, KIND)) == 4


def of_a_machine(number: int, chance: random.Random) -> JournalEntry:
    """Return the entry of a VM with names as they are in a large cluster."""
    uid = str(uuid.UUID(int=chance.getrandbits(128)))
    pool = f"shoot-pool-{number % 7}-z{number % 3}"
    name = f"{pool}-{chance.getrandbits(40):x}"
    return JournalEntry(
        name=entry_name("server", uid),
        resource="server",
        provider="hcloud",
        owner=Owner(
            api_version="machine.sapcloud.io/v1alpha1",
            kind="Machine",
            namespace=f"shoot--team-{number % 20}",
            name=name,
            uid=uid,
        ),
        state=list(EntryState)[number % 4],
        machine_class=pool,
        intended_name=name,
        resource_id=f"hcloud://{chance.getrandbits(30)}",
        last_error="" if number % 10 else f"quota exceeded for {name}: {chance.random()}",
    )


async def test_ten_thousand_resources_need_at_most_four_mebibytes_of_config_maps() -> None:
    """As the API server stores them, with metadata."""
    server, chance = MemoryServer(), random.Random(1)
    entries = [of_a_machine(number, chance) for number in range(10_000)]
    context = BackendContext(
        writer=WriterIdentity, requests=ProviderClient(server.client()), lease=LEASE
    )
    provider = storage([KubernetesConfig()], context)
    await provider.initialize(HERE)
    journal = Journal(writer=WriterIdentity)
    await journal.open(provider, *provider.instances())
    for first in range(0, len(entries), 2 * PAGE_SIZE):
        await journal.put(*entries[first : first + 2 * PAGE_SIZE])
    await journal.close()
    await provider.close()

    stored = server.list("/api/v1/namespaces/kube-system/configmaps")
    marker = 1
    assert len(stored) == -(-len(entries) // PAGE_SIZE) + marker
    assert sum(len(msgspec.json.encode(one)) for one in stored) <= 4 << 20
