"""What a node needs, decided from the node and what its cloud says. Pure.

Initialising a node takes two writes: a status patch with the addresses, then one patch
that carries labels, provider ID and the lifted taint together with the resourceVersion
it was planned for. Addresses come first so that no Pod lands on a node without them.

`Deviation:` the Go reference lifts the taint with a PUT of the whole object and patches
the addresses afterwards; a failed address patch then waits for the next periodic pass.
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
from ccm.model.patches import Patch, StaleObject, same_object, same_version

_RESERVED_LABEL = re.compile(r"(^|\.)(kubernetes|k8s)\.io/")
"""Label keys that a provider's additional labels may not touch (Go cloud-provider)."""


class Rejected(Exception):
    """The cloud's answer does not fit this node until somebody changes something.

    The message goes into the Warning event; the controller retries slowly, and at once
    when the node changes.
    """


def completed(
    node: Node,
    metadata: InstanceMetadata,
    *,
    id_required: bool,
    schemes: Collection[str],
    others: Collection[str],
) -> InstanceMetadata:
    """The metadata with the node's own provider ID where the cloud gave none.

    Args:
        node: the node to initialise.
        metadata: what the cloud says.
        id_required: False only on the old interface, which may not know IDs.
        schemes: the provider-ID schemes of our cloud.
        others: what provider IDs of these begin with that are others' all the same.

    Raises:
        Rejected: neither has a provider ID, the cloud's is of a scheme that is not its own or
            one that it leaves alone, or the provided node IP does not match.
        StaleObject: the node is initialised by now.
    """
    if not is_uninitialized(node):
        raise StaleObject
    if not metadata.provider_id and node.provider_id:
        metadata = replace(metadata, provider_id=node.provider_id)
    if not metadata.provider_id and id_required:
        raise Rejected("the cloud gave no provider ID and the node has none")
    if not node.provider_id and is_foreign(metadata.provider_id, schemes, others):
        # Once written it stays, and a node with a foreign one is never looked after again.
        but = f", and others' begin with {', '.join(others)}" if others else ""
        raise Rejected(
            f"the cloud gave provider ID {metadata.provider_id}, but its schemes are "
            f"{', '.join(schemes)}{but}; correct the provider"
        )
    provided = node.annotations.get(names.ANNOTATION_PROVIDED_NODE_IP)
    if provided is not None:
        # Against the cloud's own addresses: the kubelet's Hostname proves nothing.
        addresses_for_node_ip(provided, metadata.addresses)
    return metadata


def address_patch(node: Node, cloud_addresses: Sequence[NodeAddress]) -> Patch | None:
    """The status patch that brings the node's addresses in step; None when they are.

    The list is written whole, so the patch carries the version it was computed from: an
    address that the kubelet added in between is not lost, nor written onto another machine
    that took the name. `Deviation:` the Go reference binds it to nothing.

    Raises:
        Rejected: the provided node IP does not match the cloud's addresses.
    """
    wanted = desired_addresses(node, cloud_addresses)
    if wanted is None or not addresses_differ(node.addresses, wanted):
        return None
    # The API declares `type` as the list's merge key, which is not unique: without the
    # replace directive the server would merge entries of one type into each other.
    entries: list[Any] = [msgspec.to_builtins(entry) for entry in wanted]
    return {
        "metadata": same_version(node),
        "status": {"addresses": [*entries, {"$patch": "replace"}]},
    }


def desired_addresses(
    node: Node, cloud_addresses: Sequence[NodeAddress]
) -> Sequence[NodeAddress] | None:
    """The addresses the node should have; None = leave those it has.

    Order: addresses that match the provided node IP in its order, the cloud's in the
    cloud's order, and the kubelet's Hostname unless the cloud gave one.

    Raises:
        Rejected: the provided node IP is no IP, or no address of the cloud matches it.
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
    """Put the addresses that match the provided node IP first; drop others of their types.

    Raises:
        Rejected: the text is no IP or IP pair, or one of its IPs matches no address.
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
    """The IPs in a provided-node-IP annotation: one, or one of each family.

    Raises:
        Rejected: anything else; a pair may not contain the unspecified address.
    """
    parsed = [parse_ip(part) for part in text.split(",")]
    found = [ip for ip in parsed if ip is not None]
    fault = ""
    if len(found) != len(parsed):
        fault = "has a part that is no IP address"
    elif len(found) > 2 or len({ip.version for ip in found}) != len(found):
        fault = "must be one IP address, or one IPv4 and one IPv6 address"
    elif len(found) == 2 and any(ip.is_unspecified for ip in found):
        fault = "pairs the unspecified address with another"
    if fault:
        raise Rejected(f"annotation {names.ANNOTATION_PROVIDED_NODE_IP}={text!r} {fault}")
    return found


def addresses_differ(old: Sequence[NodeAddress], new: Sequence[NodeAddress]) -> bool:
    """Whether two address lists differ; order counts among addresses of one type only.

    `Deviation:` the Go reference compares one address per type, so that dual-stack nodes
    look changed for ever and some changes are missed.
    """
    return _by_type(old) != _by_type(new)


def initialization(node: Node, metadata: InstanceMetadata) -> tuple[Patch, Sequence[str]]:
    """The patch that makes the node usable: labels, provider ID, and no init taint.

    It is bound to the node's resourceVersion. The warnings say what was left out and why.

    Raises:
        Rejected: a label the cloud wants is none the API server would take.
    """
    wanted, warnings = desired_labels(node, metadata)
    faults = [
        f"label {key}: {fault}"
        for key, value in wanted.items()
        if (fault := labels.key_fault(key) or labels.value_fault(value))
    ]
    if faults:
        raise Rejected("the cloud's labels are not valid: " + "; ".join(faults))
    body = same_version(node)
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
    """The labels initialisation sets, and what it leaves out and why.

    Type, zone and region overwrite; an additional label never does.
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
            warnings.append(f"additional label {key}={value} differs from the node's, which stays")
    return wanted, warnings


def label_patch(node: Node) -> Patch | None:
    """The patch that makes stable labels follow their beta twins; None when they do.

    A node without a beta label keeps its stable one. The patch carries the node's UID.
    """
    behind = {
        stable: node.labels[beta]
        for beta, stable in names.LABEL_PAIRS
        if beta in node.labels and node.labels.get(stable) != node.labels[beta]
    }
    return {"metadata": {**same_object(node), "labels": behind}} if behind else None


def needs_sync(old: Node | None, new: Node) -> bool:
    """Whether a change of the node gives the controller something to do at once.

    An uninitialised node counts when something that may matter to its cloud changed;
    status heartbeats do not, so that they cannot override a back-off.
    `Deviation:` the Go reference queues every update.
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
