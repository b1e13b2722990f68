"""Events of the whole daemon: when they are still delivered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ccm.app.clients import (
    Events,
)
from ccm.model import Event
from ccm.model.meta import ObjectReference
from ccm.model.names import NORMAL
from ccm.testing.clock import settle

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("lost", [True, False])
async def test_a_leader_that_lost_its_lease_tells_nobody(lost: bool) -> None:
    written: list[str] = []

    async def create(obj: Event, *, namespace: str) -> Event:
        written.append(f"{namespace}: {obj.message}")
        return obj

    client: Any = SimpleNamespace(resource=lambda _: SimpleNamespace(create=create))
    async with Events(client) as events:
        about = ObjectReference(kind="Service", name="web", namespace="blue")
        events.recorder("test").event(about, NORMAL, "Ensured", "it has an address")
        if lost:
            events.abandon()
            await settle()

    assert written == ([] if lost else ["blue: it has an address"])
