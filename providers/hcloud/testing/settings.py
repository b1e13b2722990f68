"""How the fake behaves: its times, its limits, its quotas. May be changed while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class Settings:
    """Times are seconds, limits are those of the real thing.

    Attributes:
        latency_s: before each answer.
        action_s: how long an action about a network, a volume or a load balancer takes.
        balancer_s: how long a new load balancer takes, until then it has no address.
        boot_s: how long a new server takes until it runs.
        removal_s: how long a server takes to go.
        requests: calls an hour and token; they come back one by one.
        page_size: the most items of a page, whatever is asked for.
        servers: quota of servers.
        balancers: quota of load balancers.
        network_servers: most servers of one network.
        network_routes: most routes of one network.
        group_servers: most servers of one spread group.
        told_deletions: the deletion of a load balancer is answered with an action, as the vendor's
            client of today wants it, in place of 204 as older documents have it.
    """

    latency_s: float = 0.0
    action_s: float = 0.0
    balancer_s: float = 0.0
    boot_s: float = 0.0
    removal_s: float = 0.0
    requests: int = 3600
    page_size: int = 50
    servers: int = 1000
    balancers: int = 100
    network_servers: int = 100
    network_routes: int = 100
    group_servers: int = 10
    told_deletions: bool = False
