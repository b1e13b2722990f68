"""Bootstrap tokens: what a kubelet proves itself with when it first registers. Pure.

The ID of a token is random, and stands on its machine before the token is made: so a token is
found again, and never left behind. A Secret of that name that does not say in its description
that it is this machine's is somebody else's: another ID is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import quote

from ccm.model.names import BOOTSTRAP_TOKEN_PREFIX
from ccm.model.times import format_time

NAMESPACE = "kube-system"
"""Where the API server looks for them."""

GRANT = (
    "grant it with the component bootstrap-tokens (manifests/README.md), or with the chart's value "
    "machines.bootstrapTokens or machineController.bootstrapTokens; or take <<BOOTSTRAP_TOKEN>> "
    "out of the user data"
)
"""Advice where the account may not write bootstrap tokens."""

_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_DIGIT_BEFORE_LETTER = re.compile("[0-9][a-z]")
_ID_LETTERS, _SECRET_LETTERS = 6, 16
"""Form of a bootstrap token (Kubernetes)."""


Choose = Callable[[Sequence[str]], str]
"""Picks one at random, so that nobody can foresee it: `secrets.choice`."""


def new_id(choose: Choose) -> str:
    """A random ID."""
    return _text(choose, _ID_LETTERS)


def new_secret(choose: Choose) -> str:
    """Return a random secret with a digit before a letter, by which redaction knows a token."""
    while True:
        found = _text(choose, _SECRET_LETTERS)
        if _DIGIT_BEFORE_LETTER.search(found):
            return found


def is_id(text: str) -> bool:
    """Whether a text is the ID of a token; who writes annotations may write anything."""
    return len(text) == _ID_LETTERS and all(letter in _LETTERS for letter in text)


def secret_name(token_id: str) -> str:
    """The name of the Secret that holds it."""
    return f"{BOOTSTRAP_TOKEN_PREFIX}{token_id}"


def content(
    *, machine: str, token_id: str, secret: str, expires: datetime, groups: str
) -> dict[str, str]:
    """The data of its Secret."""
    found = {
        "description": description(machine),
        "token-id": token_id,
        "token-secret": secret,
        "expiration": format_time(expires),
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
    }
    return found | ({"auth-extra-groups": groups} if groups else {})


def description(machine: str) -> str:
    """What says whose it is; `machine` is `namespace/name`."""
    return f"A bootstrap token for the machine {machine}, made by its machine controller."


def is_ours(data: Mapping[str, bytes], machine: str) -> bool:
    """Whether a Secret's data are those of a token of that machine."""
    return data.get("description", b"").decode(errors="replace") == description(machine)


def expiration(now: datetime, timeout_s: float) -> datetime:
    """When a token ends by itself: with the time that its machine has to join."""
    return now + timedelta(seconds=timeout_s)


def _text(choose: Choose, letters: int) -> str:
    return "".join(choose(_LETTERS) for _ in range(letters))


# --- user data ----------------------------------------------------------------------------------

TOKEN = "BOOTSTRAP_TOKEN"  # noqa: S105 - its placeholder
NAME = "MACHINE_NAME"
"""Placeholders of user data."""


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
