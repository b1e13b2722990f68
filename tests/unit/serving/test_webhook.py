"""The webhook server: status codes, limits and metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from structlog.testing import capture_logs

from ccm.base import metrics
from ccm.base.tasks import spawn
from ccm.serving import admission, http
from ccm.serving.handler_chain import BURST
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
deny = AsyncMock(return_value=admission.Answer(allowed=False, message="no"))

Ask = Callable[..., Coroutine[Any, Any, tuple[int, str]]]


class Gate:
    """A handler that waits until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = 0
        self.most = 0

    async def __call__(self, request: admission.Request) -> admission.Answer:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.open.wait()
        self.inside -= 1
        return admission.ALLOWED

    async def holds(self, number: int) -> None:
        """Wait until so many are inside."""
        while self.inside < number:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    *handlers: admission.Handler,
    limits: admission.Limits | None = None,
    kept: http.Limits = admission.BODIES,
    name: str = "test-hook",
) -> AsyncIterator[Ask]:
    """A server; a function that posts to the first webhook: status and body."""
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
async def test_a_request_is_answered_with_its_uid() -> None:
    async with serving(allow) as ask:
        status, text = await ask()

    assert status == 200
    assert json.loads(text) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u-1", "allowed": True},
    }


@pytest.mark.row("webhook-serve-01")
async def test_a_refusal_is_an_answer_too() -> None:
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
        (b"{", JSON, "no AdmissionReview"),
        (MALFORMED, JSON, "has no request"),
    ],
    ids=["a parameter", "another type", "empty", "no JSON", "no request"],
)
async def test_what_is_not_understood_is_the_callers_fault(
    body: bytes, headers: dict[str, str], message: str
) -> None:
    async with serving(allow) as ask:
        status, text = await ask(body, headers=headers)

    assert status == 400
    assert message in text


@pytest.mark.row("webhook-serve-03")
@pytest.mark.parametrize("handler", [AsyncMock(side_effect=RuntimeError), AsyncMock()])
async def test_a_webhook_that_fails_is_our_fault(handler: admission.Handler) -> None:
    """Also by giving no answer at all."""
    async with serving(handler) as ask:
        status, text = await ask()

    assert status == 500
    assert "webhook test-hook failed" in text


async def test_other_paths_and_methods() -> None:
    async with serving(allow, deny) as ask:
        assert (await ask(path="/other"))[0] == 404
        assert (await ask(path="/test-hook/"))[0] == 404
        assert (await ask(method="GET"))[0] == 405
        assert (await ask(path="/test-hook-1"))[0] == 200


@pytest.mark.row("webhook-metrics-01")
async def test_every_answer_is_counted_and_measured() -> None:
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
async def test_a_body_may_not_be_endless() -> None:
    async with serving(allow, kept=http.Limits(each=len(BODY))) as ask:
        assert (await ask())[0] == 200
        assert (await ask(BODY + b" "))[0] == 413


@pytest.mark.row("webhook-limits-01")
async def test_a_caller_may_not_send_for_ever() -> None:
    answered = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield BODY[:10]
        await answered.wait()
        yield BODY[10:]

    async with serving(allow, limits=admission.Limits(timeout_s=0.05)) as ask:
        status, text = await ask(slowly())
        answered.set()

    assert status == 408
    assert "in time" in text


async def test_who_sends_slowly_keeps_nobody_waiting() -> None:
    """As many as could be decided at once."""
    begun, end = 0, asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        nonlocal begun
        yield BODY[:10]
        begun += 1
        await end.wait()
        yield BODY[10:]

    limits = admission.Limits(at_once=2, timeout_s=DEADLINE_S)
    patient = http.Limits(patience_s=DEADLINE_S)
    async with serving(allow, limits=limits, kept=patient) as ask:
        slow = [spawn(ask(slowly()), name="slow") for _ in range(3)]
        while begun < len(slow):
            await asyncio.sleep(0.01)
        assert (await ask())[0] == 200
        end.set()

        assert [status for status, _ in await asyncio.gather(*slow)] == [200] * 3


@pytest.mark.row("webhook-limits-01")
@pytest.mark.parametrize(
    ("asked", "limit_s"), [("50ms", 10.0), *((text, 0.05) for text in ("1h", "-1s", "soon", ""))]
)
async def test_a_webhook_may_not_think_for_longer_than_the_caller_waits(
    asked: str, limit_s: float
) -> None:
    """And a caller cannot buy more time."""
    async with serving(Gate(), limits=admission.Limits(timeout_s=limit_s)) as ask:
        status, text = await ask(path=f"/test-hook?timeout={asked}")

    assert status == 500
    assert "did not decide in time" in text


@pytest.mark.row("webhook-limits-01")
async def test_only_so_many_are_decided_at_once_and_others_wait() -> None:
    gate = Gate()
    async with serving(gate, limits=admission.Limits(at_once=2)) as ask:
        asked = [spawn(ask(), name="ask") for _ in range(6)]
        await gate.holds(2)
        gate.open.set()
        answers = await asyncio.gather(*asked)

    assert [status for status, _ in answers] == [200] * 6
    assert gate.most == 2


@pytest.mark.row("webhook-limits-01")
async def test_who_waits_for_too_long_is_told() -> None:
    gate = Gate()
    async with serving(gate, limits=admission.Limits(at_once=1)) as ask:
        first = spawn(ask(), name="ask")
        await gate.holds(1)
        status, text = await ask(path="/test-hook?timeout=300ms")
        gate.open.set()

        assert (status, text) == (503, "too many requests at once\n")
        assert (await first)[0] == 200


async def test_a_flood_of_slow_reviews_is_cut_in_the_log() -> None:
    many = 3 * BURST
    with capture_logs() as lines:
        async with serving(Gate(), limits=admission.Limits(at_once=1, timeout_s=0.5)) as ask:
            answers = await asyncio.gather(*(ask() for _ in range(many)))

    assert all(status >= 500 for status, _ in answers)
    assert BURST <= len([line for line in lines if "too slow" in line["event"]]) < 2 * BURST


async def test_a_lost_caller_leaves_no_place_taken() -> None:
    gate = Gate()
    async with serving(gate, limits=admission.Limits(at_once=1)) as ask:
        lost = spawn(ask(), name="ask")
        await gate.holds(1)
        lost.cancel()
        gate.open.set()

        assert (await ask())[0] == 200
