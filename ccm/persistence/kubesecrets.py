"""Default storage of secrets: Secret objects of the cluster, in the daemon's namespace.

A key rotation rewrites each Secret, so that the API server encrypts it with its current key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ccm.persistence import objects
from ccm.persistence.engine import StoreProvider
from ccm.persistence.errors import BackendDead, CorruptObject
from ccm.persistence.interface import GVK
from ccm.persistence.kubestore import SECRETS, KubernetesConfig, KubeStore
from ccm.persistence.registry import BackendContext, backend
from ccm.persistence.secrets import SecretStore

STORED = GVK("secrets.ccm", "v1", "StoredSecret")


class PlainRing:
    """Keyring that does not encrypt; the API server may encrypt its Secrets."""

    active = ""
    """ID of no key, so that a rotation rewrites every Secret."""

    def seal(self, value: bytes, where: bytes) -> dict[str, str]:  # noqa: ARG002
        return {"data": value.decode()}

    def open(self, sealed: Mapping[str, Any], where: bytes) -> bytes:  # noqa: ARG002
        data = sealed.get("data")
        if not isinstance(data, str):
            raise CorruptObject("the stored object is not a secret")
        return data.encode()


@backend(config=KubernetesConfig)
def storage(configs: Sequence[KubernetesConfig], context: BackendContext) -> SecretStore:
    """Build the secret store of the backend `kubernetes`."""
    if len(configs) != 1:
        raise BackendDead("secret store kubernetes: needs exactly one configuration")
    store = KubeStore(SECRETS, configs[0], context)
    named = {objects.instance_name("kubernetes", store.identity()): store}
    inner = StoreProvider("kubernetes", named, writer=context.writer, sensitive=True)
    return SecretStore(inner, STORED, PlainRing())
