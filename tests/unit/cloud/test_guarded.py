"""The guard around a provider: deadline, rate, metrics, errors, exchange, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ccm.base import metrics
from ccm.cloud import Cloud, Limits, Rate, errors
from ccm.cloud.guarded import DEADLINES_S, OUTCOMES, READ_DEADLINE_S, Guarded
from ccm.cloud.node_calls import NodeCalls
from ccm.testing.builders import node
from ccm.testing.clock import FakeClock
from ccm.testing.fakes import FakeCloud, FakeStateCloud
from tests.unit.cloud.virtual_time import in_virtual_time

NODE = node("node0", provider_id="fake://1")


def now() -> float:
    return asyncio.get_running_loop().time()


def raising(error: BaseException) -> Callable[[Cloud], Awaitable[Any]]:
    async def invoke(_: Cloud) -> None:
        raise error

    return invoke


async def hang(_: Cloud) -> None:
    await asyncio.sleep(1e6)


async def done(_: Cloud) -> str:
    return "done"


def count(provider: str, operation: str, outcome: str) -> float:
    labels = {"provider": provider, "operation": operation, "outcome": outcome}
    return metrics.REGISTRY.get_sample_value("ccm_cloud_calls_total", labels) or 0.0


def measured(name: str, provider: str, operation: str, what: str) -> float:
    labels = {"provider": provider, "operation": operation}
    return metrics.REGISTRY.get_sample_value(f"ccm_cloud_{name}_{what}", labels) or 0.0


@in_virtual_time
async def test_a_call_that_hangs_ends_at_the_default_deadline() -> None:
    guard = Guarded(Cloud(name="hang-default"))
    started = now()

    with pytest.raises(errors.DeadlineExceeded, match="instance_exists took longer than 60 s"):
        await guard.call("instance_exists", hang)

    assert now() - started == pytest.approx(READ_DEADLINE_S)
    assert count("hang-default", "instance_exists", "deadline_exceeded") == 1


@pytest.mark.parametrize(("operation", "seconds"), [*DEADLINES_S.items(), ("anything", 60.0)])
def test_calls_that_change_things_have_deadlines_of_their_own(
    operation: str, seconds: float
) -> None:
    @in_virtual_time
    async def check() -> None:
        started = now()
        with pytest.raises(errors.DeadlineExceeded):
            await Guarded(Cloud(name="own")).call(operation, hang)
        assert now() - started == pytest.approx(seconds)

    check()


@pytest.mark.parametrize("operation", ["instance_exists", "ensure_load_balancer"])
def test_deadlines_of_the_provider_win(operation: str) -> None:
    @in_virtual_time
    async def check() -> None:
        cloud = Cloud(name="declared", limits=Limits(deadlines_s={operation: 7.5}))
        started = now()
        with pytest.raises(errors.DeadlineExceeded, match=r"longer than 7\.5 s"):
            await Guarded(cloud).call(operation, hang)
        assert now() - started == pytest.approx(7.5)

    check()


@pytest.mark.parametrize("operation", ["instance_exists", "ensure_load_balancer"])
def test_a_deadline_of_the_daemon_holds_for_every_call(operation: str) -> None:
    @in_virtual_time
    async def check() -> None:
        cloud = Cloud(name="forced", limits=Limits(deadlines_s={operation: 700}))
        started = now()
        with pytest.raises(errors.DeadlineExceeded, match="longer than 3 s"):
            await Guarded(cloud, deadline_s=3).call(operation, hang)
        assert now() - started == pytest.approx(3)

    check()


async def test_a_timeout_inside_the_provider_is_a_deadline_too() -> None:
    with pytest.raises(errors.DeadlineExceeded, match="TimeoutError: connect"):
        await Guarded(Cloud(name="inner")).call("instance_exists", raising(TimeoutError("connect")))


@in_virtual_time
async def test_calls_keep_to_the_rate_the_provider_declares() -> None:
    guard = Guarded(Cloud(name="rated", limits=Limits(rate=Rate(qps=2, burst=3))))
    started, moments = now(), []

    for _ in range(6):
        await guard.call("instance_exists", done)
        moments.append(now() - started)

    assert moments == pytest.approx([0, 0, 0, 0.5, 1.0, 1.5])
    wait = "rate_limiter_duration_seconds"
    assert measured(wait, "rated", "instance_exists", "sum") == pytest.approx(1.5)
    assert measured("call_duration_seconds", "rated", "instance_exists", "sum") == 0


async def test_the_rate_follows_the_clock_that_was_given() -> None:
    clock = FakeClock(auto=True)
    guard = Guarded(Cloud(name="c", limits=Limits(rate=Rate(qps=0.01, burst=1))), clock=clock)

    await guard.call("op", done)
    await guard.call("op", done)

    assert clock.elapsed_s == pytest.approx(100)


@in_virtual_time
async def test_waiting_for_the_rate_does_not_count_towards_the_deadline() -> None:
    limits = Limits(rate=Rate(qps=0.01, burst=1), deadlines_s={"instance_exists": 1.0})
    guard = Guarded(Cloud(name="patient", limits=limits))
    await guard.call("instance_exists", done)
    started = now()

    assert await guard.call("instance_exists", done) == "done"
    assert now() - started == pytest.approx(100)


async def test_a_limiter_of_the_daemon_wins() -> None:
    class Counting:
        taken = 0

        async def acquire(self) -> float:
            self.taken += 1
            return 0.0

    limiter = Counting()
    guard = Guarded(
        Cloud(name="forced", limits=Limits(rate=Rate(qps=0.001, burst=1))), limiter=limiter
    )

    for _ in range(3):
        await guard.call("instance_exists", done)
    guard.swap(Cloud(name="forced", limits=Limits(rate=Rate(qps=0.001, burst=1))))
    for _ in range(3):
        await guard.call("instance_exists", done)

    assert limiter.taken == 6


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        *((kind("x"), text) for kind, text in OUTCOMES.items() if kind is not errors.RetryAfter),
        (errors.RetryAfter("x", seconds=1), "retry_after"),
        (errors.DiskNotFound("x"), "not_found"),
        (errors.Aborted("x"), "error"),
        (ValueError("x"), "error"),
        (TimeoutError(), "deadline_exceeded"),
    ],
    ids=repr,
)
async def test_each_outcome_is_counted_and_told(error: Exception, outcome: str) -> None:
    seen: list[tuple[str, str]] = []
    before = count("counted", "op", outcome)

    with pytest.raises(errors.CloudError):
        await Guarded(Cloud(name="counted")).call(
            "op", raising(error), observer=lambda *told: seen.append(told)
        )

    assert count("counted", "op", outcome) == before + 1
    assert seen == [("op", outcome)]


async def test_success_is_counted_per_operation() -> None:
    guard = Guarded(Cloud(name="fine"))

    await guard.call("one", done)
    await guard.call("one", done)
    await guard.call("two", done)

    assert count("fine", "one", "success") == 2
    assert count("fine", "two", "success") == 1
    assert measured("call_duration_seconds", "fine", "one", "count") == 2


async def test_errors_of_the_provider_keep_identity_and_cause() -> None:
    original, foreign = errors.Unavailable("x"), KeyError("y")
    guard = Guarded(Cloud(name="errors"))

    with pytest.raises(errors.Unavailable) as kept:
        await guard.call("op", raising(original))
    with pytest.raises(errors.Internal, match="KeyError: 'y'") as wrapped:
        await guard.call("op", raising(foreign))

    assert kept.value is original
    assert wrapped.value.__cause__ is foreign


async def test_a_cause_that_is_found_does_not_become_its_own_cause() -> None:
    inner = errors.RetryAfter("wait", seconds=3)
    outer = ValueError("wrapped")
    outer.__cause__ = inner

    with pytest.raises(errors.RetryAfter) as caught:
        await Guarded(Cloud(name="loop")).call("op", raising(outer))

    assert caught.value is inner
    assert caught.value.__cause__ is None


async def test_the_provider_can_be_exchanged_under_a_running_controller() -> None:
    old, new = FakeCloud(name="before", exists=True), FakeCloud(name="after", exists=False)
    guard = Guarded(old.cloud())
    calls = NodeCalls(guard)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(cloud: Cloud) -> str:
        entered.set()
        await leave.wait()
        return cloud.name

    under_way = asyncio.ensure_future(guard.call("slow", slow))
    await entered.wait()
    assert await calls.instance_exists(NODE)
    guard.swap(new.cloud())

    assert not await calls.instance_exists(NODE)
    assert calls.cloud.name == "after"
    leave.set()
    assert await under_way == "before"
    assert (old.calls, new.calls) == (["instance-exists"], ["instance-exists"])


@in_virtual_time
async def test_an_exchanged_provider_brings_its_own_rate() -> None:
    guard = Guarded(Cloud(name="slow", limits=Limits(rate=Rate(qps=0.1, burst=1))))
    await guard.call("op", done)
    started = now()

    guard.swap(Cloud(name="fast"))
    await guard.call("op", done)

    assert now() == started


async def test_cancellation_is_counted_and_passed_on() -> None:
    seen: list[tuple[str, str]] = []
    guard = Guarded(Cloud(name="cancelled"))
    call = asyncio.ensure_future(guard.call("op", hang, observer=lambda *t: seen.append(t)))
    await asyncio.sleep(0)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert count("cancelled", "op", "canceled") == 1
    assert seen == [("op", "canceled")]


async def test_a_cancellation_inside_the_provider_does_not_end_the_caller() -> None:
    """Something of the provider's own was cancelled, not us."""
    with pytest.raises(errors.Canceled, match="op was cancelled inside the provider"):
        await Guarded(Cloud(name="inside")).call("op", raising(asyncio.CancelledError()))


