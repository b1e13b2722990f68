"""Masks secrets in everything that leaves the process: log, events, statuses, HTTP answers.

Values that are told to `know` or `hold` are found by literal search: as they are, in JSON, in
Python's `repr`, and in base64. Others are found by their form (`redact_forms`).

`line` is for the log, `words` for other texts, and `public` for texts that go to the API server,
where many can read them.
"""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ccm.base import credentials, redact_forms

MASK = "[redacted]"
"""What stands in a secret's place."""

SHORTEST = 6
"""Characters that a secret must have to be looked for; a shorter one would also mask words."""

PUBLIC_BYTES = 1024
"""Longest text that goes to the API server, which takes no longer one in an Event."""

LONGEST = 16 << 10
"""Characters of a text that are looked at, as each costs time; what follows them is left out."""

HALF = 512
"""Characters that are left out with it: among them may be half a secret, which has no form."""

LASTING, TRANSIENT = 256, 8
"""How many secrets of either kind are known: the newest. Each costs time in every line."""

_MASK = MASK.encode()
_CUT = "..."
_PROBE = 16
"""Bytes by which the beginning of a secret is recognised where the text was cut."""

_ROW = 16
"""Characters that a line of a secret of several lines must have to be looked for alone."""

_RARE = "QZXJYVKWUHBGOFLPMDRSANTCEIzqxjkvwybgupf98h7m65dl4c3s2a1r0oniet"
"""Letters and digits, those first that are rare in lines of the log."""

_NAME = re.compile(
    r"(?i)(?:pass(?:word|wd|phrase)?|pwd|token|secret(?:[-_]?id)?|authorization"
    r"|(?:api|access|private)[-_]?key|service[-_]?account[-_.]?(?:json|key))$"
)

_lasting: dict[str, None] = {}
_transient: deque[str] = deque(maxlen=TRANSIENT)
_held: dict[Hashable, tuple[str, ...]] = {}
_spelled: dict[str, frozenset[str]] = {}
_needles: dict[str, list[str]] | None = {}
"""All spellings of all secrets, by their rarest letter; None: they have changed."""


def know(secret: str, *, lasting: bool = True) -> None:
    """Mask a text from now on; short ones are ignored.

    Args:
        secret: the text, at most `credentials.MOST_BYTES` long.
        lasting: False for a token that is replaced from time to time; of those the newest
            `TRANSIENT` are looked for.

    Raises:
        ValueError: it is longer.
    """
    credentials.checked(secret)
    if lasting:
        _lasting.pop(secret, None)
        _lasting[secret] = None
        if len(_lasting) > LASTING:
            del _lasting[next(iter(_lasting))]
    elif secret not in _transient:
        _transient.append(secret)
    _change()


def hold(owner: Hashable, *secrets: str) -> None:
    """Mask texts until `release`, in place of those that were held for the owner before.

    Whoever holds has to bound the number of owners.

    Raises:
        ValueError: one is longer than `credentials.MOST_BYTES`.
    """
    for secret in secrets:
        credentials.checked(secret)
    if _held.get(owner) != secrets:
        _held[owner] = secrets
        _change()


def release(owner: Hashable) -> None:
    """Stop looking for the texts that are held for an owner."""
    if _held.pop(owner, None) is not None:
        _change()


@contextmanager
def held(*secrets: str) -> Iterator[None]:
    """Mask texts inside the block."""
    owner = object()
    hold(owner, *secrets)
    try:
        yield
    finally:
        release(owner)


def forget(secret: str) -> None:
    """Stop looking for a text that was told to `know`."""
    _lasting.pop(secret, None)
    if secret in _transient:
        _transient.remove(secret)
    _change()


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret, to judge by the name's end."""
    return _NAME.search(name) is not None


def line(text: bytes) -> bytes:
    """Return a line of the log without secrets; JSON stays JSON."""
    masked = _masked(text, encoded=True)
    if masked == text or not text.startswith(b"{") or _decoded(masked) is not None:
        return masked
    facts = _decoded(text)
    return masked if facts is None else msgspec.json.encode(_each(facts, is_hidden=False))


