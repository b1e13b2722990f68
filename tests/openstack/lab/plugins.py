"""Drivers of Neutron and Octavia that plug nothing; installed into the environment of the lab."""

from typing import Any

from neutron_lib.plugins.ml2 import api  # type: ignore[import-not-found]
from octavia.network.drivers.neutron import (  # type: ignore[import-not-found]
    allowed_address_pairs,
)
from octavia.network.drivers.noop_driver import driver  # type: ignore[import-not-found]


class LoopbackPorts(api.MechanismDriver):  # type: ignore[misc]
    """Binds each port at once, without an agent."""

    connectivity = "l2"

    def initialize(self) -> None:
        pass

    def bind_port(self, context: Any) -> None:
        segment = context.segments_to_bind[0]
        context.set_binding(segment[api.ID], "ovs", {}, status="ACTIVE")


class LoopbackNetwork(driver.NoopNetworkDriver):  # type: ignore[misc]
    """Plugs nothing, but deletes the port of a VIP, which the API of Octavia has created."""

    def deallocate_vip(self, vip: Any) -> None:
        allowed_address_pairs.AllowedAddressPairsDriver().deallocate_vip(vip)
