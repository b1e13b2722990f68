"""Bootstrap tokens, with which a kubelet authenticates its first registration. No I/O.

The ID of a token is random. The machine controller stores the ID on the machine before it creates
the token, so that no token is leaked. If a Secret with the ID belongs to another owner, according
to its description, the controller chooses another ID.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import quote

from ccm.model.names import BOOTSTRAP_TOKEN_PREFIX
from ccm.model.times import format_time

NAMESPACE = "kube-system"
"""Namespace in which the API server looks for tokens."""

GRANT = (
    "grant the permission with the component bootstrap-tokens (manifests/README.md), or with the "
    "chart's value machines.bootstrapTokens or machineController.bootstrapTokens; or remove "
    "<<BOOTSTRAP_TOKEN>> from the user data"
)
"""Advice for a service account that may not write bootstrap tokens."""

_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_DIGIT_BEFORE_LETTER = re.compile("[0-9][a-z]")
_ID_LETTERS, _SECRET_LETTERS = 6, 16
"""Lengths of both parts of a bootstrap token (Kubernetes)."""


Choose = Callable[[Sequence[str]], str]
"""Function that picks an unpredictable random element: `secrets.choice`."""


def new_id(choose: Choose) -> str:
    """Return a random token ID."""
    return _text(choose, _ID_LETTERS)


def new_secret(choose: Choose) -> str:
    """Return a random token secret; a digit before a letter lets redaction recognise it."""
    while True:
        secret = _text(choose, _SECRET_LETTERS)
        if _DIGIT_BEFORE_LETTER.search(secret):
            return secret


def is_id(text: str) -> bool:
    """Return whether a text is a well-formed token ID; a user may have edited the annotation."""
    return len(text) == _ID_LETTERS and all(letter in _LETTERS for letter in text)


def secret_name(token_id: str) -> str:
    """Return the name of a token's Secret."""
    return f"{BOOTSTRAP_TOKEN_PREFIX}{token_id}"


def secret_data(
    *, machine: str, token_id: str, secret: str, expires: datetime, groups: str
) -> dict[str, str]:
    """Return the data of a token's Secret.

    Args:
        machine: `namespace/name` of the machine.
        token_id: ID of the token.
        secret: secret part of the token.
        expires: time at which the token expires.
        groups: additional groups of the token, comma-separated; may be empty.
    """
    data = {
        "description": description(machine),
        "token-id": token_id,
        "token-secret": secret,
        "expiration": format_time(expires),
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
    }
    return data | ({"auth-extra-groups": groups} if groups else {})


def description(machine: str) -> str:
    """Return the description of a machine's token; it proves which machine owns the token.

    Args:
        machine: `namespace/name` of the machine.
    """
    return f"A bootstrap token for the machine {machine}, made by its machine controller."


def is_ours(data: Mapping[str, bytes], machine: str) -> bool:
    """Return whether a Secret is the token of a machine, according to its description.

    Args:
        data: data of the Secret.
        machine: `namespace/name` of the machine.
    """
    return data.get("description", b"").decode(errors="replace") == description(machine)


def expiration(now: datetime, timeout_s: float) -> datetime:
    """Return the time at which a token expires: the creation timeout `timeout_s` after `now`."""
    return now + timedelta(seconds=timeout_s)


def _text(choose: Choose, letters: int) -> str:
    return "".join(choose(_LETTERS) for _ in range(letters))


# --- user data ----------------------------------------------------------------------------------

TOKEN = "BOOTSTRAP_TOKEN"  # noqa: S105 - a placeholder
NAME = "MACHINE_NAME"
"""Names of the placeholders in user data: `<<BOOTSTRAP_TOKEN>>` and `<<MACHINE_NAME>>`."""


def has_placeholder(user_data: bytes, placeholder: str) -> bool:
    """Return whether user data contain a placeholder, in its plain or URL-encoded form."""
    return any(form in user_data for form in _forms(placeholder))


def fill_placeholder(user_data: bytes, placeholder: str, value: str) -> bytes:
    """Return the user data with all occurrences of a placeholder replaced.

    If the plain form does not occur, the URL-encoded form is replaced by the URL-encoded value.
    """
    plain, encoded = _forms(placeholder)
    if plain in user_data:
        return user_data.replace(plain, value.encode())
    return user_data.replace(encoded, quote(value, safe="").encode())


def _forms(placeholder: str) -> tuple[bytes, bytes]:
    plain = f"<<{placeholder}>>"
    return plain.encode(), quote(plain, safe="").encode()
