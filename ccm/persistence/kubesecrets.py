"""Default storage of secrets: Secret objects of the cluster, in the daemon's namespace.

A key rotation rewrites each Secret, so that the API server encrypts it with its current key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ccm.persistence import objects
from ccm.persistence.engine import StoreProvider
from ccm.persistence.errors import BackendDead, CorruptObject
from ccm.persistence.interface import GVK, ObjectKey
from ccm.persistence.kubestore import SECRETS, KubernetesConfig, KubeStore
from ccm.persistence.registry import BackendContext, backend
from ccm.persistence.secrets import SecretStore

STORED = GVK("secrets.ccm", "v1", "StoredSecret")


class KubernetesSecretStore(SecretStore):
    """Secret store on top of the cluster's Secrets.

    Args:
        config: namespace of the Secrets.
        context: context of the backend.
    """

    def __init__(self, config: KubernetesConfig, context: BackendContext) -> None:
        store = KubeStore(SECRETS, config, context)
        named = {objects.instance_name("kubernetes", store.identity()): store}
        inner = StoreProvider("kubernetes", named, writer=context.writer, sensitive=True)
        super().__init__(inner, STORED)

    def _seal(self, key: ObjectKey, value: bytes) -> dict[str, str]:  # noqa: ARG002
        return {"data": value.decode()}

    def _unseal(self, key: ObjectKey, obj: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        data = obj.get("spec", {}).get("data")
        if not isinstance(data, str):
            raise CorruptObject("the stored object is not a secret")
        return data.encode()

    def _is_current(self, obj: Mapping[str, Any]) -> bool:  # noqa: ARG002
        return False


@backend(config=KubernetesConfig)
def storage(configs: Sequence[KubernetesConfig], context: BackendContext) -> KubernetesSecretStore:
    """Build the secret store of the backend `kubernetes`."""
    if len(configs) != 1:
        raise BackendDead("secret store kubernetes: needs exactly one configuration")
    return KubernetesSecretStore(configs[0], context)
