"""L1: Kubernetes objects as frozen Structs that hold only the fields we use.

This room computes and never calls: no I/O, no clock, no event loop, no log. Objects
are read-only everywhere; a change is a patch that names only what changes, so
fields we do not decode survive on the server.
"""

from ccm.model.meta import ObjectMeta, ObjectReference, OwnerReference
from ccm.model.node import Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Taint
from ccm.model.objects import (
    ConfigMap,
    CustomResourceDefinition,
    Event,
    EventSource,
    Lease,
    LeaseSpec,
    Namespace,
    Secret,
)
from ccm.model.pod import Pod, PodDisruptionBudget
from ccm.model.service import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)
from ccm.model.storage import NodeVolumes, PersistentVolume, PersistentVolumeClaim, VolumeAttachment

__all__ = [
    "ConfigMap",
    "CustomResourceDefinition",
    "Event",
    "EventSource",
    "Lease",
    "LeaseSpec",
    "LoadBalancerIngress",
    "LoadBalancerStatus",
    "Namespace",
    "Node",
    "NodeAddress",
    "NodeCondition",
    "NodeSpec",
    "NodeStatus",
    "NodeVolumes",
    "ObjectMeta",
    "ObjectReference",
    "OwnerReference",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "Secret",
    "Service",
    "ServicePort",
    "ServiceSpec",
    "ServiceStatus",
    "Taint",
    "VolumeAttachment",
]
