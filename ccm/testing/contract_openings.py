"""The cases that every provider is held to, whatever it offers; part of both contracts."""

from __future__ import annotations

import pytest

from ccm.testing import probes
from ccm.testing.harness import OPT_OUTS, Harness


@pytest.mark.asyncio
class OpeningCases:
    """Mixed into `ProviderContract` and `MachineContract`, which bring the fixtures."""

    async def test_closing_leaves_nothing(self, harness: Harness) -> None:
        """Closing ends every task of the provider; closing again is harmless."""
        context = harness.open()

        with probes.watched(harness) as started:
            async with probes.in_one_task(context):
                pass
            await context.__aexit__(None, None, None)
            await started.have_ended("after closing")

    async def test_opt_outs_are_known_and_have_reasons(self, harness: Harness) -> None:
        """Whoever reads the report learns why the cloud is not held to a case."""
        unknown = sorted(harness.opt_outs.keys() - OPT_OUTS.keys())
        assert not unknown, f"no opt-outs: {unknown}; known are {sorted(OPT_OUTS)}"
        bare = sorted(name for name, reason in harness.opt_outs.items() if not reason.strip())
        assert not bare, f"opt-outs without a reason: {bare}"
