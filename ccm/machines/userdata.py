"""What a VM is booted with: user data whose placeholders have been filled in. Pure."""

from __future__ import annotations

from urllib.parse import quote

TOKEN = "BOOTSTRAP_TOKEN"  # noqa: S105 - its placeholder
NAME = "MACHINE_NAME"


def has(user_data: bytes, placeholder: str) -> bool:
    """Whether the placeholder is there, in its plain or URL-encoded form."""
    return any(form in user_data for form in _forms(placeholder))


def filled(user_data: bytes, placeholder: str, value: str) -> bytes:
    """The user data with all occurrences of a placeholder replaced.

    The URL-encoded form is looked for where the plain one is nowhere, and gets the value
    URL-encoded. With neither of them nothing changes.
    """
    plain, encoded = _forms(placeholder)
    if plain in user_data:
        return user_data.replace(plain, value.encode())
    return user_data.replace(encoded, quote(value, safe="").encode())


def _forms(placeholder: str) -> tuple[bytes, bytes]:
    plain = f"<<{placeholder}>>"
    return plain.encode(), quote(plain, safe="").encode()
