"""Access of the orphan search to load balancers whose Service is gone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ccm.cloud import Cloud, ImplementedElsewhere, Service, Status, Unavailable
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.helpers import load_balancer_name
from ccm.controllers.service.listing import (
    LOOKUP_LISTING_AGE_S,
    BalancerAccess,
    described_service,
)
from ccm.kube.informer import InformerStore
from ccm.model import names
from ccm.persistence.journal import EntryState, JournalEntry
from ccm.runtime.journal import balancer_entry
from ccm.runtime.orphans import Finding
from ccm.testing import builders
from ccm.testing.clock import advance
from tests.support.services import FakeBalancers, FakeDigests

pytestmark = pytest.mark.virtual_time

WEB = builders.service("web", annotations={"lb/size": "large", "other/note": "x"})


def access_to(balancers: FakeBalancers) -> BalancerAccess:
    cloud = Cloud(name="fake", load_balancer=balancers, service_annotations=("lb/",))
    return BalancerAccess(CloudClient(cloud))


def entry_of(access: BalancerAccess, service: Service = WEB) -> JournalEntry:
    return balancer_entry(access.handle, service)


def with_services(access: BalancerAccess, *services: Service) -> InformerStore[Service]:
    """The cache of the access, with these Services."""
    cache: InformerStore[Service] = InformerStore()
    for service in services:
        cache.put(service)
    access.services = lambda: [cache]
    return cache


def test_described_service_has_the_fields_by_which_providers_find_a_load_balancer() -> None:
    described = described_service(entry_of(access_to(FakeBalancers())))

    assert (described.key, described.uid, described.type) == (WEB.key, WEB.uid, "LoadBalancer")
    assert described.annotations == {"lb/size": "large"}


@pytest.mark.row("journal-04")
@pytest.mark.parametrize(
    ("balancers", "finding"),
    [(FakeDigests(), Finding.MARKED), (FakeBalancers(), Finding.UNMARKED)],
    ids=["lists", "cannot list"],
)
async def test_load_balancer_is_found_by_the_service_that_the_entry_describes(
    balancers: FakeBalancers, finding: Finding
) -> None:
    """A lookup may find a load balancer by its name only; a listing has those of the cluster."""
    access = access_to(balancers)
    entry = entry_of(access)
    assert (await access.look(entry)).finding is Finding.ABSENT

    balancers.held[load_balancer_name(WEB.uid)] = ((), ())
    assert (await access.look(entry)).finding is finding

    await access.delete(entry)
    assert (await access.look(entry)).finding is Finding.ABSENT
    assert balancers.calls[-2:] == ["delete", "get"]


async def test_load_balancer_that_no_listing_contains_is_not_proven_ours() -> None:
    class Partial(FakeDigests):
        async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
            return Status()

    access = access_to(Partial())

    assert (await access.look(entry_of(access))).finding is Finding.UNMARKED


async def test_error_of_the_cloud_is_no_absence() -> None:
    balancers = FakeBalancers()
    access = access_to(balancers)
    balancers.faults["get"] = Unavailable("the cloud is down")

    with pytest.raises(Unavailable):
        await access.look(entry_of(access))

    # The described Service may lack the field for which the provider served the former one.
    balancers.faults["get"] = ImplementedElsewhere("another controller")
    with pytest.raises(ImplementedElsewhere):
        await access.look(entry_of(access))


async def test_load_balancer_of_another_name_cannot_be_looked_up() -> None:
    """An annotation with the name was not recorded, so the lookup would find nothing."""
    access = access_to(FakeBalancers())
    entry = msgspec.structs.replace(entry_of(access), intended_name="front")

    look = await access.look(entry)

    assert look.finding is Finding.UNKNOWN
    assert load_balancer_name(WEB.uid) in look.text


class Keyed(FakeDigests):
    """Load balancers with the names of their Services."""

    def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
        return service.name


class Labelled(Keyed):
    """The same, found by the UID of the Service."""

    async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
        return Status() if service.uid == WEB.uid else None


@pytest.mark.row("journal-04", "journal-06")
@pytest.mark.parametrize(
    ("balancers", "heir", "finding"),
    [
        (Keyed, builders.service("web", uid="another"), Finding.TAKEN_OVER),
        (Keyed, builders.service("web", uid="another", type="ClusterIP"), Finding.MARKED),
        (Labelled, builders.service("web", uid="another"), Finding.UNMARKED),
    ],
    ids=["taken over", "no load balancer", "name is taken"],
)
async def test_load_balancer_of_the_name_of_a_living_service_is_not_proven_ours(
    balancers: type[Keyed], heir: Service, finding: Finding
) -> None:
    """A provider that names load balancers itself gave it to a Service that was created anew."""
    balancer = balancers()
    balancer.held["web"] = ((), ())
    access = access_to(balancer)
    living = with_services(access)
    entry = entry_of(access)
    assert (await access.look(entry)).finding is Finding.MARKED

    living.put(heir)
    await advance(LOOKUP_LISTING_AGE_S + 1)
    assert (await access.look(entry)).finding is finding

    del balancer.held["web"]
    if balancers is Keyed:
        assert (await access.look(entry)).finding is Finding.ABSENT


async def test_load_balancer_of_the_owner_itself_is_not_taken_over() -> None:
    balancers = Keyed()
    balancers.held["web"] = ((), ())
    access = access_to(balancers)
    with_services(access, WEB)

    assert (await access.look(entry_of(access))).finding is Finding.UNMARKED


async def test_failed_lookup_for_the_living_service_is_an_error() -> None:
    class Failing(Keyed):
        async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
            if service.uid != WEB.uid:
                raise Unavailable("the cloud is down")
            return Status()

    access = access_to(Failing())
    with_services(access, builders.service("web", uid="another"))

    with pytest.raises(Unavailable):
        await access.look(entry_of(access))


@pytest.mark.row("journal-12")
async def test_listed_load_balancers_of_services_get_entries() -> None:
    balancers = FakeDigests()
    access = access_to(balancers)
    others: Sequence[Service] = (
        builders.service("absent"),
        msgspec.structs.replace(WEB, spec=msgspec.structs.replace(WEB.spec, type="ClusterIP")),
    )
    for name in (load_balancer_name(WEB.uid), "astray"):
        balancers.held[name] = ((), ())

    with_services(access, WEB, others[0])
    (entry,) = await access.listed()

    assert entry.owner.uid == WEB.uid
    assert (entry.state, entry.resource_id) == (EntryState.CREATED, load_balancer_name(WEB.uid))
    with_services(access, others[1])
    assert await access.listed() == []
    with_services(access, builders.service("web", finalizers=[names.FINALIZER_LOAD_BALANCER]))
    assert len(await access.listed()) == 1
