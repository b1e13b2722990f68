"""Helpers for address lists, public to providers."""

from __future__ import annotations

from collections.abc import Sequence

from ccm.model import NodeAddress


def add_to_node_addresses(
    existing: Sequence[NodeAddress], *added: NodeAddress
) -> list[NodeAddress]:
    """A new list with each address appended that is not there yet (same type and text)."""
    result = list(existing)
    for entry in added:
        if entry not in result:
            result.append(entry)
    return result
