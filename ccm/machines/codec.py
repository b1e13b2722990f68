"""Codec of an API group of machines: the only code that depends on the group.

A codec decodes the group's documents to hub types (`ccm.model.machines`), once for each version of
an object, and makes the patches that controllers write. Names of features that the group lacks are
empty strings. To support another API group, add another codec.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from ccm.cloud.machines import MachineInfo
from ccm.kube.resources import ResourceKind
from ccm.machines.documents import annotations_of, to_plain, without_empty
from ccm.machines.rollout import SetChange, SetCreation
from ccm.machines.settings import Names
from ccm.model import OwnerReference, Secret
from ccm.model.machines import (
    Condition,
    DeploymentStatus,
    Machine,
    MachineClass,
    MachineDeployment,
    MachineSet,
    MachineStatus,
    SetStatus,
)
from ccm.model.names import ANNOTATION_RESTARTED
from ccm.model.patches import Patch, StaleObject, uid_precondition


class Codec(abc.ABC):
    """Kinds, names, features and patches of an API group.

    Attributes:
        names: names of labels, annotations, finalizers, taints and conditions.
        machines: resource kind of machines.
        machine_sets: resource kind of sets.
        machine_deployments: resource kind of deployments.
        machine_classes: resource kind of classes; None = each machine contains its class
            (`own_class`).
        prefix: prefix of the controllers' names and of their work queues in metrics, if controllers
            of several API groups run in one process. With a prefix, the controllers do not write
            metrics of single objects, because these metrics have Gardener's names.
        manifest: file with the CRDs, for messages.
        namespace_flag: name of the flag for the objects' namespace, without `--`.
        user_data_namespace: namespace of Secrets with user data; empty = user data are part of the
            classes.
    """

    names: Names
    machines: ResourceKind[Machine]
    machine_sets: ResourceKind[MachineSet]
    machine_deployments: ResourceKind[MachineDeployment]
    machine_classes: ResourceKind[MachineClass] | None = None
    user_data_namespace: str = ""
    prefix: str = ""
    manifest: str = "manifests/crds.yaml"
    namespace_flag: str = "namespace"

    def controller_name(self, kind: str) -> str:
        """Return the name in `--controllers` of the controller of a kind, such as `machine-set`."""
        return f"{self.prefix}-{kind}-controller".removeprefix("-")

    def is_ignored(self, obj: Machine) -> bool:
        """Return whether another program is responsible for a machine."""
        return bool(self.foreign_reason(obj))

    def foreign_reason(self, obj: Machine) -> str:  # noqa: ARG002
        """Return why another program is responsible for a machine; empty = none is."""
        return ""

    def failure(self, obj: Machine) -> tuple[str, str]:
        """Return error code and description of a machine's last operation, as stored.

        Both are empty if there was no operation; the code is empty if the operation succeeded.
        """
        return obj.status.code, obj.status.description

    def user_data(
        self, obj: Machine, owner: MachineSet | None, secret: Callable[[str], Secret | None]
    ) -> bytes | None:
        """Return the user data of a machine; None = the user data do not exist yet.

        Only called if `user_data_namespace` is set.

        Args:
            obj: the machine.
            owner: the machine's set; None = the machine has no set.
            secret: returns a Secret of `user_data_namespace` by name.

        Raises:
            InvalidArgument: the machine cannot get user data.
            Unavailable: the user data still belong to another template.
        """
        raise NotImplementedError

    def new_status(self, obj: Machine, planned_for: Machine, wanted: MachineStatus) -> Patch:
        """Return the patch that writes a status planned for an earlier version of the object.

        Args:
            obj: the newest version.
            planned_for: the earlier version.
            wanted: the status.

        Raises:
            StaleObject: between the versions the phase changed, or a deletion was requested.
        """
        if obj.phase is not planned_for.phase or obj.is_deleting != planned_for.is_deleting:
            raise StaleObject
        return self.machine_status_patch(obj, wanted)

    def preserved(self, obj: Machine, planned_for: Machine, until: datetime | None) -> Patch | None:
        """Return the patch that stores the end of a machine's preservation; None = up to date.

        Args:
            obj: the newest version.
            planned_for: version for which the preservation was planned.
            until: end of the preservation; None = not preserved.

        Raises:
            StaleObject: the phase changed between the versions.
        """
        if obj.phase is not planned_for.phase:
            raise StaleObject
        if obj.status.preserve_until == until:
            return None
        return self.machine_status_patch(obj, replace(obj.status, preserve_until=until))

    def identity(
        self, obj: Machine, vm: MachineInfo, *, has_target: bool, origin: str = ""
    ) -> Patch | None:
        """Return the patch that stores provider ID and node name of the machine's VM.

        None = up to date. Without a target cluster (`has_target` False), the node name is not
        stored. `origin` is the `ResolvedClass.origin` of the credentials that showed the VM.

        Raises:
            StaleObject: the object already stores another provider ID.
        """
        if obj.provider_id not in ("", vm.provider_id):
            raise StaleObject
        if (obj.provider_id, obj.node_name) == (vm.provider_id, vm.node_name):
            return None
        node_name = vm.node_name if has_target else ""
        return self.identity_patch(
            obj, provider_id=vm.provider_id, node_name=node_name, origin=origin
        )

    @abc.abstractmethod
    def machine_status_patch(self, obj: Machine, status: MachineStatus) -> Patch:
        """Return the patch that writes a status; fields that the hub type lacks are kept."""

    @abc.abstractmethod
    def known_state_patch(self, obj: Machine, state: str) -> Patch:
        """Return the patch that stores the state which the driver keeps between calls."""

    @abc.abstractmethod
    def identity_patch(
        self, obj: Machine, *, provider_id: str, node_name: str, origin: str
    ) -> Patch:
        """Return the patch that stores a machine's VM: provider ID, node name and origin.

        An empty node name or origin is not written.
        """

    @abc.abstractmethod
    def machine_body(self, owner: MachineSet, reference: OwnerReference, name: str) -> Patch:
        """Return the body of a new machine of a set."""

    @abc.abstractmethod
    def push_patch(self, obj: Machine, owner: MachineSet) -> Patch | None:
        """Return the patch that applies template changes to a machine; None = no changes.

        The patch contains only changes that need no new VM.
        """

    @abc.abstractmethod
    def set_body(
        self, obj: MachineDeployment, making: SetCreation, reference: OwnerReference
    ) -> Patch:
        """Return the body of a new set of a deployment."""

    @abc.abstractmethod
    def set_patch(self, obj: MachineSet, change: SetChange, owner: MachineDeployment) -> Patch:
        """Return the patch that changes a set."""

    @abc.abstractmethod
    def set_status_patch(self, obj: MachineSet, status: SetStatus) -> Patch | None:
        """Return the patch that writes a status; None = up to date."""

    @abc.abstractmethod
    def revert_patch(self, obj: MachineDeployment, to: MachineSet | None) -> Patch:
        """Return the patch that restores the template of the set `to` and ends the rollback.

        If `to` is None, the patch only removes the rollback request.
        """

    @abc.abstractmethod
    def deployment_status_patch(
        self, obj: MachineDeployment, status: DeploymentStatus
    ) -> Patch | None:
        """Return the patch that writes a status; None = up to date."""

    def rollback_patch(self, obj: MachineDeployment, to: MachineSet, revision: int) -> Patch:
        """Return the patch with which a user rolls back to the template of the set `to`.

        Args:
            obj: the deployment.
            to: one of its sets.
            revision: revision of the set.
        """
        raise NotImplementedError

    def restart_patch(self, obj: MachineDeployment, at: str) -> Patch | None:
        """Return the patch that records a restart in a deployment's template.

        The change of the template replaces the machines. None = the template has this time already.
        """
        if annotations_of(obj.template.source).get(ANNOTATION_RESTARTED) == at:
            return None
        template = {"metadata": {"annotations": {ANNOTATION_RESTARTED: at}}}
        return {"metadata": uid_precondition(obj), "spec": {"template": template}}

    def template_summary(self, obj: MachineSet) -> str:
        """Return a few words for users about a set's template: the name of its class."""
        return obj.template.class_name

    def template_document(self, obj: MachineSet) -> Mapping[str, Any]:
        """Return a set's template as in the document, without empty fields."""
        return without_empty(to_plain(obj.template.source))

    def move_patch(
        self, obj: Machine, *, old: MachineSet, new: MachineSet, reference: OwnerReference
    ) -> Patch:
        """Return the patch that moves an updated machine to its new set."""
        raise NotImplementedError

    def class_conditions_patch(self, obj: MachineClass, conditions: Iterable[Condition]) -> Patch:
        """Return the patch that writes the conditions of a class."""
        raise NotImplementedError
