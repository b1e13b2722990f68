"""Bootstrap tokens: whose they are, and how long they live."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest

from ccm.base import redact
from ccm.controllers.machine.tokens import MOST_KNOWN, Tokens
from ccm.gardener import decoding, names
from ccm.gardener.types import Machine
from ccm.machines import reasons
from ccm.model.meta import ObjectMeta
from ccm.testing.clock import advance
from tests.unit.controllers.machines import TOKENS, World

pytestmark = pytest.mark.virtual_time

ID = {names.ANNOTATION_TOKEN_ID: "aaaaaa"}
RULES: dict[str, Any] = {
    "unhealthy_conditions": reasons.SICK_CONDITIONS,
    "exhausted_retry_s": 600.0,
}


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


def test_redaction_knows_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Tokens(cast("Any", None))
    for number in range(MOST_KNOWN + 1):
        one = Machine(metadata=ObjectMeta(name="m", uid=str(number)))
        held._hold(decoding.machine(one), f"secret-number-{number:03d}")

    assert redact.words("secret-number-000") == "secret-number-000"
    assert redact.words("secret-number-001") == redact.MASK


def expiration(world: World) -> str:
    (token,) = world.server.list(TOKENS)
    return base64.b64decode(token["data"]["expiration"]).decode()