async def swallow(_: Cloud) -> bool:
    """Catches everything, its own cancellation included."""
    try:
        await asyncio.sleep(1e6)
    except BaseException:  # noqa: BLE001 - the point
        return False
    return True


async def translate(_: Cloud) -> bool:
    """Makes an absence of every trouble, its own cancellation included."""
    try:
        await asyncio.sleep(1e6)
    except BaseException as error:
        raise errors.NotFound("gone") from error
    return True


@pytest.mark.parametrize("provider", [swallow, translate])
def test_what_comes_after_the_deadline_is_no_answer(
    provider: Callable[[Cloud], Awaitable[bool]],
) -> None:
    """Else a cloud that hangs would read as "gone"."""

    @in_virtual_time
    async def check() -> None:
        with pytest.raises(errors.DeadlineExceeded, match="longer than 60 s"):
            await Guarded(Cloud(name="late")).call("instance_exists", provider)

    check()


@pytest.mark.parametrize("provider", [swallow, translate])
async def test_a_swallowed_cancellation_ends_the_caller_all_the_same(
    provider: Callable[[Cloud], Awaitable[bool]],
) -> None:
    name = f"stubborn-{provider.__name__}"
    call = asyncio.ensure_future(Guarded(Cloud(name=name)).call("op", provider))
    await asyncio.sleep(0)

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert count(name, "op", "canceled") == 1


