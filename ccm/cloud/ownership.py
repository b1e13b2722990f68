"""Which nodes are this daemon's; every controller that looks after nodes asks here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ccm.cloud.interface import Cloud
from ccm.cloud.provider_id import is_foreign
from ccm.model import Node
from ccm.model.node import is_uninitialized
from ccm.model.selectors import Requirement, parse_labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Which nodes are ours; about the others no cloud is asked, and nothing of them is changed.

    Attributes:
        schemes: provider-ID schemes of our cloud.
        others: what provider IDs of these begin with that are others' all the same.
        selector: what the labels of our nodes satisfy; empty = all nodes may be ours.
    """

    schemes: Collection[str]
    others: Collection[str] = ()
    selector: tuple[Requirement, ...] = ()

    @classmethod
    def of(cls, schemes: Collection[str], own_nodes: str) -> Ownership:
        """By the text of `--own-nodes`. Raises BadSelectorError."""
        return cls(schemes=tuple(schemes), selector=parse_labels(own_nodes))

    @classmethod
    def at(cls, cloud: Cloud, own_nodes: str) -> Ownership:
        """With a provider, by the text of `--own-nodes`. Raises BadSelectorError."""
        return replace(cls.of(cloud.provider_schemes, own_nodes), others=cloud.foreign_ids)

    @property
    def is_explicit(self) -> bool:
        """Whether somebody said which nodes are ours."""
        return bool(self.selector)

    def is_foreign(self, node: Node) -> bool:
        """Whether a node belongs to another cloud, or to another manager of this one."""
        return self.has_foreign_id(node) or not all(
            term.matches(node.labels) for term in self.selector
        )

    def may_touch(self, node: Node, *, is_claimed: bool) -> bool:
        """Whether a node may be changed before the cloud was asked about it.

        One with neither provider ID nor the taint that waits for a cloud may be anybody's.

        Args:
            node: the node.
            is_claimed: whether the provider in use has confirmed its instance.
        """
        says_ours = node.provider_id or is_uninitialized(node) or self.is_explicit
        return (bool(says_ours) or is_claimed) and not self.is_foreign(node)

    def has_foreign_id(self, node: Node) -> bool:
        """Whether its provider ID names another cloud."""
        return is_foreign(node.provider_id, self.schemes, self.others)
