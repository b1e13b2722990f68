"""Storage of secrets on top of object storage.

The default is storage in Secrets of the cluster (`kubesecrets`). `EncryptedSecretStore` stores
copies elsewhere: it seals (encrypts) values before it passes them to another store. The names of
secrets are not encrypted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ccm.persistence import keyring, objects
from ccm.persistence.errors import (
    BackendDead,
    CorruptObject,
    InvalidObject,
    NotInitialized,
    ObjectTooLarge,
    VersionConflict,
)
from ccm.persistence.interface import (
    GVK,
    METHODS,
    MachineId,
    ObjectKey,
    PersistenceProviderStatus,
    VersionedPersistence,
    require,
)
from ccm.persistence.keyring import Keyring
from ccm.persistence.objects import to_canonical_json
from ccm.persistence.registry import BackendContext, backend

SEALED = GVK("secrets.ccm", "v1", "SealedSecret")
FORMAT = 1
MAX_BYTES = 1 << 20
"""Maximum bytes of a secret's values, the limit of the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationReport:
    """Result of a key rotation.

    Attributes:
        rewritten: number of secrets sealed again with the active key.
        current: number of secrets that needed no change, or were deleted meanwhile.
        failed: number of secrets that are damaged or were changed concurrently. If it is not 0,
            the old key is still needed.
    """

    rewritten: int = 0
    current: int = 0
    failed: int = 0


class SecretStore:
    """Secret store on top of an object provider.

    Args:
        inner: the object provider.
        kind: kind of the stored objects.
        ring: seals the values, as `Keyring` does.
    """

    def __init__(self, inner: VersionedPersistence, kind: GVK, ring: Any) -> None:
        require("secrets", inner, (*METHODS, "get_versioned", "put_versioned"))
        self._inner = inner
        self._kind = kind
        self._ring = ring
        self._machine: MachineId | None = None

    async def initialize(self, machine_id: MachineId) -> None:
        """See `PersistenceProvider.initialize`."""
        self._machine = self._machine or machine_id
        await self._inner.initialize(machine_id)

    def instances(self) -> Sequence[str]:
        """See `PersistenceProvider.instances`."""
        return self._inner.instances()

    async def instance_status(self, instance: str) -> PersistenceProviderStatus:
        """See `PersistenceProvider.instance_status`."""
        return await self._inner.instance_status(instance)

    async def put_secret(self, instance: str, name: str, data: Mapping[str, bytes]) -> ObjectKey:
        """Store a secret, replacing its former values; return its object key."""
        return await self._inner.put_object(instance, self._build_object(name, _pack(data)))

    async def get_secret(self, instance: str, key: ObjectKey) -> Mapping[str, bytes] | None:
        """Return the values of a secret; None if it is absent."""
        obj = await self._inner.get_object(instance, self._kind, key)
        return None if obj is None else _unpack(self._open(key, obj))

    async def delete_secret(self, instance: str, key: ObjectKey) -> None:
        """Delete a secret; succeed if it is absent."""
        await self._inner.delete_object(instance, self._kind, key)

    async def list_secrets(self, instance: str) -> list[ObjectKey]:
        """Return the object keys of all secrets, without values."""
        stored = await self._inner.get_all_objects(instance, self._kind)
        return [objects.key_of("", obj["metadata"]["name"]) for obj in stored]

    async def rotate(self, instance: str) -> RotationReport:
        """Seal all secrets again with the active key; may be cancelled and repeated."""
        rewritten = current = failed = 0
        for key in await self.list_secrets(instance):
            try:
                was_rewritten = await self._reseal(instance, key)
            except (CorruptObject, VersionConflict):
                failed += 1
                continue
            rewritten += was_rewritten
            current += not was_rewritten
        return RotationReport(rewritten=rewritten, current=current, failed=failed)

    async def close(self) -> None:
        """See `PersistenceProvider.close`."""
        await self._inner.close()

    async def _reseal(self, instance: str, key: ObjectKey) -> bool:
        """Seal a secret again with the active key; return whether it was rewritten.

        False = the active key already seals the secret, or the secret was deleted.
        """
        stored = await self._inner.get_versioned(instance, self._kind, key)
        if stored is None or stored[0].get("spec", {}).get("keyId") == self._ring.active:
            return False
        obj, version = stored
        resealed = self._build_object(obj["metadata"]["name"], self._open(key, obj))
        await self._inner.put_versioned(instance, resealed, expect=version)
        return True

    def _build_object(self, name: str, value: bytes) -> dict[str, Any]:
        return {
            "apiVersion": self._kind.api_version,
            "kind": self._kind.kind,
            "metadata": {"name": name},
            "spec": self._ring.seal(value, self._place(objects.key_of("", name))),
        }

    def _open(self, key: ObjectKey, obj: Mapping[str, Any]) -> bytes:
        sealed = obj.get("spec")
        if not isinstance(sealed, Mapping):
            raise CorruptObject("the stored object is not a secret")
        value: bytes = self._ring.open(sealed, self._place(key))
        return value

    def _place(self, key: ObjectKey) -> bytes:
        """Return the authenticated data that binds a value to its place."""
        if self._machine is None:
            raise NotInitialized("not initialized; call initialize first")
        place = {"format": FORMAT, "clusterUID": self._machine.cluster_uid, "key": key}
        return to_canonical_json(place | self._kind._asdict())


