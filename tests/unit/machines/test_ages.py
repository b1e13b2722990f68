"""How old a machine is, by clocks that may be wrong."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from ccm.base import clock
from ccm.machines.ages import Ages
from ccm.model import ObjectMeta
from ccm.model.machines import Machine
from ccm.testing.clock import START

pytestmark = pytest.mark.virtual_time


class Server:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> datetime:
        return clock.now() + timedelta(seconds=self.ahead_s)


def machine(uid: str = "u", *, age_s: float = 0.0) -> Machine:
    created = START - timedelta(seconds=age_s)
    return Machine(metadata=ObjectMeta(name="m", uid=uid), created=created, class_name="c")


async def test_time_passes() -> None:
    ages, old = Ages(Server()), machine(age_s=100)
    assert ages.of(old) == 100
    await asyncio.sleep(50)

    assert ages.of(old) == 150
    assert ages.by(clock.now(), old).created == old.created


@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_a_clock_that_is_set_makes_nobody_older(seconds: float) -> None:
    server = Server()
    ages, young = Ages(server), machine(age_s=10)
    ages.of(young)
    server.ahead_s = seconds
    await asyncio.sleep(5)

    assert ages.of(young) == (15 if seconds > 0 else 0)
    assert ages.of(machine("another", age_s=10)) == max(0.0, 15 + seconds)


async def test_an_age_read_from_a_wrong_clock_is_corrected_when_the_clock_is() -> None:
    server = Server()
    server.ahead_s = 3600
    ages, young = Ages(server), machine(age_s=10)
    assert ages.of(young) == 3610
    server.ahead_s = 0
    await asyncio.sleep(5)

    assert ages.of(young) == 15


async def test_what_is_forgotten_is_seen_anew() -> None:
    server = Server()
    ages, young = Ages(server), machine()
    ages.of(young)
    server.ahead_s = 60
    ages.forget("u")

    assert ages.of(young) == 60