@pytest.mark.parametrize("error", [SystemExit(3), BaseExceptionGroup("g", [SystemExit(3)])])
async def test_a_provider_cannot_end_the_daemon(error: BaseException) -> None:
    with pytest.raises(errors.Internal) as caught:
        await Guarded(Cloud(name="fatal")).call("op", raising(error))

    assert caught.value.__cause__ is error


async def test_a_forgotten_return_is_a_fault_and_no_answer() -> None:
    """Else it would read as "no addresses", or end in a provider ID."""
    fake = FakeCloud(name="absent", external_ids={"node0": None})  # type: ignore[dict-item]
    fake.addresses = fake.zone = None  # type: ignore[assignment]
    calls = NodeCalls(Guarded(fake.cloud()))

    with pytest.raises(errors.Internal, match="node_addresses answered None, not a sequence"):
        await calls.node_addresses("node0")
    with pytest.raises(errors.Internal, match="instance_id answered None, not text"):
        await calls.instance_id("node0")
    with pytest.raises(errors.Internal, match="answered None, not a Zone"):
        await calls.get_zone_by_node_name("node0")
    assert count("absent", "instance_id", "error") == 1


@pytest.mark.parametrize("answer", [None, 0, 1, "yes"])
@pytest.mark.parametrize("question", ["instance_exists", "instance_shutdown"])
async def test_only_true_and_false_are_decisions(question: str, answer: object) -> None:
    """A forgotten return must not read as an absence."""
    fake = FakeCloud(name="forgetful")
    fake.exists = fake.shutdown = answer  # type: ignore[assignment]
    calls = NodeCalls(Guarded(fake.cloud()))

    with pytest.raises(errors.Internal, match=f"{question} answered {answer!r}"):
        await getattr(calls, question)(NODE)
    with pytest.raises(errors.Internal):
        await getattr(calls, f"{question}_by_provider_id")("fake://1")


