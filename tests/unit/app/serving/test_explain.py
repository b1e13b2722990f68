"""`/explain`: what is asked for, and what a daemon says that does not lead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from multidict import MultiDict

from ccm.app import health, options
from ccm.app.health import (
    Vitals,
)
from ccm.cloud.errors import Unauthenticated
from ccm.runtime.account import Answer


async def asked(vitals: Vitals, **query: str) -> Any:
    chosen = options.parse(["--cloud-provider=sim"])
    request: Any = SimpleNamespace(query=MultiDict(query))
    return await health.page(chosen, vitals)(request)


@pytest.mark.parametrize(
    "query", [{}, {"kind": "node"}, {"name": "x"}, {"kind": "pod", "name": "x"}]
)
async def test_an_object_has_to_be_named(query: dict[str, str]) -> None:
    answer = await asked(Vitals(), **query)

    assert answer.status == 400
    assert answer.body.startswith(b"say which object: /explain?kind=node&name=NAME")


async def test_a_standby_says_why_it_does_not_lead() -> None:
    vitals = Vitals()
    vitals.not_opened(Unauthenticated("401"))

    answer = await asked(vitals, kind="service", name="default/web")

    found = msgspec.json.decode(answer.body, type=Answer)
    assert found == Answer(
        kind="service",
        name="default/web",
        provider="sim",
        opening="the provider cannot be opened: 401",
    )
