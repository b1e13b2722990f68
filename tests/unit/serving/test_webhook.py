"""Admission webhooks: protocol, status codes, limits, metrics, and decisions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import msgspec
import pytest

from ccm.base import metrics
from ccm.base.tasks import spawn
from ccm.model import Service
from ccm.serving import admission, http
from ccm.serving.admission import MAX_WARNINGS, AnnotationSchema, ServiceAnnotations
from ccm.testing import builders
from tests.unit.serving import test_http
from tests.waiting import DEADLINE_S

JSON = {"Content-Type": "application/json"}
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "u-1", "operation": "CREATE"},
}
BODY = json.dumps(REVIEW).encode()
MALFORMED = json.dumps({**REVIEW, "request": None}).encode()

allow = AsyncMock(return_value=admission.ALLOWED)
deny = AsyncMock(return_value=admission.AdmissionResponse(allowed=False, message="no"))

Ask = Callable[..., Coroutine[Any, Any, tuple[int, str]]]


class Gate:
    """A handler that waits until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = 0
        self.most = 0

    async def __call__(self, request: admission.AdmissionRequest) -> admission.AdmissionResponse:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.open.wait()
        self.inside -= 1
        return admission.ALLOWED

    async def holds(self, number: int) -> None:
        """Wait until this many calls are inside."""
        while self.inside < number:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    *handlers: admission.Handler,
    limits: admission.WebhookLimits | None = None,
    kept: http.BodyLimits = admission.BODY_LIMITS,
    name: str = "test-hook",
) -> AsyncIterator[Ask]:
    """Run a server; yield a function that posts to the first webhook: status and body."""
    hooks = [
        admission.Webhook(name=name if not number else f"{name}-{number}", handle=handler)
        for number, handler in enumerate(handlers)
    ]
    handle = admission.Webhooks(hooks, limits=limits).handle
    async with (
        test_http.serving(handle, bodies=kept) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def ask(
            body: Any = BODY, path: str = f"/{name}", method: str = "POST", **how: Any
        ) -> tuple[int, str]:
            how = {"headers": JSON, **how}
            async with session.request(method, path, data=body, **how) as response:
                return response.status, await response.text()

        yield ask


def counted(name: str, code: str, *, metric: str = "request_total") -> float:
    labels = {"code": code, "webhook": name}
    found = metrics.REGISTRY.get_sample_value(f"cloud_provider_webhook_{metric}", labels)
    return 0.0 if found is None else found


@pytest.mark.row("webhook-serve-01")
async def test_admission_response_has_the_uid_of_the_request() -> None:
    async with serving(allow) as ask:
        status, text = await ask()

    assert status == 200
    assert json.loads(text) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u-1", "allowed": True},
    }


@pytest.mark.row("webhook-serve-01")
async def test_denied_request_gets_a_response_with_the_message() -> None:
    name = "denying"
    async with serving(deny, name=name) as ask:
        status, text = await ask()

    assert status == 200
    assert json.loads(text)["response"]["status"]["message"] == "no"
    denials = metrics.REGISTRY.get_sample_value("ccm_webhook_denials_total", {"webhook": name})
    assert denials == 1


@pytest.mark.row("webhook-serve-02")
@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (BODY, {"Content-Type": "application/json; charset=utf-8"}, "Content-Type"),
        (BODY, {"Content-Type": "text/plain"}, "Content-Type"),
        (b"", JSON, "empty"),
        (b"{", JSON, "not an AdmissionReview"),
        (MALFORMED, JSON, "has no request"),
    ],
    ids=["a parameter", "another type", "empty", "no JSON", "no request"],
)
async def test_malformed_admission_requests_return_400(
    body: bytes, headers: dict[str, str], message: str
) -> None:
    async with serving(allow) as ask:
        status, text = await ask(body, headers=headers)

    assert status == 400
    assert message in text


@pytest.mark.row("webhook-serve-03")
@pytest.mark.parametrize("handler", [AsyncMock(side_effect=RuntimeError), AsyncMock()])
async def test_failing_webhook_returns_500(handler: admission.Handler) -> None:
    """A handler that returns None fails as well."""
    async with serving(handler) as ask:
        status, text = await ask()

    assert status == 500
    assert "webhook test-hook failed" in text


