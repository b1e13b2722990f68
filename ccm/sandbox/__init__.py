"""Try the daemon with no cluster and no cloud account.

Here lives everything that stands in for a cluster on one machine, beside the in-memory API
server of `ccm.testing`: control of a real kube-apiserver and etcd (`realserver`), simulated
kubelets and the life of Pods (`kubelet`). The settings of a sandbox stand here; they are light, so
that the command line may import them at once.

What may enter: code that listens on loopback, starts and stops processes, and
keeps its state in a folder the caller names. It may use every layer below it.

What must never enter: anything the daemon needs in production. No other layer
but the command line imports this package, and nothing here listens on an
address other than loopback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

NODES = 5
"""Nodes by default: they fit every terminal."""

MAX_NODES = 10_000

SERVICES = 2
"""Services by default in the simulated cloud."""

MAX_SERVICES = 1_000

MAX_MACHINES = 1_000

TIMEOUT_S = 120.0
"""Seconds until `once` gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider other than the simulated cloud's.

    Attributes:
        name: of the provider.
        config: its cloud config; None: it needs no file.
        routes: whether its cloud gets routes to the Pods of the nodes.
        instances: whether it knows instances, so that nodes can wait for it to initialise them.
        machine_class: the MachineClass that machines are made of, and Secrets beside it.
        fake: the program of its fake, which takes the place of its cloud; empty: the real one.
    """

    name: str
    config: Path | None = None
    routes: bool = False
    instances: bool = True
    machine_class: tuple[Mapping[str, Any], ...] = ()
    fake: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One sandbox.

    Attributes:
        node_names: the nodes whose kubelets register.
        services: how many Services of type LoadBalancer are created.
        machines: how many Machines a MachineDeployment has, whose VMs become nodes as well.
        latency: how long each call to the simulated cloud takes.
        once: end when all Machines run, all nodes are initialised and have routes, and all
            Services are served.
        timeout_s: seconds until `once` gives up.
        provider: None: the simulated cloud.
        keep: leave the folder with logs and state where it is.
        picture: draw the last table into this file, as SVG.
        assets: where real kube-apiserver and etcd programs may be.
    """

    node_names: tuple[str, ...]
    services: int = SERVICES
    machines: int = 0
    latency: timedelta = timedelta(0)
    once: bool = False
    timeout_s: float = TIMEOUT_S
    provider: Provider | None = None
    keep: bool = False
    picture: Path | None = None
    assets: Path | None = None

    @property
    def routes(self) -> bool:
        """Whether nodes get Pod ranges and routes: somebody's own cloud only when asked to."""
        return self.provider is None or self.provider.routes

    @property
    def instances(self) -> bool:
        """Whether nodes wait for the cloud to initialise them."""
        return self.provider is None or self.provider.instances
