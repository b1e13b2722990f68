"""Try the daemon without a cluster and without a cloud account.

This package has the stand-ins for a cluster on one machine. `realserver` controls a real
kube-apiserver and etcd, `kubelet` simulates kubelets and Pods. The in-memory API server is in
`ccm.testing`. This module has the settings of a sandbox and imports little, so that the command
line can import it at once.

Allowed here: code that listens on loopback, starts and stops processes, and keeps its state in a
folder that the caller names. This package may use every lower layer.

Not allowed: anything that the daemon needs in production. No other layer than the command line
imports this package, and nothing here listens on an address other than loopback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

DEFAULT_NODES = 5
"""Default number of nodes, which fits every terminal."""

MAX_NODES = 10_000

DEFAULT_SERVICES = 2
"""Default number of Services in the simulated cloud."""

MAX_SERVICES = 1_000

MAX_MACHINES = 1_000

GARDENER, KUBERMATIC = MACHINE_APIS = ("gardener", "kubermatic")
"""Values of `--machine-api`."""

TIMEOUT_S = 120.0
"""Default time limit of `once`, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxProvider:
    """Provider of a sandbox's cloud.

    Attributes:
        name: name of the provider.
        config: cloud config of the provider; None = the provider needs no file.
        routes: whether the cloud gets routes to the Pods of the nodes.
        instances: whether the provider offers instances, so that nodes wait for initialisation.
        machine_objects: the object that describes the VMs, and its Secrets. The object is a
            MachineClass, or with Kubermatic's API a MachineDeployment.
        fake: module of the fake that replaces the provider's cloud; empty = there is no fake.
    """

    name: str
    config: Path | None = None
    routes: bool = False
    instances: bool = True
    machine_objects: tuple[Mapping[str, Any], ...] = ()
    fake: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """Settings of a sandbox.

    Attributes:
        node_names: names of the simulated nodes.
        services: number of Services of type LoadBalancer.
        machines: replicas of the MachineDeployment, whose VMs also become nodes.
        machine_api: API of the Machines, one of `MACHINE_APIS`.
        latency: duration of each call to the simulated cloud.
        once: whether to exit when all Machines run, all nodes are initialised and have routes, and
            all Services have load balancers.
        timeout_s: time limit of `once`, in seconds.
        provider: provider of another cloud; None = the simulated cloud.
        keep: whether to keep the folder with logs and state.
        picture: SVG file for the last picture of the screen; None = no file.
        assets: folder with kube-apiserver and etcd; without one the in-memory API server
            is used.
    """

    node_names: tuple[str, ...]
    services: int = DEFAULT_SERVICES
    machines: int = 0
    machine_api: str = GARDENER
    latency: timedelta = timedelta(0)
    once: bool = False
    timeout_s: float = TIMEOUT_S
    provider: SandboxProvider | None = None
    keep: bool = False
    picture: Path | None = None
    assets: Path | None = None

    @property
    def routes(self) -> bool:
        """Whether nodes get Pod ranges and routes; in a real cloud only on request."""
        return self.provider is None or self.provider.routes

    @property
    def instances(self) -> bool:
        """Whether nodes wait for initialisation by the cloud."""
        return self.provider is None or self.provider.instances