def words(text: str, longest: int = LONGEST) -> str:
    """Return a text without secrets, for messages that go another way than through the log.

    Args:
        text: the text.
        longest: characters of it that are looked at; of a longer one the end is left out.
    """
    masked = _masked(text[:longest].encode(errors="replace"), encoded=False)
    if len(text) <= longest:
        return masked.decode(errors="replace")
    for needle in (one for each in _known().values() for one in each):
        # Whole secrets are gone: this one was cut.
        probe = needle[:_PROBE].encode("latin-1")
        start = masked.find(probe, max(0, len(masked) - len(needle)))
        masked = masked if start < 0 else masked[:start]
    return masked[:-HALF].decode(errors="ignore")[: longest - len(_CUT)] + _CUT


def public(text: str) -> str:
    """Return a text of others for the API server: without secrets, at most `PUBLIC_BYTES`.

    Secrets go first: half of one would not be recognised.
    """
    masked = words(text)
    if len(masked) * 4 <= PUBLIC_BYTES or len(raw := masked.encode()) <= PUBLIC_BYTES:
        return masked
    return raw[: PUBLIC_BYTES - len(_CUT)].decode(errors="ignore") + _CUT


def _masked(text: bytes, *, encoded: bool) -> bytes:
    # Substrings of a str are found several times faster than those of bytes.
    searched = text.decode("latin-1")
    found = [
        needle
        for letter, needles in _known().items()
        if letter in searched
        for needle in needles
        if needle in searched
    ]
    # The longest first: one may be a part of another.
    for needle in sorted(found, key=len, reverse=True):
        text = text.replace(needle.encode("latin-1"), _MASK)
    return redact_forms.masked(text, _MASK, encoded=encoded)


def _decoded(line: bytes) -> Any:
    """Return the content of a line of JSON; None: it is none."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _each(value: Any, *, is_hidden: bool) -> Any:
    """Mask each text in a decoded value, or all of them below a secret's name."""
    if isinstance(value, dict):
        return {
            words(name): _each(one, is_hidden=is_hidden or is_secret(name))
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_each(one, is_hidden=is_hidden) for one in value]
    if value is None or isinstance(value, bool):
        return value
    if is_hidden and value != "":
        return MASK
    if isinstance(value, str):
        return words(value, len(value))
    written = msgspec.json.encode(value).decode()
    return value if words(written) == written else MASK


def _known() -> dict[str, list[str]]:
    global _needles, _spelled  # noqa: PLW0603 - the list is the process's, as its secrets are
    needles = _needles
    if needles is None:
        secrets = {*_lasting, *_transient, *(one for each in list(_held.values()) for one in each)}
        known = [secret for secret in secrets if len(secret) >= SHORTEST]
        _spelled = {secret: _spelled.get(secret) or _spellings(secret) for secret in known}
        needles = {}
        for needle in frozenset[str]().union(*_spelled.values()):
            letter = next((one for one in _RARE if one in needle), needle[0])
            needles.setdefault(letter, []).append(needle)
        _needles = needles
    return needles


def _change() -> None:
    global _needles  # noqa: PLW0603 - as above
    _needles = None


def _spellings(secret: str) -> frozenset[str]:
    """Return all texts that are searched for a secret, as the latin-1 of their UTF-8.

    Of most secrets these are the secret and three texts in base64.
    """
    rows = [row.strip() for row in secret.splitlines()] if "\n" in secret else []
    # Tracebacks indent the lines of a message, so each is searched for alone.
    found = {secret, *(row for row in rows if len(row) >= _ROW)}
    # Quoted by others; then by Python, as an item of a list; then by the log.
    for quotes in ((json.dumps, _json, _go_json, repr), (repr,), (_json,)):
        found |= {quote(text)[1:-1] for text in found for quote in quotes}
    raw = secret.encode(errors="replace")
    needles = {one.encode(errors="replace") for one in found} | set(_base64(raw))
    return frozenset(needle.decode("latin-1") for needle in needles)


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _go_json(text: str) -> str:
    return _json(text).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _base64(raw: bytes) -> Iterator[bytes]:
    for skipped in range(3):
        # The bytes before a secret shift it by 0, 2 or 4 bits; whole digits are searched for.
        first, last = -(-8 * skipped // 6), 8 * (skipped + len(raw)) // 6
        digits = base64.b64encode(bytes(skipped) + raw)[first:last]
        yield digits
        yield digits.translate(_URL_SAFE)


_URL_SAFE = bytes.maketrans(b"+/", b"-_")
