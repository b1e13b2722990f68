"""How far a sandbox is, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Counts:
    """Numbers about the whole performance: what was reached once counts for good.

    Attributes:
        expected: nodes that shall be initialised.
        initialised: expected nodes that are or once were initialised.
        routes_expected: nodes that shall have a route; 0: there are no routes.
        routes: nodes that have a route now, or had one when they were deleted.
        services_expected: Services that shall be served.
        services: expected Services that are or once were served.
        machines_expected: Machines that shall run.
        machines: expected Machines that run or once ran.
        warnings: Warning events, and lines of that level or above in the daemon's log.
        cloud_calls: calls the cloud has seen; None: nobody can tell yet.
    """

    expected: int
    initialised: int = 0
    routes_expected: int = 0
    routes: int = 0
    services_expected: int = 0
    services: int = 0
    machines_expected: int = 0
    machines: int = 0
    warnings: int = 0
    cloud_calls: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How things stand now; what was deleted does not count any more.

    Attributes:
        nodes: nodes that are there, and expected ones that still have to come.
        initialised: nodes that are.
        routed: nodes that have a route.
        services: the same of Services of type LoadBalancer.
        served: Services that have what they need.
        machines: the same of Machines.
        running: Machines that run.
    """

    nodes: int
    initialised: int
    routed: int
    services: int
    served: int
    machines: int
    running: int
