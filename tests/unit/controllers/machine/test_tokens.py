"""Bootstrap tokens: whose they are, and how long they live."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from ccm.base import redact
from ccm.cloud import errors
from ccm.cloud.calls.handle import Handle
from ccm.cloud.machines import MachineRequest
from ccm.controllers.machine.tokens import MOST_KNOWN, Tokens
from ccm.gardener import decoding, names
from ccm.gardener.decoding import NAMES
from ccm.gardener.types import Machine
from ccm.kube.errors import Forbidden, Invalid
from ccm.kube.resources import SECRETS
from ccm.machines import reasons, tokens
from ccm.machines.settings import Settings
from ccm.model.meta import ObjectMeta
from ccm.testing.clock import advance
from tests.unit.controllers.machines import TOKENS, World

pytestmark = pytest.mark.virtual_time

ID = {names.ANNOTATION_TOKEN_ID: "aaaaaa"}
RULES: dict[str, Any] = {
    "unhealthy_conditions": reasons.SICK_CONDITIONS,
    "exhausted_retry_s": 600.0,
}


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
        world.machine(metadata={"annotations": ID})
        await advance(1)

    assert world.driver.calls["create_machine"] == 1
    assert len(world.server.list(TOKENS)) == 2


async def test_a_token_is_known_to_redaction_while_it_lives() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        data = world.driver.given["create_machine"].user_data.decode()
        token = data.rpartition("token: ")[2].strip()
        alone = token.partition(".")[2]
        assert redact.words(f"bad token {token}") == f"bad token {token[:7]}{redact.MASK}"
        assert alone not in redact.words(f"bad token {alone}")
        world.node()
        await advance(1)

    assert world.phase() == "Running"
    assert redact.words(f"bad token {alone}") == f"bad token {alone}"
    assert token not in redact.words(f"bad token {token}")


async def test_a_refused_token_is_shown_to_nobody() -> None:
    """An admission webhook quotes what it refuses."""
    seen: list[str] = []

    class Refusing:
        async def create(self, obj: Any, *, namespace: str) -> Any:
            seen.append(obj["stringData"]["token-secret"])
            raise Invalid(status=422, reason="Invalid", message=f"bad: {seen[0]} in {namespace}")

    machine = decoding.machine(Machine(metadata=ObjectMeta(name="m0", uid="u", annotations=ID)))
    with pytest.raises(Invalid) as caught:
        await Tokens(cast("Any", Refusing())).ensure(
            machine, Settings(names=NAMES, cluster="ours", **RULES)
        )

    assert seen[0] not in redact.words(str(caught.value))


def test_redaction_knows_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Tokens(cast("Any", None))
    for number in range(MOST_KNOWN + 1):
        one = Machine(metadata=ObjectMeta(name="m", uid=str(number)))
        held._hold(decoding.machine(one), f"secret-number-{number:03d}")

    assert redact.words("secret-number-000") == "secret-number-000"
    assert redact.words("secret-number-001") == redact.MASK


def test_each_new_token_has_the_form_that_redaction_knows() -> None:
    for _ in range(2000):
        token = f"{tokens.new_id(secrets.choice)}.{tokens.new_secret(secrets.choice)}"
        assert redact.words(token) == redact.MASK


@pytest.mark.parametrize("of_secret", [True, False])
async def test_a_cloud_that_quotes_user_data_shows_them_to_nobody(of_secret: bool) -> None:
    world = World()
    data = "#cloud-config\ntoken: <<BOOTSTRAP_TOKEN>>\npassword-of-root is swordfish-no-more\n"
    world.secret(userData=data if of_secret else "")
    spec = {"size": "small"} | ({} if of_secret else {"userData": data})
    world.machine_class(providerSpec=spec)
    quoted: list[str] = []

    async def quoting(req: MachineRequest) -> Any:
        filled = (req.user_data or req.provider_spec["userData"].encode()).decode()
        quoted.append(filled)
        packed = base64.b64encode(filled.encode()).decode()
        raise errors.InvalidArgument(f"rejected {filled!r}, {filled}, {packed} and {filled[9:52]}")

    world.driver.create_machine = quoting  # type: ignore[method-assign]
    with capture_logs() as logs:
        async with world.running("machine", "machineclass"):
            world.machine()
            await advance(1)
            assert world.shared is not None
            handle = cast("Handle", world.shared.driver.caller)
            calls = handle.history.of(("machine", "m0"))
            everything = f"{world.get()} {world.events} {logs} {calls}"

    token = quoted[0].partition("token: ")[2].partition("\n")[0]
    assert "rejected" in world.operation()["description"]
    assert "rejected" in calls[-1].text
    for piece in (token, token[7:], "swordfish", base64.b64encode(token[1:].encode()).decode()[4:]):
        assert piece not in everything


def expiration(world: World) -> str:
    (token,) = world.server.list(TOKENS)
    return base64.b64decode(token["data"]["expiration"]).decode()


async def test_a_secret_that_took_the_name_of_a_token_stays() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        (made,) = world.server.list(TOKENS)
        name = made["metadata"]["name"]
        world.server.drop(f"{TOKENS}/{name}")
        world.server.put(TOKENS, {"metadata": {"name": name}, "stringData": {"a": "b"}})
        world.node(providerID="fake:///0")
        await advance(1)

    assert world.phase() == "Running"
    assert [one["metadata"]["name"] for one in world.server.list(TOKENS)] == [name]


async def test_a_token_that_this_process_made_is_deleted_without_a_read() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        path = world.machine()
        await advance(1)
        world.server.requests.clear()
        world.node(providerID="fake:///0")
        await advance(1)
        world.server.drop(path)
        await advance(60)

    asked = [method for method, path in world.server.requests if path.startswith(TOKENS)]
    assert (world.get(), asked) == ({}, ["DELETE"])


async def test_a_token_that_was_found_again_is_deleted_though_one_was_before() -> None:
    """The answer to its creation was lost, and a former token of the machine had served."""
    world = World()
    world.ready_class()
    api = Tokens(world.server.client().resource(SECRETS))
    owner = decoding.machine(Machine(metadata=ObjectMeta(name="m0", uid="u", annotations=ID)))
    rules = Settings(names=NAMES, cluster="ours", **RULES)
    await api.ensure(owner, rules)
    await api.delete(owner, rules)
    await Tokens(world.server.client().resource(SECRETS)).ensure(owner, rules)

    await api.ensure(owner, rules)
    await api.delete(owner, rules)

    assert world.server.list(TOKENS) == []
