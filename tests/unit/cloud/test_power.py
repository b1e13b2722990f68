"""Existence and state follow from the power of an instance."""

from __future__ import annotations

import pytest

from ccm import cloud
from ccm.testing.builders import node

GONE = cloud.NotFound("gone")
OFF = cloud.Power.SHUTDOWN


class Instances(cloud.InstancesByPower):
    def __init__(self, said: cloud.Power | Exception) -> None:
        self._said = said

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        if isinstance(self._said, Exception):
            raise self._said
        return self._said


@pytest.mark.parametrize("power", list(cloud.Power), ids=str)
async def test_what_has_power_or_has_none_exists(power: cloud.Power) -> None:
    asked = Instances(power)

    assert await asked.instance_exists(node("a"))
    assert await asked.instance_shutdown(node("a")) is (power is OFF)
    assert await asked.instance_state(node("a")) == cloud.InstanceState(exists=True, power=power)


async def test_what_the_cloud_denies_does_not_exist() -> None:
    asked = Instances(GONE)

    assert not await asked.instance_exists(node("a"))
    assert await asked.instance_state(node("a")) == cloud.InstanceState(exists=False)
    with pytest.raises(cloud.NotFound):
        await asked.instance_shutdown(node("a"))


async def test_an_error_is_no_denial() -> None:
    asked = Instances(cloud.Unavailable("503"))

    for question in (asked.instance_exists, asked.instance_state, asked.instance_shutdown):
        with pytest.raises(cloud.Unavailable):
            await question(node("a"))
