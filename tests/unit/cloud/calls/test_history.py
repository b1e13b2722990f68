"""The last calls of each object: how they ended, and how little of them is kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from ccm.base import redact
from ccm.base.tasks import cancel_and_join, spawn
from ccm.base.throttle import bucket
from ccm.cloud import NotFound, Power, Route, Unavailable
from ccm.cloud.calls import history
from ccm.cloud.calls.handle import Handle
from ccm.cloud.calls.history import Call, History
from ccm.cloud.interface import Inventory, LoadBalancer
from ccm.cloud.machines import Credentials, Identity, ListMachinesRequest, MachineRequest
from ccm.cloud.operation import Operation
from ccm.cloud.types import InstanceListing, InstanceState
from ccm.testing.builders import node, service
from ccm.testing.clock import advance, settle
from ccm.testing.fakes import FakeCloud

pytestmark = pytest.mark.virtual_time

SECRET = "hunter2-hunter2"

M0 = Identity(cluster="c", pool="small", name="m0", uid="u")
OF: Mapping[str, Any] = {"provider_spec": {}, "credentials": Credentials({})}


def note(
    kept: History,
    name: str = "n1",
    verb: str = "instance_exists",
    error: Exception | None = None,
    answer: object = None,
) -> None:
    """One call about a node."""
    operation = Operation(
        verb=verb, subject="", arguments={"node": node(name)}, deadline_s=60.0, change=False
    )
    with contextlib.suppress(Unavailable, NotFound), kept.begin(operation) as entry:
        entry.running()
        if error is not None:
            raise error
        entry.answered(answer)


def shown(kept: History, name: str = "n1") -> list[tuple[str, str, int]]:
    return [(call.verb, call.state, call.times) for call in kept.of(("node", name))]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"node": node("n1")}, ("node", "n1")),
        ({"cluster_name": "c", "service": service("web"), "nodes": ()}, ("service", "default/web")),
        (
            {"cluster_name": "c", "route": Route(destination_cidr="10.0.0.0/24", target_node="n2")},
            ("node", "n2"),
        ),
        ({"node_name": "n3"}, ("node", "n3")),
        ({"provider_id": "sim://1"}, ("provider-id", "sim://1")),
        ({"req": MachineRequest(identity=M0, **OF)}, ("machine", "m0")),
        ({"req": ListMachinesRequest(cluster="c", pool="small", **OF)}, ("pool", "small")),
        ({"cluster_name": "c"}, history.NOBODY),
    ],
    ids=["node", "Service", "route", "name", "provider ID", "machine", "pool", "listing"],
)
def test_a_call_is_about_what_its_arguments_name(
    arguments: Mapping[str, object], key: history.Key
) -> None:
    assert history.about(arguments) == key


async def test_calls_that_end_alike_are_one() -> None:
    kept = History()
    for _ in range(20):
        note(kept, answer=True)
        await advance(1.0)
    for _ in range(3):
        note(kept, error=Unavailable("503"))
    note(kept, answer=True)

    assert shown(kept) == [
        ("instance_exists", "ok", 20),
        ("instance_exists", "Unavailable", 3),
        ("instance_exists", "ok", 1),
    ]


async def test_an_error_is_one_line_whatever_the_cloud_says() -> None:
    kept = History()
    note(kept, error=Unavailable("<html>\n\tBad\x1b[31m Gateway\n</html>"))
    note(kept, error=Unavailable("again"))

    assert [(call.text, call.times) for call in kept.of(("node", "n1"))] == [("again", 2)]
    assert history.text_of(Unavailable("<html>\n\tBad\x1b[31m")) == "<html> Bad?[31m"


async def test_few_are_kept_of_each_object_and_of_few_objects() -> None:
    kept = History(most_keys=3)
    for number in range(20):
        note(kept, verb=f"verb-{number}")
    for name in ("n2", "n3", "n4"):
        note(kept, name)

    assert len(kept.of(("node", "n2"))) == 1
    assert kept.of(("node", "n1")) == ()
    for number in range(20):
        note(kept, "n4", verb=f"verb-{number}")
    assert [call.verb for call in kept.of(("node", "n4"))] == [
        f"verb-{number}" for number in range(20 - history.EACH, 20)
    ]


async def test_texts_have_a_limit_each_and_together() -> None:
    kept = History(most_text=1000)
    for number in range(10):
        note(kept, f"n{number}", error=Unavailable(f"{number} {'x' * 1000}"))

    lengths = [sum(len(call.text) for call in kept.of(("node", f"n{n}"))) for n in range(10)]
    assert lengths == [0] * 7 + [history.LONGEST] * 3
    # What makes room is counted no more, else nothing would be kept in the end.
    for number in range(50):
        error = Unavailable(f"{number} {'y' * 1000}")
        note(kept, "n9", verb=f"verb-{number % 2}", error=error)
        note(kept, "n9", verb=f"verb-{number % 2}", error=error)
    assert len(kept.of(("node", "n9"))) in (2, 3)


async def test_a_secret_is_not_kept_and_not_cut_in_half() -> None:
    redact.know(SECRET)
    kept = History()
    note(kept, error=Unavailable(f"{'x' * (history.LONGEST - 8)}{SECRET}"))
    redact.forget(SECRET)

    (call,) = kept.of(("node", "n1"))
    assert SECRET[:4] not in call.text


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (True, "yes"),
        (False, "no"),
        (None, ""),
        (InstanceState(exists=False), "gone"),
        (InstanceState(exists=True, power=Power.SHUTDOWN), "shutdown"),
        (InstanceListing(instances=()), ""),
    ],
)
async def test_an_answer_of_one_word_is_kept(answer: object, word: str) -> None:
    kept = History()
    note(kept, answer=answer)

    assert [call.answer for call in kept.of(("node", "n1"))] == [word]


async def test_a_call_is_there_while_it_waits_and_while_it_runs() -> None:
    """Through the handle, which outlives the exchange of its provider."""

    class Slow(FakeCloud):
        async def list_instances(self) -> InstanceListing:
            await asyncio.Event().wait()
            raise AssertionError

    slow = Slow(listing=InstanceListing(instances=()))
    handle = Handle(slow.cloud(), limiter=bucket(0.1, 1), deadline_s=100.0)
    calls = [spawn(handle.call(Inventory.list_instances), name="call") for _ in range(2)]
    await settle()
    states = [call.state for call in handle.history.of(history.NOBODY)]
    await advance(10.0)
    later: list[Call] = [*handle.history.of(history.NOBODY)]
    handle.swap(FakeCloud().cloud())
    await cancel_and_join(*calls)

    assert states == ["running", "waiting"]
    assert [call.began for call in later][1] - later[0].began == 10.0
    (last,) = handle.history.of(history.NOBODY)
    assert (last.state, last.times) == ("canceled", 2)


async def test_a_refusal_by_ourselves_is_a_call_too() -> None:
    handle = Handle(FakeCloud().cloud())
    with pytest.raises(Exception, match="does not offer"):
        await handle.call(LoadBalancer.get_load_balancer, "c", service("web"))

    (call,) = handle.history.of(("service", "default/web"))
    assert (call.state, call.took_s) == ("Unimplemented", 0.0)
