"""Which writes of a Service the annotation webhook refuses, warns about and lets through."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from ccm.model import Service
from ccm.serving import admission
from ccm.serving.admission_annotations import MOST_WARNINGS, Schema, ServiceAnnotations
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


@pytest.mark.parametrize(
    "annotations",
    [None, {SIZE: "small"}, {SIZE: "large", COLOUR: "red"}, {RANGES: "x"}, {"other.io/size": "x"}],
    ids=["none", "a good value", "two", "known by its whole name", "somebody else's"],
)
async def test_good_annotations_pass_without_a_word(annotations: dict[str, str] | None) -> None:
    assert await asked(service(annotations)) == admission.ALLOWED


@pytest.mark.row("webhook-annotations-01")
async def test_every_wrong_value_is_named_in_one_refusal() -> None:
    answer = await asked(service({SIZE: "huge", COLOUR: "green"}))

    assert not answer.allowed
    assert answer.code == 403
    assert answer.message == (
        f"{SIZE}: 'huge'; expected small or large; {COLOUR}: 'green'; expected red or blue"
    )


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


@pytest.mark.row("webhook-annotations-03")
@pytest.mark.parametrize("spec", [{"type": "ClusterIP"}, {"type": "NodePort"}])
async def test_a_service_that_is_not_served_passes(spec: dict[str, str]) -> None:
    assert await asked(service({SIZE: "huge"}, **spec)) == admission.ALLOWED


@pytest.mark.row("webhook-annotations-04")
async def test_a_service_that_is_served_from_now_on_is_checked_whole() -> None:
    before = service({SIZE: "huge"}, type="ClusterIP")

    answer = await asked(service({SIZE: "huge"}), before)

    assert not answer.allowed


@pytest.mark.row("webhook-annotations-04")
@pytest.mark.parametrize(
    "new",
    [
        service({SIZE: "huge"}, external_traffic_policy="Local"),
        builders.service(annotations={SIZE: "huge"}, finalizers=["a/b"]),
        service({SIZE: "huge", "other.io/x": "y"}),
        service(),
    ],
    ids=["the spec", "finalizers", "other annotations", "the wrong one is taken away"],
)
async def test_a_service_that_was_wrong_already_can_change(new: Service) -> None:
    assert await asked(new, service({SIZE: "huge"})) == admission.ALLOWED


async def test_what_stays_wrong_beside_a_change_is_a_warning() -> None:
    before = service({SIZE: "huge", COLOUR: "green"})

    answer = await asked(service({SIZE: "huge", COLOUR: "red"}), before)

    assert answer.allowed
    assert answer.warnings == (f"{SIZE}: 'huge'; expected small or large",)


async def test_a_wrong_value_may_not_be_exchanged_for_another() -> None:
    answer = await asked(service({SIZE: "giant"}), service({SIZE: "huge"}))

    assert "'giant'" in answer.message
    assert not answer.allowed


@pytest.mark.row("webhook-annotations-05")
@pytest.mark.parametrize(
    "facts",
    [
        {"operation": "DELETE"},
        {"operation": "CONNECT"},
        {"sub_resource": "status"},
        {"kind": admission.GroupVersionKind(version="v1", kind="Node")},
        {"kind": admission.GroupVersionKind(group="acme.example", version="v1", kind="Service")},
    ],
    ids=["delete", "connect", "status", "another kind", "the same name in another group"],
)
async def test_other_requests_pass(facts: dict[str, Any]) -> None:
    assert await asked(service({SIZE: "huge"}), **facts) == admission.ALLOWED


@pytest.mark.row("webhook-annotations-05")
async def test_a_service_being_deleted_passes() -> None:
    new = json.loads(msgspec.json.encode(service({SIZE: "huge"})))
    new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert await asked(new, service()) == admission.ALLOWED


async def test_a_provider_without_a_schema_refuses_nothing() -> None:
    answer = await asked(service({SIZE: "huge"}), schema=Schema())

    assert answer == admission.ALLOWED


async def test_an_object_that_is_no_service_is_the_callers_mistake() -> None:
    with pytest.raises(msgspec.DecodeError):
        await asked({"metadata": {"annotations": 7}})


async def test_the_schema_of_now_counts() -> None:
    """A provider that was opened anew may bring another schema."""
    schemas = [SCHEMA, Schema(rules=(OneOf(SIZE, "huge"),), prefixes=(PREFIX,))]
    webhook = ServiceAnnotations(lambda: schemas[0], concerns)
    request = admission.Request(
        uid="u", kind=SERVICE, operation="CREATE", object=raw(service({SIZE: "huge"}))
    )

    first = await webhook(request)
    schemas.pop(0)
    second = await webhook(request)

    assert not first.allowed
    assert second.allowed
