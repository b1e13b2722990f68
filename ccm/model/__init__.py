"""L1: Kubernetes objects as frozen structs that contain only the fields in use.

This package does no I/O, reads no clock, needs no event loop and logs nothing. Objects are never
modified. A change is a patch that contains only changed fields, so the API server keeps the fields
that are not decoded here.
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
