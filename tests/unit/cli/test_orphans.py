"""`kube-ccm orphans` where Services or the provider leave something open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from ccm.cli import orphans
from ccm.cloud import Cloud
from ccm.cloud.calls.handle import Handle
from ccm.kube.client import Page
from ccm.model import Service
from tests.support.services import FakeDigests


def case(*unreadable: str) -> Any:
    async def pages() -> AsyncIterator[Page[Service]]:
        yield Page(items=[], resource_version="1", malformed_keys=unreadable)

    return SimpleNamespace(client=SimpleNamespace(resource=lambda _: SimpleNamespace(pages=pages)))


def handle() -> Handle:
    balancers = FakeDigests()
    balancers.held = {"aleft": ((), ())}
    return Handle(Cloud(name="fake", load_balancer=balancers))


async def test_services_that_cannot_be_decoded_may_own_what_seems_to_have_no_owner() -> None:
    assert [one.name for one in await orphans._orphans(case(), handle())] == ["aleft"]
    with pytest.raises(orphans.Refused, match="default/web, one without a name"):
        await orphans._orphans(case("default/web", ""), handle())


async def test_a_provider_that_cannot_delete_by_name_is_no_reason_to_despair() -> None:
    found = await orphans._orphans(case(), handle())
    with pytest.raises(orphans.Refused, match="with the tools of the cloud"):
        await orphans._delete(handle(), "aleft", found)
