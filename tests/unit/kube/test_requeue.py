"""Delays of work queues."""

from __future__ import annotations

import pytest

from ccm.base.backoff import Exponential, PerItem
from ccm.kube import requeue
from ccm.testing.clock import FakeClock


def test_a_key_waits_twice_as_long_each_time_up_to_the_cap() -> None:
    policy = PerItem(policy=requeue.DEFAULT_BACKOFF)
    delays = [policy.next_delay("a") for _ in range(25)]
    assert delays[:4] == pytest.approx([0.005, 0.01, 0.02, 0.04])
    assert delays[17] == pytest.approx(655.36)
    assert delays[18:] == [1000.0] * 7
    assert policy.failures("a") == 25
    assert policy.next_delay("b") == pytest.approx(0.005)
    policy.forget("a")
    assert policy.failures("a") == 0
    assert policy.next_delay("a") == pytest.approx(0.005)


async def test_the_shared_bucket_hands_out_future_tokens() -> None:
    clock = FakeClock()
    bucket: requeue.SharedBucket[str] = requeue.SharedBucket(qps=10, burst=100, clock=clock)
    assert [bucket.next_delay("x") for _ in range(100)] == [0.0] * 100
    assert [bucket.next_delay("x") for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    await clock.advance(0.3)
    assert bucket.next_delay("x") == pytest.approx(0.1)
    await clock.advance(3600)
    assert [bucket.next_delay("x") for _ in range(100)] == [0.0] * 100
    assert bucket.next_delay("x") == pytest.approx(0.1)


def test_the_longest_delay_counts_and_every_policy_learns_of_the_failure() -> None:
    slow = PerItem(policy=Exponential(base_s=7, factor=1, cap_s=7))
    fast = PerItem(policy=Exponential(base_s=1, cap_s=100))
    policy = requeue.Longest[str](slow, fast)
    assert [policy.next_delay("a") for _ in range(5)] == [7, 7, 7, 8, 16]
    assert slow.failures("a") == fast.failures("a") == policy.failures("a") == 5
    policy.forget("a")
    assert policy.failures("a") == 0


def test_the_default_is_the_longer_of_key_and_bucket() -> None:
    policy: requeue.Policy[str] = requeue.default_policy(clock=FakeClock())
    delays = [policy.next_delay(f"key-{number}") for number in range(102)]
    assert delays[:100] == pytest.approx([0.005] * 100)
    assert delays[100:] == pytest.approx([0.1, 0.2])
