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


@pytest.mark.row("journal-04")
async def test_load_balancer_of_the_name_of_a_living_service_is_not_proven_ours() -> None:
    """A provider that names load balancers itself gave it to a Service that was created anew."""

    class Named(FakeDigests):
        def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
            return service.name

        async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
            return Status()

    balancers, living = Named(), list[Service]()
    balancers.held["web"] = ((), ())
    access = access_to(balancers)
    access.services = lambda: living
    entry = entry_of(access)
    assert (await access.look(entry)).finding is Finding.MARKED

    living.append(builders.service("web", uid="another"))
    await advance(LOOKUP_LISTING_AGE_S + 1)
    assert (await access.look(entry)).finding is Finding.UNMARKED


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

    (entry,) = await access.listed([WEB, others[0]])

    assert entry.owner.uid == WEB.uid
    assert (entry.state, entry.resource_id) == (EntryState.CREATED, load_balancer_name(WEB.uid))
    assert await access.listed([others[1]]) == []
    kept = builders.service("web", finalizers=[names.FINALIZER_LOAD_BALANCER])
    assert len(await access.listed([kept])) == 1
