"""Which part of a provider is opened."""

from __future__ import annotations

import pytest

from ccm.app import clients, options
from ccm.app.provider import Misconfigured
from ccm.cloud import registry
from providers import sim

MACHINES = "--controllers=machine,machineclass,machinesafety"


def test_machines_alone_need_no_cloud_config() -> None:
    alone = options.parse(["--cloud-provider=sim", MACHINES])

    assert clients.opener(alone) is registry.declared(sim.open_cloud).machines


@pytest.mark.parametrize(
    "flags",
    [
        [MACHINES, "--cloud-config=/etc/cloud.yaml"],
        ["--controllers=machine,cloud-node"],
        ["--controllers=*"],
    ],
    ids=["a-config", "nodes-too", "no-machines"],
)
def test_whoever_needs_more_opens_all_of_it(flags: list[str]) -> None:
    given = options.parse(["--cloud-provider=sim", *flags])

    assert clients.opener(given) is sim.open_cloud


def test_an_unknown_provider_is_a_mistake() -> None:
    with pytest.raises(Misconfigured, match="nobody"):
        clients.opener(options.parse(["--cloud-provider=nobody"]))
