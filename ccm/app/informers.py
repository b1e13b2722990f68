"""The shared caches as the provider SDK promises them (`ccm.cloud.InformerFactory`)."""

from __future__ import annotations

from collections.abc import Callable

from ccm.kube.informer import Informer
from ccm.model import Node


class ProviderInformers:
    """Hands a provider the shared cache of nodes."""

    def __init__(self, nodes: Informer[Node]) -> None:
        self._nodes = nodes

    def on_node(self, handler: Callable[[Node | None, Node | None], None]) -> None:
        """Call `handler(old, new)` for every change of a Node."""
        self._nodes.add_handler(
            name="provider",
            on_add=lambda node, _: handler(None, node),
            on_update=handler,
            on_delete=lambda node: handler(node, None),
        )

    def node(self, name: str) -> Node | None:
        """The cached Node; None when there is none."""
        return self._nodes.store.get(name)