CALLS: list[tuple[str, object, str]] = [
    ("instance_exists", NODE, "instance-exists"),
    ("instance_shutdown", NODE, "instance-shutdown"),
    ("instance_metadata", NODE, "instance-metadata-by-provider-id"),
    ("instance_state", NODE, "instance-state"),
    ("node_addresses", "node0", "node-addresses"),
    ("node_addresses_by_provider_id", "fake://1", "node-addresses-by-provider-id"),
    ("instance_id", "node0", "instance-id"),
    ("instance_type", "node0", "instance-type"),
    ("instance_type_by_provider_id", "fake://1", "instance-type-by-provider-id"),
    ("instance_exists_by_provider_id", "fake://1", "instance-exists-by-provider-id"),
    ("instance_shutdown_by_provider_id", "fake://1", "instance-shutdown-by-provider-id"),
    ("get_zone_by_provider_id", "fake://1", "get-zone-by-provider-id"),
    ("get_zone_by_node_name", "node0", "get-zone-by-node-name"),
]


@pytest.mark.parametrize(("method", "subject", "entry"), CALLS, ids=[row[0] for row in CALLS])
async def test_each_call_asks_its_namesake(method: str, subject: Any, entry: str) -> None:
    fake = FakeStateCloud(name=f"asks-{method}")
    seen: list[tuple[str, str]] = []
    calls = NodeCalls(Guarded(fake.cloud()), observer=lambda *told: seen.append(told))

    await getattr(calls, method)(subject)

    assert fake.calls == [entry]
    assert seen == [(method, "success")]
    assert count(f"asks-{method}", method, "success") == 1


@pytest.mark.parametrize(("method", "subject", "entry"), CALLS, ids=[row[0] for row in CALLS])
async def test_a_capability_that_is_missing_is_unimplemented(
    method: str, subject: Any, entry: str
) -> None:
    calls = NodeCalls(Guarded(Cloud(name="bare")))

    with pytest.raises(errors.Unimplemented, match="does not offer"):
        await getattr(calls, method)(subject)


async def test_instance_states_and_listings_may_be_missing_alone() -> None:
    calls = NodeCalls(Guarded(FakeCloud().cloud()))

    with pytest.raises(errors.Unimplemented, match="instance states"):
        await calls.instance_state(NODE)
    with pytest.raises(errors.Unimplemented, match="inventory"):
        await calls.list_instances()
