"""Secrets: the same life as objects, other values; and a store that seals them.

The default is the cluster's own Secrets (`kubesecrets`). `EncryptedSecretStore` is for copies
elsewhere: it seals values before any other store sees them. Names are not secret.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ccm.persistence import keyring, objects, registry
from ccm.persistence.engine import Turns
from ccm.persistence.errors import (
    BackendDead,
    Closed,
    CorruptObject,
    InvalidObject,
    NotInitialized,
    ObjectTooLarge,
    VersionConflict,
)
from ccm.persistence.interface import (
    ABSENT,
    CAS,
    GVK,
    MachineId,
    ObjectKey,
    PersistenceProviderStatus,
    require,
)
from ccm.persistence.keyring import Keyring
from ccm.persistence.objects import canonical
from ccm.persistence.registry import Context, backend

SEALED = GVK("secrets.ccm", "v1", "SealedSecret")
SALT = GVK("secrets.ccm", "v1", "Salt")
FORMAT = 1
LARGEST = 1 << 20
"""Bytes of a secret's values, as the API server takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationReport:
    """What a rotation did.

    Attributes:
        rewritten: sealed anew.
        current: sealed with the active key before.
        left: damaged, or changed meanwhile; while it is not 0 the old key is still needed.
    """

    rewritten: int = 0
    current: int = 0
    left: int = 0


class SecretStore:
    """What every secret store does alike, over a provider of objects.

    Args:
        inner: where objects are kept.
        kind: of the objects.
    """

    def __init__(self, inner: Any, kind: GVK) -> None:
        require("of secrets", inner)
        self._inner = inner
        self._kind = kind
        self._machine: MachineId | None = None
        self._turns = Turns()
        self._closed = False

    async def initialize(self, machine_id: MachineId) -> None:
        """See `PersistenceProvider.initialize`."""
        self._machine = self._machine or machine_id
        await self._inner.initialize(machine_id)

    def instances(self) -> Sequence[str]:
        """See `PersistenceProvider.instances`."""
        found: Sequence[str] = self._inner.instances()
        return found

    async def instance_status(self, instance: str) -> PersistenceProviderStatus:
        """See `PersistenceProvider.instance_status`."""
        found: PersistenceProviderStatus = await self._inner.instance_status(instance)
        return found

    async def put_secret(self, instance: str, name: str, data: Mapping[str, bytes]) -> ObjectKey:
        """Store a secret in the place of what was there."""
        if self._machine is None:
            raise NotInitialized("initialize comes first")
        if self._closed:
            raise Closed("the store is closed")
        packed = _packed(data)
        # Sealed in its turn: sealing takes a thread, and threads overtake each other.
        async with self._turns.of((instance, objects.key_of("", name))):
            obj = await self._object(instance, name, packed)
            key: ObjectKey = await self._inner.put_object(instance, obj)
        return key

    async def get_secret(self, instance: str, key: ObjectKey) -> Mapping[str, bytes] | None:
        """Return the values of a secret; None: it is absent."""
        obj = await self._inner.get_object(instance, self._kind, key)
        return None if obj is None else _unpacked(await self._value(instance, key, obj))

    async def delete_secret(self, instance: str, key: ObjectKey) -> None:
        """Remove a secret; silent if it is absent."""
        async with self._turns.of((instance, key)):
            await self._inner.delete_object(instance, self._kind, key)

    async def list_secrets(self, instance: str) -> list[ObjectKey]:
        """Return the keys of all secrets, never a value."""
        found = await self._inner.get_all_objects(instance, self._kind)
        return [objects.key_of("", obj["metadata"]["name"]) for obj in found]

    async def rotate(self, instance: str) -> RotationReport:
        """Seal with the active key what is sealed with another; may be cut and called again."""
        rewritten = current = left = 0
        for key in await self.list_secrets(instance):
            try:
                async with self._turns.of((instance, key)):
                    done = await self._anew(instance, key)
            except (CorruptObject, VersionConflict):
                left += 1
                continue
            rewritten += done
            current += not done
        return RotationReport(rewritten=rewritten, current=current, left=left)

    async def close(self) -> None:
        """See `PersistenceProvider.close`."""
        self._closed = True
        await self._turns.idle()
        await self._inner.close()

    async def _anew(self, instance: str, key: ObjectKey) -> bool:
        """Write a secret anew; False: it needs that not, or is gone."""
        has_versions = CAS in getattr(self._inner, "capabilities", lambda _: frozenset())(instance)
        if has_versions:
            found = await self._inner.get_versioned(instance, self._kind, key)
            obj, expect = found or (None, None)
        else:
            obj, expect = await self._inner.get_object(instance, self._kind, key), None
        if obj is None or await self._is_current(instance, obj):
            return False
        value = await self._value(instance, key, obj)
        anew = await self._object(instance, obj["metadata"]["name"], value)
        if has_versions:
            await self._inner.put_versioned(instance, anew, expect=expect)
        else:
            await self._inner.put_object(instance, anew)
        return True

    async def _object(self, instance: str, name: str, value: bytes) -> dict[str, Any]:
        return {
            "apiVersion": self._kind.api_version,
            "kind": self._kind.kind,
            "metadata": {"name": name},
            "spec": await self._sealed(instance, objects.key_of("", name), value),
        }

    async def _sealed(self, instance: str, key: ObjectKey, value: bytes) -> dict[str, str]:
        raise NotImplementedError

    async def _value(self, instance: str, key: ObjectKey, obj: Mapping[str, Any]) -> bytes:
        raise NotImplementedError

    async def _is_current(self, instance: str, obj: Mapping[str, Any]) -> bool:
        raise NotImplementedError