SECRET_METHODS = tuple(name for name in vars(SecretStore) if not name.startswith("_"))


class EncryptedSecretStore(SecretStore):
    """Secret store that seals values before it passes them to another provider.

    Args:
        inner: provider for the sealed objects.
        ring: keys of the keyring; the first key seals.
    """

    def __init__(self, inner: VersionedPersistence, ring: Sequence[bytes]) -> None:
        super().__init__(inner, SEALED, Keyring(ring))
        self.has_old_keys = len(ring) > 1
        """Whether the keyring has a second key, with which older secrets may be sealed."""

    def __repr__(self) -> str:
        return f"EncryptedSecretStore({self._inner!r})"


def _pack(data: Any) -> bytes:
    if not isinstance(data, Mapping) or not all(
        isinstance(name, str) and isinstance(value, bytes) for name, value in data.items()
    ):
        raise InvalidObject("a secret must be a mapping of names to bytes")
    if sum(map(len, data.values())) > MAX_BYTES:
        raise ObjectTooLarge(f"a secret can contain at most {MAX_BYTES} bytes")
    return to_canonical_json(
        {name: base64.b64encode(value).decode() for name, value in data.items()}
    )


def _unpack(raw: bytes) -> dict[str, bytes]:
    try:
        encoded = json.loads(raw)
        return {str(name): base64.b64decode(value) for name, value in encoded.items()}
    except (ValueError, AttributeError, TypeError):
        raise CorruptObject("the stored object is not a secret") from None


class EncryptedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Encrypted copies in other storage."""

    storage: Annotated[
        dict[str, Any],
        msgspec.Meta(description="Backend and its settings, as in an entry of `instances`."),
    ]
    key_files: Annotated[
        tuple[Path, ...],
        msgspec.Meta(description="Files of mode 0400 with 32 bytes each. The first key encrypts."),
    ] = ()


@backend(config=EncryptedConfig)
def storage(configs: Sequence[EncryptedConfig], context: BackendContext) -> EncryptedSecretStore:
    """Build the secret store of the backend `encrypted`."""
    if len(configs) != 1:
        raise BackendDead("secret store encrypted: needs exactly one configuration")
    ring = keyring.read_keys(configs[0].key_files)
    assert context.build is not None
    return EncryptedSecretStore(
        context.build(configs[0].storage, "secrets.encrypted.storage"), ring
    )
