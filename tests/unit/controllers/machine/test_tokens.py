"""Bootstrap tokens: whose they are, and how long they live."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from ccm.cloud import errors
from ccm.gardener.names import ANNOTATION_TOKEN_ID
from ccm.kube.errors import Forbidden
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


def refusing(*methods: str) -> Callable[[str, str], Exception | None]:
    """Return what refuses requests about tokens with these methods."""
    error = Forbidden(status=403, reason="Forbidden", message="no Secrets for you")
    return lambda method, path: error if method in methods and path.startswith(TOKENS) else None


async def test_no_right_to_read_secrets_of_the_namespace_is_needed() -> None:
    """A token is made, found again, and deleted by writes alone, which a policy can look at."""
    world = World()
    world.ready_class()
    world.driver.faults["create_machine"] = [errors.Unavailable("x"), None]
    world.server.refuse = refusing("GET")
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(10)
        world.node()
        await advance(1)

    assert (world.phase(), world.server.list(TOKENS)) == ("Running", [])


async def test_without_the_right_to_write_tokens_the_error_says_what_grants_it() -> None:
    world = World()
    world.ready_class()
    world.server.refuse = refusing("POST")
    with capture_logs() as lines:
        async with world.running("machine", "machineclass"):
            world.machine()
            await advance(1)

    told = [line["error"] for line in lines if line["event"] == "reconcile failed"]
    assert "kube-system/bootstrap-token-" in told[0]
    assert f"no Secrets for you; {tokens.GRANT}" in told[0]
    assert world.driver.calls["create_machine"] == 0


async def test_a_token_that_may_not_be_deleted_holds_up_neither_joining_nor_deletion() -> None:
    """As after the right was taken away: the token expires by itself."""
    world = World()
    world.ready_class()
    with capture_logs() as lines:
        async with world.running("machine", "machineclass"):
            path = world.machine()
            await advance(1)
            world.server.refuse = refusing("PATCH", "DELETE")
            world.node()
            await advance(1)
            assert world.phase() == "Running"
            world.server.drop(path)
            await advance(60)

    assert (world.get(), world.driver.vms) == ({}, {})
    assert [line["machine"] for line in lines if line["event"] == "bootstrap token not deleted"]


async def test_a_token_that_a_policy_hides_is_not_the_machines() -> None:
    world = World()
    world.ready_class()
    data = {"description": "x", "token-secret": "s", "expiration": "2099-01-01T00:00:00Z"}
    theirs = {"metadata": {"name": "bootstrap-token-aaaaaa"}, "stringData": data}
    world.server.put(TOKENS, theirs)
    hidden = refusing("PATCH")
    world.server.refuse = lambda method, path: (
        hidden(method, path) if path.endswith("-aaaaaa") else None
    )
    async with world.running("machine", "machineclass"):
        world.machine(metadata={"annotations": {ANNOTATION_TOKEN_ID: "aaaaaa"}})
        await advance(1)

    assert world.driver.calls["create_machine"] == 1
    assert len(world.server.list(TOKENS)) == 2


def expiration(world: World) -> str:
    (token,) = world.server.list(TOKENS)
    return base64.b64decode(token["data"]["expiration"]).decode()
