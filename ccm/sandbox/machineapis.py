"""The machine APIs of a sandbox: Gardener's and Kubermatic's.

An API determines the objects that are written and the controllers that are enabled. All other parts
of the sandbox use hub types, and are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ccm.app import kubermaticcontrollers, machineapis, machinecontrollers
from ccm.gardener import codec as gardener
from ccm.kube.client import Client
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import SECRETS, ResourceKind
from ccm.kubermatic import codec as kubermatic
from ccm.machines.codec import Codec
from ccm.machines.crds import Definition
from ccm.runtime.controller import Runnable
from ccm.runtime.manifest import Manifest
from ccm.sandbox import GARDENER, KUBERMATIC, cloud
from ccm.sandbox.userdata import UserDataWriter

NAMESPACE = "default"
"""Namespace of Gardener's objects, and of the sandbox's Services."""

KUBERMATIC_NAMESPACE = "kube-system"
"""Namespace of Kubermatic's objects (default of --kubermatic-namespace)."""

CLASS = "sandbox"
"""Name of the MachineClass of the simulated cloud, and of its Secret."""

OTHER_CLASS = "sandbox-large"
"""Second MachineClass of the simulated cloud, as target of a rollout."""

DEPLOYMENT = "workers"
SURGE, UNAVAILABLE = 1, 1
"""`maxSurge` and `maxUnavailable` of the MachineDeployment."""

USER_DATA = "#cloud-config\nhostname: <<MACHINE_NAME>>\n# joins with <<BOOTSTRAP_TOKEN>>\n"
"""User data as an example; VMs of the simulated cloud do not read it."""

MachineObjects = tuple[Mapping[str, Any], ...]
"""Objects that describe VMs, as read from a file."""

_LABELS = {"name": DEPLOYMENT}
_ROLLING = {
    "type": "RollingUpdate",
    "rollingUpdate": {"maxSurge": SURGE, "maxUnavailable": UNAVAILABLE},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxMachineApi:
    """A machine API.

    Attributes:
        group: its API group.
        manifests: manifests of its controllers.
        namespace: namespace of its objects.
        described_by: kind of the object that describes VMs; `read_objects` needs exactly one.
        file_option: command-line option of a provider's fake, with the file to which the fake
            writes the object that describes VMs, and its Secret.
        simulated: returns the objects that describe VMs of the simulated cloud, given its token.
        deployment: returns a MachineDeployment, given its replicas and the objects that describe
            its VMs.
        other_type: patch of the template's spec that selects another machine type of the simulated
            cloud.
        companions: returns controllers of other programs that a cluster with this API has, and that
            the sandbox runs beside the daemon.
        has_approver: whether a controller approves the certificate requests of kubelets, so that
            the sandbox's kubelets send them.
    """

    group: machineapis.MachineApi
    manifests: Mapping[type, Manifest[Any]]
    namespace: str
    described_by: ResourceKind[Any]
    file_option: str
    simulated: Callable[[str], MachineObjects]
    deployment: Callable[[int, MachineObjects], Mapping[str, Any]]
    other_type: Mapping[str, Any]
    companions: Callable[[SharedInformers, Client], Sequence[Runnable]] = lambda *_: ()
    has_approver: bool = False

    @property
    def codec(self) -> Codec:
        """Codec of its objects."""
        return self.group.codec

    @property
    def definitions(self) -> Sequence[Definition]:
        """Its CRDs."""
        return self.group.definitions

    @property
    def kinds(self) -> Mapping[str, ResourceKind[Any]]:
        """Kinds of the objects that describe VMs, and Secrets, by name of the kind."""
        return {kind.kind: kind for kind in (SECRETS, self.described_by)}

    @property
    def controllers(self) -> str:
        """Value of `--controllers`; machine controllers are off by default."""
        return ",".join(("*", *(manifest.alias for manifest in self.manifests.values())))


# --- Gardener -------------------------------------------------------------------------------------


def _simulated_classes(token: str) -> MachineObjects:
    secret = {
        "kind": "Secret",
        "metadata": {"name": CLASS},
        "stringData": {"token": token, "userData": USER_DATA},
    }
    return secret, _class(CLASS, cloud.TYPES[0]), _class(OTHER_CLASS, cloud.TYPES[-1])


def _class(name: str, machine_type: str) -> Mapping[str, Any]:
    return {
        "kind": gardener.MACHINE_CLASSES.kind,
        "metadata": {"name": name},
        "provider": "sim",
        "providerSpec": _simulated_spec(machine_type),
        "secretRef": {"name": CLASS, "namespace": NAMESPACE},
    }


def _simulated_spec(machine_type: str) -> dict[str, Any]:
    return {"machineType": machine_type, "zone": cloud.ZONES[0], "region": cloud.REGION}


def _deployment_of_class(count: int, objects: MachineObjects) -> Mapping[str, Any]:
    """Return a MachineDeployment for the first MachineClass of the objects."""
    kind = gardener.MACHINE_CLASSES.kind
    name = next(body["metadata"]["name"] for body in objects if body["kind"] == kind)
    spec = {
        "replicas": count,
        "selector": {"matchLabels": _LABELS},
        "strategy": _ROLLING,
        "template": {
            "metadata": {"labels": _LABELS},
            "spec": {"class": {"kind": kind, "name": name}},
        },
    }
    return {"metadata": {"name": DEPLOYMENT}, "spec": spec}


# --- Kubermatic -----------------------------------------------------------------------------------


def _simulated_deployment(token: str) -> MachineObjects:
    from ccm.testing import fake_api

    secret, body = fake_api.machine_deployment(
        "sim", _simulated_spec(cloud.TYPES[0]), {"token": token}
    )
    return secret, {**body, "spec": {**body["spec"], "strategy": _ROLLING}}


def _deployment_in(count: int, objects: MachineObjects) -> Mapping[str, Any]:
    """Return the MachineDeployment among the objects, with `count` replicas."""
    kind = kubermatic.MACHINE_DEPLOYMENTS.kind
    body = next(body for body in objects if body["kind"] == kind)
    return {**body, "spec": {**(body.get("spec") or {}), "replicas": count}}


APIS: Mapping[str, SandboxMachineApi] = {
    GARDENER: SandboxMachineApi(
        group=machineapis.GARDENER,
        manifests=machinecontrollers.MANIFESTS,
        namespace=NAMESPACE,
        described_by=gardener.MACHINE_CLASSES,
        file_option="--machine-class",
        simulated=_simulated_classes,
        deployment=_deployment_of_class,
        other_type={"class": {"name": OTHER_CLASS}},
    ),
    KUBERMATIC: SandboxMachineApi(
        group=machineapis.KUBERMATIC,
        manifests=kubermaticcontrollers.MANIFESTS,
        namespace=KUBERMATIC_NAMESPACE,
        described_by=kubermatic.MACHINE_DEPLOYMENTS,
        file_option="--machine-deployment",
        simulated=_simulated_deployment,
        deployment=_deployment_in,
        other_type={
            "providerSpec": {"value": {"cloudProviderSpec": {"machineType": cloud.TYPES[-1]}}}
        },
        companions=lambda informers, client: (
            UserDataWriter(informers, client, KUBERMATIC_NAMESPACE).controller,
        ),
        has_approver=True,
    ),
}
"""Value of `--machine-api` -> API."""
