"""What a provider offers, read in its source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import providers.sim
from ccm import cloud
from ccm.cloud import Cloud
from ccm.doctor import sources
from providers.sim import service_annotations

PREFIXES = ("one/", "two/")


class Instances:
    """Offers nothing; only its presence counts."""


@cloud.provider(sdk="1.0")
async def plain(context: cloud.Context) -> AsyncIterator[Cloud]:
    made: Any = Instances()
    yield Cloud(name="plain", instances=made, routes=None, service_annotations=PREFIXES)


@cloud.provider(sdk="1.0")
async def undecided(context: cloud.Context) -> AsyncIterator[Cloud]:
    if context.config:
        yield Cloud(name="one")
    else:
        yield Cloud(name="other")


@cloud.provider(sdk="1.0")
async def hidden(context: cloud.Context) -> AsyncIterator[Cloud]:
    facts: dict[str, Any] = {"name": "hidden"}
    yield Cloud(**facts)


def test_constants_are_resolved_and_the_rest_is_unknown() -> None:
    told = sources.read(plain)

    assert told == {
        "name": "plain",
        "instances": sources.UNKNOWN,
        "routes": None,
        "service_annotations": PREFIXES,
    }


def test_constants_of_other_modules_are_resolved() -> None:
    told = sources.read(providers.sim.open_cloud)

    assert told is not None
    assert told["service_annotation_schema"] is service_annotations.SCHEMA
    assert told["service_annotations"][0] == service_annotations.PREFIX


def test_a_source_that_does_not_tell_is_not_guessed() -> None:
    assert sources.read(undecided) is None
    assert sources.read(hidden) is None
