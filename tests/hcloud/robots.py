"""Helpers for the tests of dedicated servers: an account of Robot, and the provider with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ccm import cloud
from ccm.testing.builders import node
from providers.hcloud.testing import robot
from tests.hcloud.harness import HcloudHarness, Told, in_cluster


@dataclass(frozen=True, slots=True)
class Robots:
    """An account of Robot: its fake, and the endpoint."""

    service: robot.RobotService
    url: str

    @property
    def environ(self) -> dict[str, str]:
        return {
            "HCLOUD_NETWORK_ROUTES_ENABLED": "false",
            "ROBOT_ENABLED": "true",
            "ROBOT_ENDPOINT": self.url,
            "ROBOT_USER": self.service.user,
            "ROBOT_PASSWORD": self.service.password,
        }


@asynccontextmanager
async def mixed(
    harness: HcloudHarness, robots: Robots, told: Told | None = None, **settings: str
) -> AsyncIterator[cloud.Cloud]:
    """The provider of a cluster that also has dedicated servers; an empty setting is left out."""
    async with in_cluster(harness, told or Told(), {**robots.environ, **settings}) as project:
        yield project


def dedicated(
    number: int, addresses: Sequence[cloud.NodeAddress] = (), *, name: str = "bm"
) -> cloud.Node:
    """The node of a dedicated server."""
    return node(name, provider_id=f"hrobot://{number}", addresses=addresses)