@pytest.mark.row("webhook-metrics-01")
async def test_webhook_requests_are_counted_and_measured() -> None:
    name = "counting"
    async with serving(allow, name=name) as ask:
        assert counted(name, "500") == 0
        await ask()
        await ask()
        await ask(b"")

    assert counted(name, "200") == 2
    assert counted(name, "400") == 1
    assert counted(name, "200", metric="request_duration_seconds_count") == 2
    assert counted(name, "400", metric="request_duration_seconds_count") == 1
    lines = metrics.exposition().decode().splitlines()
    buckets = [line for line in lines if '_bucket{code="200"' in line and f'"{name}"' in line]
    found = [line.split('le="')[1].split('"')[0] for line in buckets]
    assert found == ["0.25", "0.5", "0.7", "1.0", "1.5", "3.0", "5.0", "10.0", "+Inf"]


@pytest.mark.row("webhook-limits-01")
async def test_webhook_body_size_is_limited() -> None:
    async with serving(allow, kept=http.BodyLimits(max_body=len(BODY))) as ask:
        assert (await ask())[0] == 200
        assert (await ask(BODY + b" "))[0] == 413


@pytest.mark.row("webhook-limits-01")
async def test_webhook_body_must_arrive_in_time() -> None:
    answered = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield BODY[:10]
        await answered.wait()
        yield BODY[10:]

    async with serving(allow, limits=admission.WebhookLimits(timeout_s=0.05)) as ask:
        status, text = await ask(slowly())
        answered.set()

    assert status == 408
    assert "in time" in text


@pytest.mark.row("webhook-limits-01")
@pytest.mark.parametrize(
    ("asked", "limit_s"), [("50ms", 10.0), *((text, 0.05) for text in ("1h", "-1s", "soon", ""))]
)
async def test_webhook_times_out_at_the_shorter_of_limit_and_requested_timeout(
    asked: str, limit_s: float
) -> None:
    """The caller cannot extend the limit."""
    async with serving(Gate(), limits=admission.WebhookLimits(timeout_s=limit_s)) as ask:
        status, text = await ask(path=f"/test-hook?timeout={asked}")

    assert status == 500
    assert "timed out" in text


@pytest.mark.row("webhook-limits-01")
async def test_concurrent_webhook_requests_are_limited_and_others_wait() -> None:
    gate = Gate()
    async with serving(gate, limits=admission.WebhookLimits(max_concurrent=2)) as ask:
        asked = [spawn(ask(), name="ask") for _ in range(6)]
        await gate.holds(2)
        gate.open.set()
        answers = await asyncio.gather(*asked)

    assert [status for status, _ in answers] == [200] * 6
    assert gate.most == 2


@pytest.mark.row("webhook-limits-01")
async def test_waiting_webhook_request_returns_503_at_its_timeout() -> None:
    gate = Gate()
    async with serving(gate, limits=admission.WebhookLimits(max_concurrent=1)) as ask:
        first = spawn(ask(), name="ask")
        await gate.holds(1)
        status, text = await ask(path="/test-hook?timeout=300ms")
        gate.open.set()

        assert (status, text) == (503, "too many concurrent requests\n")
        assert (await first)[0] == 200


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


SCHEMA = AnnotationSchema(
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
    new: Any,
    old: Any = None,
    *,
    operation: str = "",
    schema: AnnotationSchema = SCHEMA,
    **facts: Any,
) -> admission.AdmissionResponse:
    request = admission.AdmissionRequest(
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
async def test_service_with_invalid_annotations_is_denied(
    new: Service, old: Service | None, message: str
) -> None:
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
    "no schema": (WRONG, None, {"schema": AnnotationSchema()}),
}


@pytest.mark.row("webhook-annotations-03", "webhook-annotations-04", "webhook-annotations-05")
@pytest.mark.parametrize(("new", "old", "facts"), PASSES.values(), ids=PASSES)
async def test_valid_service_is_allowed_without_warnings(
    new: Any, old: Any, facts: dict[str, Any]
) -> None:
    assert await asked(new, old, **facts) == admission.ALLOWED


