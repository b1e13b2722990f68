"""Patches that a node needs, planned from the node and the cloud's metadata. No I/O.

Initialising a node takes two writes. The first is a status patch with the addresses. The second
sets labels and provider ID and removes the taint. Each has the node's resourceVersion as a
precondition. Addresses come first so that no Pod is scheduled to a node without addresses.

`Deviation:` the Go controller removes the taint with a PUT of the whole object and patches the
addresses afterwards. After a failure the addresses are missing until the next periodic pass.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ccm.cloud.helpers import is_foreign
from ccm.cloud.types import InstanceMetadata
from ccm.model import Node, NodeAddress, labels, names
from ccm.model.ip import IP, parse_ip
from ccm.model.node import is_uninitialized, taints_value
from ccm.model.patches import Patch, StaleObject, uid_precondition, version_precondition

_RESERVED_LABEL = re.compile(r"(^|\.)(kubernetes|k8s)\.io/")
"""Label keys that a provider's additional labels may not have (Go cloud-provider)."""


class Rejected(Exception):
    """The cloud's metadata does not fit the node; a retry helps only after a change of either.

    The message is part of the Warning event. The controller retries slowly, and at once when the
    node changes.
    """


def complete_metadata(
    node: Node,
    metadata: InstanceMetadata,
    *,
    id_required: bool,
    schemes: Collection[str],
    others: Collection[str],
) -> InstanceMetadata:
    """Check the metadata; return it, with the node's provider ID if the cloud returned no ID.

    Args:
        node: the node to initialise.
        metadata: metadata from the cloud.
        id_required: whether a provider ID is required. False only with the old `Instances`
            interface, which may return no ID.
        schemes: provider-ID schemes of this cloud.
        others: prefixes of provider IDs that have such a scheme but belong to another manager.

    Raises:
        Rejected: a provider ID is required, but neither the cloud nor the node has one; the node
            has no provider ID, and the cloud's ID has another scheme or a prefix in `others`; or
            the node-IP annotation is invalid or does not match the cloud's addresses.
        StaleObject: the node is already initialised.
    """
    if not is_uninitialized(node):
        raise StaleObject
    if not metadata.provider_id and node.provider_id:
        metadata = replace(metadata, provider_id=node.provider_id)
    if not metadata.provider_id and id_required:
        raise Rejected("the cloud returned no provider ID, and the node has none")
    if not node.provider_id and is_foreign(metadata.provider_id, schemes, others):
        # A provider ID cannot be changed, and a node with a foreign ID is ignored for ever.
        but = f", and IDs of other managers begin with {', '.join(others)}" if others else ""
        raise Rejected(
            f"the cloud returned provider ID {metadata.provider_id}, but the provider's schemes "
            f"are {', '.join(schemes)}{but}; correct the provider"
        )
    provided = node.annotations.get(names.ANNOTATION_PROVIDED_NODE_IP)
    if provided is not None:
        # Only the cloud's own addresses count: the kubelet's Hostname proves nothing.
        addresses_for_node_ip(provided, metadata.addresses)
    return metadata


def address_patch(node: Node, cloud_addresses: Sequence[NodeAddress]) -> Patch | None:
    """Return the status patch that updates the node's addresses; None if no update is needed.

    The patch replaces the list, with the node's resourceVersion as a precondition. So an address
    that the kubelet adds meanwhile is not lost, and a node recreated under the same name does not
    get the addresses of the old instance. `Deviation:` the Go controller sets no precondition.

    Raises:
        Rejected: the node-IP annotation is invalid or does not match the cloud's addresses.
    """
    wanted = desired_addresses(node, cloud_addresses)
    if wanted is None or not addresses_differ(node.addresses, wanted):
        return None
    # The API declares `type` as the list's merge key, which is not unique: without the
    # replace directive the server would merge entries of one type into each other.
    entries: list[Any] = [msgspec.to_builtins(entry) for entry in wanted]
    return {
        "metadata": version_precondition(node),
        "status": {"addresses": [*entries, {"$patch": "replace"}]},
    }


def desired_addresses(
    node: Node, cloud_addresses: Sequence[NodeAddress]
) -> Sequence[NodeAddress] | None:
    """Return the addresses the node should have; None = keep its current addresses.

    First come the addresses that match the node-IP annotation, in the annotation's order; then the
    cloud's addresses of other types, in the cloud's order; last the node's Hostname address, unless
    the cloud returned one.

    Raises:
        Rejected: the node-IP annotation is invalid or does not match the cloud's addresses.
    """
    if not cloud_addresses:
        return None
    result = list(cloud_addresses)
    if not any(entry.type == names.ADDRESS_HOSTNAME for entry in cloud_addresses):
        result += [entry for entry in node.addresses if entry.type == names.ADDRESS_HOSTNAME]
    provided = node.annotations.get(names.ANNOTATION_PROVIDED_NODE_IP)
    return result if provided is None else addresses_for_node_ip(provided, result)


def addresses_for_node_ip(
    provided: str, cloud_addresses: Sequence[NodeAddress]
) -> Sequence[NodeAddress]:
    """Move the addresses that match the node-IP annotation to the front.

    Other addresses of the same types are dropped.

    Args:
        provided: value of the annotation.
        cloud_addresses: addresses to sort.

    Raises:
        Rejected: the value is no IP or IP pair, or one of its IPs matches no address.
    """
    result: list[NodeAddress] = []
    matched_types: set[str] = set()
    for wanted in parse_node_ip(provided):
        matches = [entry for entry in cloud_addresses if parse_ip(entry.address) == wanted]
        if not matches:
            listed = ", ".join(f"{entry.type} {entry.address}" for entry in cloud_addresses)
            raise Rejected(
                f"the provided node IP {wanted} is not among the cloud's addresses "
                f"({listed or 'none'}); correct the kubelet's node IP or the instance"
            )
        result += matches
        matched_types.update(entry.type for entry in matches)
    return [*result, *(entry for entry in cloud_addresses if entry.type not in matched_types)]


