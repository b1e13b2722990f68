"""What a scenario looks at in a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccm.model import names


def missing(node: Mapping[str, Any]) -> list[str]:
    """What an initialised node has and this one has not."""
    meta, spec, status = node["metadata"], node["spec"], node.get("status", {})
    kinds = {entry["type"] for entry in status.get("addresses", ())}
    wanted = (names.LABEL_INSTANCE_TYPE, names.LABEL_ZONE, names.LABEL_REGION)
    lacking = [key for key in wanted if key not in meta.get("labels", {})]
    if not spec.get("providerID"):
        lacking.append("provider ID")
    if names.ADDRESS_INTERNAL_IP not in kinds:
        lacking.append("addresses")
    if names.TAINT_UNINITIALIZED in taints(node):
        lacking.append("lifted taint")
    return lacking


def taints(node: Mapping[str, Any]) -> list[str]:
    """The keys of a node's taints."""
    return [taint["key"] for taint in node["spec"].get("taints") or ()]


def addresses(node: Mapping[str, Any]) -> dict[str, str]:
    """A node's addresses by type."""
    return {entry["type"]: entry["address"] for entry in node["status"].get("addresses", ())}
