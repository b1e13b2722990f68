"""Bootstrap tokens: whose they are, and how long they live."""

from __future__ import annotations

import base64

import pytest

from ccm.cloud import errors
from ccm.machines import tokens
from ccm.testing.clock import advance
from tests.unit.controllers.machines import (
    TOKENS,
    World,
)

pytestmark = pytest.mark.virtual_time


async def test_a_token_of_somebody_else_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.ready_class()
    ids = iter(["aaaaaa", "bbbbbb"])
    monkeypatch.setattr(tokens, "new_id", lambda _choose: next(ids))
    data = {"description": "x", "token-secret": "s", "expiration": "2099-01-01T00:00:00Z"}
    theirs = {"metadata": {"name": "bootstrap-token-aaaaaa"}, "stringData": data}
    world.server.put(TOKENS, theirs)
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        world.node()
        await advance(1)

    assert world.phase() == "Running"
    assert [one["metadata"]["name"] for one in world.server.list(TOKENS)] == [
        "bootstrap-token-aaaaaa"
    ]


@pytest.mark.row("machine-userdata-05")
@pytest.mark.parametrize("of_secret", ["", "<<BOOTSTRAP_TOKEN>>"])
async def test_user_data_of_a_spec_are_filled_in_too(of_secret: str) -> None:
    world = World()
    world.secret(userData=of_secret)
    given = {"size": "small", "userData": "<<MACHINE_NAME>> <<BOOTSTRAP_TOKEN>>"}
    world.machine_class(providerSpec=given)
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)

    request = world.driver.given["create_machine"]
    name, _, token = request.provider_spec["userData"].partition(" ")
    assert (name, request.provider_spec["size"]) == ("m0", "small")
    assert len(token) == len("aaaaaa.bbbbbbbbbbbbbbbb")
    assert request.user_data.decode() == (token if of_secret else "")
    assert len(world.server.list(TOKENS)) == 1


async def test_a_token_is_used_again_by_the_next_try() -> None:
    world = World()
    world.ready_class()
    world.driver.faults["create_machine"] = [errors.Unavailable("x"), None]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        first = world.driver.given["create_machine"].user_data
        await advance(10)

    assert world.driver.calls["create_machine"] == 2
    assert world.driver.given["create_machine"].user_data == first
    assert len(world.server.list(TOKENS)) == 1


async def test_a_token_that_has_expired_lives_on_with_the_next_try() -> None:
    world = World(exhausted_retry_s=3600.0)
    world.ready_class()
    world.driver.faults["create_machine"] = [errors.ResourceExhausted("x")]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        before = expiration(world)
        await advance(3600 * 1.3)

    assert world.driver.calls["create_machine"] == 2
    assert expiration(world) > before


def expiration(world: World) -> str:
    (token,) = world.server.list(TOKENS)
    return base64.b64decode(token["data"]["expiration"]).decode()
