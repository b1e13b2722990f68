"""How the fake behaves: its times, its limits, its quotas. May be changed while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class Settings:
    """Times are seconds, limits are those of the real thing where they are known.

    Attributes:
        latency_s: before each answer.
        boot_s: how long a new server is CREATING.
        removal_s: how long a server is DELETING.
        power_s: how long a server is STOPPING or STARTING.
        balancer_s: how long a new load balancer is PENDING.
        balancer_removal_s: how long one is TERMINATING.
        token_s: how long a token is good.
        page_size: the most load balancers of a page, whatever is asked for.
        servers: quota of servers.
        balancers: quota of load balancers.
        hosts: room for servers; one more fails for want of a valid host.
        silent_404: the load balancer API says nothing with its 404, as its document has it.
        no_auth: no credentials are asked for.
    """

    latency_s: float = 0.0
    boot_s: float = 0.0
    removal_s: float = 0.0
    power_s: float = 0.0
    balancer_s: float = 0.0
    balancer_removal_s: float = 0.0
    token_s: float = 600.0
    page_size: int = 100
    servers: int = 10000
    balancers: int = 1000
    hosts: int = 100000
    silent_404: bool = False
    no_auth: bool = False