SECRET_METHODS = tuple(name for name in vars(SecretStore) if not name.startswith("_"))


class EncryptedSecretStore(SecretStore):
    """Seals values before the other provider sees them.

    Args:
        inner: where sealed objects are kept.
        ring: its keys.
        phrases: passphrases that further keys are derived from, after those of the ring; their
            salt is kept in each instance.
    """

    def __init__(self, inner: Any, ring: Sequence[bytes], phrases: Sequence[bytes] = ()) -> None:
        super().__init__(inner, SEALED)
        self._ring = tuple(ring)
        self._phrases = tuple(phrases)
        self._rings: dict[str, Keyring] = {}
        if not phrases:
            Keyring(ring)  # see now that it is one

    def __repr__(self) -> str:
        return f"EncryptedSecretStore({self._inner!r})"

    @property
    def has_old_keys(self) -> bool:
        """Whether something may be sealed with a key that is to go."""
        return len(self._ring) + len(self._phrases) > 1

    async def _sealed(self, instance: str, key: ObjectKey, value: bytes) -> dict[str, str]:
        ring = await self._keyring(instance)
        return await asyncio.to_thread(ring.seal, value, self._where(key))

    async def _value(self, instance: str, key: ObjectKey, obj: Mapping[str, Any]) -> bytes:
        ring, sealed = await self._keyring(instance), obj.get("spec")
        if not isinstance(sealed, Mapping):
            raise CorruptObject("what is stored is no sealed secret")
        return await asyncio.to_thread(ring.open, sealed, self._where(key))

    async def _is_current(self, instance: str, obj: Mapping[str, Any]) -> bool:
        ring = await self._keyring(instance)
        return bool(obj.get("spec", {}).get("keyId") == ring.active)

    def _where(self, key: ObjectKey) -> bytes:
        assert self._machine is not None
        where = {"format": FORMAT, "clusterUID": self._machine.cluster_uid, "key": key}
        return canonical(where | SEALED._asdict())

    async def _keyring(self, instance: str) -> Keyring:
        if instance not in self._rings:
            derived = []
            if self._phrases:
                salt = await self._salt(instance)
                derived = [
                    await asyncio.to_thread(keyring.derived, phrase, salt)
                    for phrase in self._phrases
                ]
            self._rings[instance] = Keyring([*self._ring, *derived])
        return self._rings[instance]

    async def _salt(self, instance: str) -> bytes:
        """Made once; whoever comes second takes that of the first."""
        made = {
            "apiVersion": SALT.api_version,
            "kind": SALT.kind,
            "metadata": {"name": "salt"},
            "spec": {"salt": os.urandom(keyring.SALT_BYTES).hex()},
        }
        key = objects.key_of("", "salt")
        found = await self._inner.get_object(instance, SALT, key)
        if found is None:
            try:
                await self._inner.put_versioned(instance, made, expect=ABSENT)
            except (AttributeError, VersionConflict) as error:
                found = await self._inner.get_object(instance, SALT, key)
                if found is None:
                    raise BackendDead(
                        "a passphrase needs storage that keeps conditions; give it a key file"
                    ) from error
            found = found or made
        return bytes.fromhex(found["spec"]["salt"])


def _packed(data: Any) -> bytes:
    if not isinstance(data, Mapping) or not all(
        isinstance(name, str) and isinstance(value, bytes) for name, value in data.items()
    ):
        raise InvalidObject("a secret is a mapping of names to bytes")
    if sum(map(len, data.values())) > LARGEST:
        raise ObjectTooLarge(f"a secret may have {LARGEST} bytes")
    return canonical({name: base64.b64encode(value).decode() for name, value in data.items()})


def _unpacked(raw: bytes) -> dict[str, bytes]:
    try:
        found = json.loads(raw)
        return {str(name): base64.b64decode(value) for name, value in found.items()}
    except (ValueError, AttributeError, TypeError):
        raise CorruptObject("what is stored is no secret") from None


class EncryptedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sealed copies in storage of any kind."""

    storage: Annotated[
        dict[str, Any],
        msgspec.Meta(description="Where, as one entry of `instances`: a backend and its settings."),
    ]
    key_files: Annotated[
        tuple[Path, ...],
        msgspec.Meta(description="Files of mode 0400 with 32 bytes each; the first one seals."),
    ] = ()
    passphrase_files: Annotated[
        tuple[Path, ...],
        msgspec.Meta(description="Files of mode 0400 with passphrases, after the keys."),
    ] = ()


@backend(config=EncryptedConfig)
def storage(given: Sequence[EncryptedConfig], context: Context) -> EncryptedSecretStore:
    """Build the secret store of the backend `encrypted`."""
    if len(given) != 1:
        raise BackendDead("one encrypted store, with one storage, is what secrets take")
    config = given[0]
    ring = keyring.from_files(config.key_files)
    phrases = [keyring.passphrase(path) for path in config.passphrase_files]
    if len(config.storage) != 1:
        raise BackendDead("storage must name one backend, such as `file: {root: /var/lib/ccm}`")
    ((name, settings),) = config.storage.items()
    declared, make = registry.load(name)
    inner = make([context.read(declared, settings or {}, f"storage.{name}")], context)
    return EncryptedSecretStore(inner, ring, phrases)