def parse_node_ip(text: str) -> Sequence[IP]:
    """Return the IPs of a node-IP annotation: one IP, or one of each IP family.

    Raises:
        Rejected: the text has another form, or is a pair with an unspecified address (`0.0.0.0`,
            `::`).
    """
    parsed = [parse_ip(part) for part in text.split(",")]
    addresses = [ip for ip in parsed if ip is not None]
    fault = ""
    if len(addresses) != len(parsed):
        fault = "contains an invalid IP address"
    elif len(addresses) > 2 or len({ip.version for ip in addresses}) != len(addresses):
        fault = "must be one IP address, or one IPv4 and one IPv6 address"
    elif len(addresses) == 2 and any(ip.is_unspecified for ip in addresses):
        fault = "must not pair the unspecified address with another one"
    if fault:
        raise Rejected(f"annotation {names.ANNOTATION_PROVIDED_NODE_IP}={text!r} {fault}")
    return addresses


def addresses_differ(old: Sequence[NodeAddress], new: Sequence[NodeAddress]) -> bool:
    """Return whether two address lists differ; order counts only among addresses of one type.

    `Deviation:` the Go controller compares only one address per type. So it rewrites dual-stack
    nodes again and again, and misses some changes.
    """
    return _by_type(old) != _by_type(new)


def initialization(node: Node, metadata: InstanceMetadata) -> tuple[Patch, Sequence[str]]:
    """Return the patch that makes the node usable, and warnings about omitted labels.

    The patch sets labels and provider ID and removes the init taint, with the node's
    resourceVersion as a precondition.

    Raises:
        Rejected: the metadata contains a label that the API server would refuse.
    """
    wanted, warnings = desired_labels(node, metadata)
    faults = [
        f"label {key}: {fault}"
        for key, value in wanted.items()
        if (fault := labels.key_fault(key) or labels.value_fault(value))
    ]
    if faults:
        raise Rejected("the cloud's labels are not valid: " + "; ".join(faults))
    body = version_precondition(node)
    changed = {key: value for key, value in wanted.items() if node.labels.get(key) != value}
    if changed:
        body["labels"] = changed
    kept = [taint for taint in node.taints if taint.key != names.TAINT_UNINITIALIZED]
    spec: dict[str, Any] = {"taints": taints_value(kept)}
    if metadata.provider_id and not node.provider_id:
        spec["providerID"] = metadata.provider_id
    return {"metadata": body, "spec": spec}, warnings


def desired_labels(
    node: Node, metadata: InstanceMetadata
) -> tuple[Mapping[str, str], Sequence[str]]:
    """Return the labels that initialisation sets, and warnings about omitted labels.

    The labels for instance type, zone and region overwrite existing labels; additional labels do
    not.
    """
    wanted: dict[str, str] = {}
    for pair, value in (
        ((names.LABEL_INSTANCE_TYPE_BETA, names.LABEL_INSTANCE_TYPE), metadata.instance_type),
        ((names.LABEL_ZONE_BETA, names.LABEL_ZONE), metadata.zone),
        ((names.LABEL_REGION_BETA, names.LABEL_REGION), metadata.region),
    ):
        if value:
            wanted.update(dict.fromkeys(pair, value))
    warnings = []
    present = {**node.labels, **wanted}
    for key, value in metadata.additional_labels.items():
        if _RESERVED_LABEL.search(key):
            warnings.append(f"additional label {key} is reserved for Kubernetes")
        elif key not in present:
            wanted[key] = value
        elif present[key] != value:
            warnings.append(f"additional label {key}={value}: the node has another value")
    return wanted, warnings


def label_patch(node: Node) -> Patch | None:
    """Return the patch that copies beta labels to the stable labels; None if they are equal.

    A node without the beta label keeps the stable label. The patch has the node's UID as a
    precondition.
    """
    behind = {
        stable: node.labels[beta]
        for beta, stable in names.LABEL_PAIRS
        if beta in node.labels and node.labels.get(stable) != node.labels[beta]
    }
    return {"metadata": {**uid_precondition(node), "labels": behind}} if behind else None


def needs_sync(old: Node | None, new: Node) -> bool:
    """Return whether a change of the node needs a reconcile at once.

    An initialised node needs a reconcile only if its stable labels are outdated. An uninitialised
    node needs a reconcile only if its UID, spec, labels or annotations changed, or during a resync.
    Status heartbeats must not override a back-off. `Deviation:` the Go controller queues every
    update.

    Args:
        old: the node before the change; None = a new node; `new` itself during a resync.
        new: the node after the change.
    """
    if not is_uninitialized(new):
        return label_patch(new) is not None
    return (
        old is None
        or old is new
        or old.uid != new.uid
        or old.spec != new.spec
        or old.labels != new.labels
        or old.annotations != new.annotations
    )


def _by_type(addresses: Sequence[NodeAddress]) -> Mapping[str, Sequence[str]]:
    grouped: dict[str, list[str]] = {}
    for entry in addresses:
        grouped.setdefault(entry.type, []).append(entry.address)
    return grouped