@pytest.mark.row("webhook-annotations-02")
async def test_unknown_annotation_with_the_prefix_is_a_warning() -> None:
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


async def test_object_that_is_no_service_is_a_decode_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        await asked({"metadata": {"annotations": 7}})


UPDATE_REVIEW: dict[str, Any] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
        "subResource": "status",
        "requestKind": {"group": "", "version": "v1", "kind": "Service"},
        "operation": "UPDATE",
        "userInfo": {"username": "admin", "groups": ["system:masters"], "extra": {"a": ["b"]}},
        "object": {"kind": "Service", "metadata": {"name": "web"}},
        "oldObject": None,
        "options": None,
    },
}


def decoded(**changes: Any) -> admission.AdmissionRequest:
    return admission.decode(json.dumps({**UPDATE_REVIEW, **changes}).encode())


def answered(answer: admission.AdmissionResponse) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(admission.encode(decoded(), answer))
    return found


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not an AdmissionReview"),
        (b"[]", "not an AdmissionReview"),
        (b"\xff", "not an AdmissionReview"),
        (b"[" * 100_000, "not an AdmissionReview"),
        (b"{}", "expected 'admission.k8s.io/v1'"),
        (
            json.dumps({**UPDATE_REVIEW, "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
            "v1beta1",
        ),
        (json.dumps({**UPDATE_REVIEW, "kind": "Pod"}).encode(), "kind 'Pod'"),
        (json.dumps({**UPDATE_REVIEW, "request": None}).encode(), "has no request"),
        (json.dumps({**UPDATE_REVIEW, "request": {"uid": 1}}).encode(), "uid"),
        (json.dumps({**UPDATE_REVIEW, "request": {}}).encode(), "uid"),
    ],
)
def test_invalid_admission_review_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(admission.InvalidReview, match=message):
        admission.decode(body)


async def test_unknown_annotations_are_compared_only_up_to_the_warning_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def compare(word: str, *_rest: Any, **_more: Any) -> list[str]:
        compared.append(word)
        return []

    monkeypatch.setattr("difflib.get_close_matches", compare)
    strangers = {f"{PREFIX}{number}{'x' * 1000}": "x" for number in range(1000)}

    assert (await asked(service(strangers))).allowed
    assert len(compared) == MAX_WARNINGS
    assert max(len(word) for word in compared) < 1000


async def test_denied_service_also_gets_a_limited_number_of_warnings() -> None:
    strangers = {f"{PREFIX}q{number}": "x" for number in range(100)}

    answer = await asked(service({SIZE: "huge", **strangers}))

    assert not answer.allowed
    assert len(answer.warnings) == MAX_WARNINGS


async def test_unchanged_invalid_annotation_is_only_a_warning() -> None:
    before = service({SIZE: "huge", COLOUR: "green"})

    answer = await asked(service({SIZE: "huge", COLOUR: "red"}), before)

    assert answer.allowed
    assert answer.warnings == (HUGE,)


async def test_slow_senders_do_not_take_webhook_slots() -> None:
    """There are more slow senders than slots."""
    begun, end = 0, asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        nonlocal begun
        yield BODY[:10]
        begun += 1
        await end.wait()
        yield BODY[10:]

    limits = admission.WebhookLimits(max_concurrent=2, timeout_s=DEADLINE_S)
    patient = http.BodyLimits(timeout_s=DEADLINE_S)
    async with serving(allow, limits=limits, kept=patient) as ask:
        slow = [spawn(ask(slowly()), name="slow") for _ in range(3)]
        while begun < len(slow):
            await asyncio.sleep(0.01)
        assert (await ask())[0] == 200
        end.set()

        assert [status for status, _ in await asyncio.gather(*slow)] == [200] * 3


async def test_disconnected_caller_frees_its_webhook_slot() -> None:
    gate = Gate()
    async with serving(gate, limits=admission.WebhookLimits(max_concurrent=1)) as ask:
        lost = spawn(ask(), name="ask")
        await gate.holds(1)
        lost.cancel()
        gate.open.set()

        assert (await ask())[0] == 200
