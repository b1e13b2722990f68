"""What becomes of events: counted, combined, or left out."""

from __future__ import annotations

from datetime import timedelta

from ccm.kube.events import COMBINED_PREFIX, Correlator, Verdict, stamped
from ccm.model.meta import ObjectMeta, ObjectReference
from ccm.model.objects import Event, EventSource
from ccm.testing.clock import START


class Stream:
    """Feeds a correlator, as a component that reports one event after the other."""

    def __init__(self, memory: int = 4096) -> None:
        self.correlator = Correlator(memory=memory)
        self.now = START
        self.number = 0

    def send(
        self,
        message: str = "m",
        *,
        node: str = "n",
        reason: str = "R",
        type_: str = "Normal",
        component: str = "c",
    ) -> Verdict | None:
        self.number += 1
        event = Event(
            metadata=ObjectMeta(name=f"{node}.{self.number:x}", namespace="default"),
            involved_object=ObjectReference(kind="Node", name=node, uid=node),
            reason=reason,
            message=message,
            source=EventSource(component=component),
            type=type_,
        )
        return self.correlator.judge(stamped(event, self.now), self.now)

    def expect(self, message: str = "m", **options: str) -> Verdict:
        verdict = self.send(message, **options)
        assert verdict is not None
        return verdict

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def test_ten_quiet_minutes_end_the_combining() -> None:
    stream = Stream()
    for number in range(9):
        stream.expect(f"message {number}")
    stream.wait(600)
    assert stream.expect("message 9").event.message == COMBINED_PREFIX + "message 9"
    stream.wait(601)
    assert stream.expect("message 10").event.message == "message 10"


def test_one_object_gets_25_events_and_then_one_per_five_minutes() -> None:
    stream = Stream()
    passed = [stream.send() is not None for _ in range(30)]
    assert passed == [True] * 25 + [False] * 5
    assert stream.send(node="other") is not None
    assert stream.send(type_="Warning") is not None
    stream.wait(299)
    assert stream.send() is None
    stream.wait(1)
    # Those that were left out are counted too.
    assert stream.expect().event.count == 32
    assert stream.send() is None


def test_what_the_server_answered_is_counted_on() -> None:
    stream = Stream()
    first = stream.expect()
    renamed = Event(metadata=ObjectMeta(name="renamed"), count=7, first_timestamp="x")
    stream.correlator.written(first.key, renamed)
    second = stream.expect()
    assert (second.event.name, second.event.count) == ("renamed", 8)
    assert second.event.first_timestamp == "x"


def test_only_the_most_recent_keys_are_remembered() -> None:
    stream = Stream(memory=2)
    counts = [stream.expect(node=node).event.count for node in "abacab"]
    assert counts == [1, 1, 2, 1, 3, 1]
