"""Which calls to the cloud a stop lets come to their end."""

from __future__ import annotations

import pytest

from ccm.app.careful import CarefulGuard
from ccm.base.drain import Drain
from ccm.cloud.interface import Cloud
from ccm.cloud.types import OPERATIONS


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
async def test_what_changes_something_is_waited_for(operation: str) -> None:
    stopping = Drain()
    stopping.govern()

    async def waited_for(_: Cloud) -> bool:
        return stopping.under_way == 1

    changes = operation.startswith(("create", "delete", "ensure", "update"))
    assert await CarefulGuard(Cloud(name="acme")).call(operation, waited_for) is changes
