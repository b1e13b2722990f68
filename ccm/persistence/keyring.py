"""Keyring for the encryption of secrets; the only module here that imports `cryptography`.

Each write uses a fresh data key (AES-256-GCM), which is encrypted with a key of the ring. So no
nonce is ever reused with a data key. The authenticated data contains the secret's name, kind and
cluster, so an encrypted value that was copied to another place cannot be decrypted. The replacement
by an *older* encrypted value of the same secret cannot be detected.

Python cannot wipe memory, so keys stay in memory until the memory is reused.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ccm.base.files import describe_error
from ccm.persistence.errors import BackendDead, CorruptObject

KEY_BYTES = 32
NONCE_BYTES = 12


class Keyring:
    """List of keys: the first key encrypts, and every key decrypts.

    Args:
        ring: keys of 32 bytes each.

    Attributes:
        active: ID of the key that encrypts.

    Raises:
        BackendDead: there is no key, or a key does not have 32 bytes.
    """

    def __init__(self, ring: Sequence[bytes]) -> None:
        if not ring or any(len(key) != KEY_BYTES for key in ring):
            raise BackendDead(f"a keyring needs at least one key, each of {KEY_BYTES} bytes")
        self._keys = {_key_id(key): key for key in ring}
        self.active = _key_id(ring[0])

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._keys)})"

    def seal(self, value: bytes, where: bytes) -> dict[str, str]:
        """Encrypt a value with the active key.

        Args:
            value: the plain value.
            where: authenticated data that binds the value to its place.
        """
        key = AESGCM.generate_key(bit_length=8 * KEY_BYTES)
        return {
            "keyId": self.active,
            "sealedKey": _encrypt(self._keys[self.active], key, _bind(where, self.active)),
            "sealed": _encrypt(key, value, _bind(where, self.active)),
        }

    def open(self, sealed: Mapping[str, object], where: bytes) -> bytes:
        """Decrypt a sealed value.

        Raises:
            CorruptObject: the value was changed or moved, or its key is not in the ring.
        """
        name = str(sealed.get("keyId"))
        if name not in self._keys:
            raise CorruptObject(
                f"the secret is sealed with key {name}, which is not in the keyring"
            )
        bound = _bind(where, name)
        key = _decrypt(self._keys[name], sealed.get("sealedKey"), bound)
        return _decrypt(key, sealed.get("sealed"), bound)


def read_keys(paths: Sequence[Path]) -> list[bytes]:
    """Read keys from files of 32 bytes each, raw or in base64.

    Raises:
        BackendDead: a file is unreadable, accessible to other users, or contains no key.
    """
    return [_key_of(path, _read_private(path)) for path in paths]


def _key_of(path: Path, raw: bytes) -> bytes:
    if len(raw) == KEY_BYTES:
        return raw
    try:
        key = base64.b64decode(raw.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise BackendDead(
            f"{path} contains no key of {KEY_BYTES} bytes; create one: "
            f"`head -c {KEY_BYTES} /dev/urandom | base64 > {path}; chmod 0400 {path}`"
        )
    return key


def _read_private(path: Path) -> bytes:
    try:
        status = os.stat(path)
        # With fsGroup, the kubelet lets the Pod's group read mounted files, whatever their mode.
        forbidden = 0o077 if status.st_uid == os.getuid() else 0o037
        if status.st_mode & forbidden:
            mode = stat.S_IMODE(status.st_mode)
            raise BackendDead(f"{path} is accessible to other users (mode {mode:o}); chmod 0400 it")
        return path.read_bytes()
    except OSError as error:
        raise BackendDead(f"{path} cannot be read: {describe_error(error)}") from error


def _key_id(key: bytes) -> str:
    """Derive an ID from a key; the ID does not reveal the key."""
    return HKDF(algorithm=SHA256(), length=8, salt=None, info=b"ccm key id").derive(key).hex()


def _bind(where: bytes, key_id: str) -> bytes:
    return where + b"\0" + key_id.encode()


def _encrypt(key: bytes, value: bytes, bound: bytes) -> str:
    nonce = os.urandom(NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, value, bound)).decode()


def _decrypt(key: bytes, sealed: object, bound: bytes) -> bytes:
    try:
        raw = base64.b64decode(str(sealed), validate=True)
        return AESGCM(key).decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], bound)
    except (InvalidTag, ValueError):
        raise CorruptObject("the secret was changed, moved, or sealed with another key") from None
