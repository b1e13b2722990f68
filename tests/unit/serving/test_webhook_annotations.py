"""Which writes of a Service the annotation webhook refuses, warns about and lets through."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from ccm.model import Service
from ccm.serving import admission
from ccm.serving.admission import MOST_WARNINGS, Schema, ServiceAnnotations
from ccm.testing import builders

PREFIX = "lb.acme.example/"
SIZE, COLOUR = PREFIX + "size", PREFIX + "colour"
RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"
SERVICE = admission.GroupVersionKind(version="v1", kind="Service")


class OneOf:
    def __init__(self, name: str, *values: str) -> None:
        self.name = name
        self._values = values

    def fault(self, text: str) -> str:
        expected = " or ".join(self._values)
        return "" if text in self._values else f"{self.name}: {text!r}; expected {expected}"


SCHEMA = Schema(
    rules=(OneOf(SIZE, "small", "large"), OneOf(COLOUR, "red", "blue")), prefixes=(PREFIX, RANGES)
)


def concerns(service: Service) -> bool:
    return service.type == "LoadBalancer"


def raw(service: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(service))


def service(annotations: Mapping[str, str] | None = None, **spec: Any) -> Service:
    return builders.service(annotations=annotations, **spec)


HUGE = f"{SIZE}: 'huge'; expected small or large"
DYING = json.loads(msgspec.json.encode(service({SIZE: "huge"})))
DYING["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


async def asked(
    new: Any, old: Any = None, *, operation: str = "", schema: Schema = SCHEMA, **facts: Any
) -> admission.Answer:
    request = admission.Request(
        uid="u",
        operation=operation or ("CREATE" if old is None else "UPDATE"),
        object=raw(new),
        old_object=raw(old),
        **{"kind": SERVICE, **facts},
    )
    return await ServiceAnnotations(lambda: schema, concerns)(request)


@pytest.mark.row("webhook-annotations-01")
@pytest.mark.row("webhook-annotations-04")
@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        (
            service({SIZE: "huge", COLOUR: "green"}),
            None,
            f"{HUGE}; {COLOUR}: 'green'; expected red or blue",
        ),
        (service({SIZE: "huge"}), service({SIZE: "huge"}, type="ClusterIP"), HUGE),
        (
            service({SIZE: "giant"}),
            service({SIZE: "huge"}),
            f"{SIZE}: 'giant'; expected small or large",
        ),
    ],
    ids=["every wrong value is named", "served from now on", "exchanged for another"],
)
async def test_refused(new: Service, old: Service | None, message: str) -> None:
    answer = await asked(new, old)

    assert (answer.allowed, answer.code, answer.message) == (False, 403, message)


WRONG = service({SIZE: "huge"})
PASSES: Mapping[str, tuple[Any, Any, dict[str, Any]]] = {
    "no annotation": (service(), None, {}),
    "a good value": (service({SIZE: "small"}), None, {}),
    "two good values": (service({SIZE: "large", COLOUR: "red"}), None, {}),
    "known by its whole name": (service({RANGES: "x"}), None, {}),
    "somebody else's": (service({"other.io/size": "x"}), None, {}),
    "not served": (service({SIZE: "huge"}, type="ClusterIP"), None, {}),
    "wrong already, the spec changes": (
        service({SIZE: "huge"}, external_traffic_policy="Local"),
        WRONG,
        {},
    ),
    "wrong already, finalizers change": (service({SIZE: "huge"}, finalizers=["a/b"]), WRONG, {}),
    "wrong already, others change": (service({SIZE: "huge", "other.io/x": "y"}), WRONG, {}),
    "the wrong one is taken away": (service(), WRONG, {}),
    "being deleted": (DYING, service(), {}),
    "a deletion": (WRONG, None, {"operation": "DELETE"}),
    "a connection": (WRONG, None, {"operation": "CONNECT"}),
    "status": (WRONG, None, {"sub_resource": "status"}),
    "another kind": (WRONG, None, {"kind": msgspec.structs.replace(SERVICE, kind="Node")}),
    "another group": (WRONG, None, {"kind": msgspec.structs.replace(SERVICE, group="acme.io")}),
    "no schema": (WRONG, None, {"schema": Schema()}),
}


@pytest.mark.row("webhook-annotations-03", "webhook-annotations-04", "webhook-annotations-05")
@pytest.mark.parametrize(("new", "old", "facts"), PASSES.values(), ids=PASSES)
async def test_what_passes_without_a_word(new: Any, old: Any, facts: dict[str, Any]) -> None:
    assert await asked(new, old, **facts) == admission.ALLOWED


@pytest.mark.row("webhook-annotations-02")
async def test_an_unknown_name_below_the_prefix_is_a_warning() -> None:
    close = await asked(service({PREFIX + "sise": "small"}))
    far = await asked(service({PREFIX + "qqq": "x"}))

    assert close.allowed
    assert far.allowed
    assert close.warnings == (
        f"annotation {PREFIX}sise is unknown and has no effect; did you mean {SIZE}?",
    )
    assert far.warnings == (
        f"annotation {PREFIX}qqq is unknown and has no effect; known: {COLOUR}, {SIZE}",
    )


async def test_warnings_come_with_a_refusal_too_and_have_a_limit() -> None:
    strangers = {f"{PREFIX}q{number}": "x" for number in range(100)}

    answer = await asked(service({SIZE: "huge", **strangers}))

    assert not answer.allowed
    assert len(answer.warnings) == MOST_WARNINGS


async def test_names_that_mean_nothing_cost_no_more_than_the_warnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def compare(word: str, *_rest: Any, **_more: Any) -> list[str]:
        compared.append(word)
        return []

    monkeypatch.setattr("difflib.get_close_matches", compare)
    strangers = {f"{PREFIX}{number}{'x' * 1000}": "x" for number in range(1000)}

    assert (await asked(service(strangers))).allowed
    assert len(compared) == MOST_WARNINGS
    assert max(len(word) for word in compared) < 1000


async def test_what_stays_wrong_beside_a_change_is_a_warning() -> None:
    before = service({SIZE: "huge", COLOUR: "green"})

    answer = await asked(service({SIZE: "huge", COLOUR: "red"}), before)

    assert answer.allowed
    assert answer.warnings == (HUGE,)


async def test_an_object_that_is_no_service_is_the_callers_mistake() -> None:
    with pytest.raises(msgspec.DecodeError):
        await asked({"metadata": {"annotations": 7}})


async def test_the_schema_of_now_counts() -> None:
    """A provider that was opened anew may bring another schema."""
    schemas = iter([SCHEMA, Schema(rules=(OneOf(SIZE, "huge"),), prefixes=(PREFIX,))])
    webhook = ServiceAnnotations(lambda: next(schemas), concerns)
    request = admission.Request(uid="u", kind=SERVICE, operation="CREATE", object=raw(WRONG))

    assert [(await webhook(request)).allowed for _ in range(2)] == [False, True]
