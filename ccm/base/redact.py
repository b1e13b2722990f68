"""Masking of secrets in everything that leaves the process: log, events, statuses, HTTP answers.

Secrets that are registered with `register` or `set_owner_secrets` are found by literal search: as
plain text, in JSON, in Python's `repr`, and in base64. Other secrets are found by their form:

1. headers `Authorization` and `Cookie`, and `Bearer x` or `Basic x` anywhere
2. user and password in a URL
3. values after a name: `password=x`, `"apiToken": "x"`, `--token x`, `<password>x</password>`
4. JSON web tokens
5. private keys in PEM
6. bootstrap tokens

A plain word after a name (form 3) is not masked where it belongs to a sentence (`token: expired at
noon`) or follows the name of an object (`m-nosecret: Running`). Only names in the singular count:
`tokens: 5` is a number of tokens.

Text may be quoted inside other text, so a quote may have backslashes before it. In a log line
(`encoded`) a quote without a backslash ends a string, and no value extends beyond it. Repetitions
in the patterns are bounded or possessive, so the time is linear in the length of the text.

`mask_log_line` is for the log, `mask_text` for other texts, and `mask_for_api` for texts that are
sent to the API server, where many users can read them.
"""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec

from ccm.base import credentials

MASK = "[redacted]"
"""Replacement for a secret."""

MIN_SECRET_CHARACTERS = 6
"""Minimum characters of a registered secret; a shorter one would also mask ordinary words."""

MAX_PUBLIC_BYTES = 1024
"""Maximum bytes of a text for the API server: its limit for the message of an Event."""

MAX_CHARACTERS = 16 << 10
"""Maximum characters of a text that are searched and kept; the rest is dropped to save time."""

CUT_MARGIN = 512
"""Bytes dropped at the end of a text that was cut: they may hold part of a secret, which cannot be
recognised."""

MAX_LASTING, MAX_TRANSIENT = 256, 8
"""Maximum numbers of lasting and of transient secrets that `register` keeps, the newest ones. Each
secret costs time in every line."""

_MASK = MASK.encode()
_CUT = "..."
_PROBE = 16
"""Number of leading bytes of a secret that are searched for at the cut end of a text."""

_ROW = 16
"""Minimum characters of a line in a multi-line secret; shorter lines are not searched for alone."""

_RARE = "QZXJYVKWUHBGOFLPMDRSANTCEIzqxjkvwybgupf98h7m65dl4c3s2a1r0oniet"
"""Letters and digits, from rare to frequent in log lines."""

_SETTING = re.compile(
    r"(?i)(?:pass(?:word|wd|phrase)?|pwd|token|secret(?:[-_]?id)?|authorization"
    r"|(?:api|access|private)[-_]?key|service[-_]?account[-_.]?(?:json|key))$"
)

_lasting: dict[str, None] = {}
_transient: deque[str] = deque(maxlen=MAX_TRANSIENT)
_held: dict[Hashable, tuple[str, ...]] = {}
_spelled: dict[str, frozenset[str]] = {}
_needles: dict[str, list[str]] | None = {}
"""Spellings of all secrets, by the rarest letter of each; None = must be rebuilt."""


def register(secret: str, *, lasting: bool = True) -> None:
    """Mask a text from now on; texts below `MIN_SECRET_CHARACTERS` are ignored.

    Args:
        secret: text of at most `credentials.MAX_BYTES`.
        lasting: False for a token that is replaced from time to time; only the newest
            `MAX_TRANSIENT` such tokens are masked.

    Raises:
        ValueError: the text is longer than `credentials.MAX_BYTES`.
    """
    credentials.check_size(secret)
    if lasting:
        _lasting.pop(secret, None)
        _lasting[secret] = None
        if len(_lasting) > MAX_LASTING:
            del _lasting[next(iter(_lasting))]
    elif secret not in _transient:
        _transient.append(secret)
    _invalidate_needles()


def set_owner_secrets(owner: Hashable, *secrets: str) -> None:
    """Mask the secrets of an owner, in place of its earlier secrets, until `remove_owner`.

    The caller must bound the number of owners.

    Raises:
        ValueError: a text is longer than `credentials.MAX_BYTES`.
    """
    for secret in secrets:
        credentials.check_size(secret)
    if _held.get(owner) != secrets:
        _held[owner] = secrets
        _invalidate_needles()


def remove_owner(owner: Hashable) -> None:
    """Stop masking the secrets of an owner."""
    if _held.pop(owner, None) is not None:
        _invalidate_needles()


@contextmanager
def registered(*secrets: str) -> Iterator[None]:
    """Mask texts inside the block."""
    owner = object()
    set_owner_secrets(owner, *secrets)
    try:
        yield
    finally:
        remove_owner(owner)


def unregister(secret: str) -> None:
    """Stop masking a text that was registered with `register`."""
    _lasting.pop(secret, None)
    if secret in _transient:
        _transient.remove(secret)
    _invalidate_needles()


def is_secret_name(name: str) -> bool:
    """Return whether a setting holds a secret, judged by the end of its name."""
    return _SETTING.search(name) is not None


def mask_log_line(text: bytes) -> bytes:
    """Return a log line without secrets; JSON stays JSON."""
    masked = _masked(text, encoded=True)
    if masked == text or not text.startswith(b"{") or _decoded(masked) is not None:
        return masked
    facts = _decoded(text)
    return masked if facts is None else msgspec.json.encode(_mask_value(facts, is_hidden=False))


def mask_text(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return a text without secrets, for output other than the log.

    Args:
        max_characters: maximum characters that are searched and kept; the rest is dropped.
    """
    masked = _masked(text[:max_characters].encode(errors="replace"), encoded=False)
    if len(text) <= max_characters:
        return masked.decode(errors="replace")
    for needle in (spelling for group in _current_needles().values() for spelling in group):
        # Complete secrets are masked already. Drop the beginning of a secret that was cut.
        probe = needle[:_PROBE].encode("latin-1")
        start = masked.find(probe, max(0, len(masked) - len(needle)))
        masked = masked if start < 0 else masked[:start]
    return masked[:-CUT_MARGIN].decode(errors="ignore")[: max_characters - len(_CUT)] + _CUT


def mask_for_api(text: str) -> str:
    """Return a text for the API server: without secrets, at most `MAX_PUBLIC_BYTES` long.

    Secrets are masked before the text is cut, because a cut secret would not be recognised.
    """
    masked = mask_text(text)
    if len(masked) * 4 <= MAX_PUBLIC_BYTES or len(raw := masked.encode()) <= MAX_PUBLIC_BYTES:
        return masked
    return raw[: MAX_PUBLIC_BYTES - len(_CUT)].decode(errors="ignore") + _CUT


def _masked(text: bytes, *, encoded: bool) -> bytes:
    # Substrings of a str are found several times faster than those of bytes.
    searched = text.decode("latin-1")
    matching = [
        needle
        for letter, needles in _current_needles().items()
        if letter in searched
        for needle in needles
        if needle in searched
    ]
    # Longest first: one secret may be part of another.
    for needle in sorted(matching, key=len, reverse=True):
        text = text.replace(needle.encode("latin-1"), _MASK)
    return mask_known_forms(text, _MASK, encoded=encoded)


def _decoded(line: bytes) -> Any:
    """Return the content of a line in JSON; None for any other line."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _mask_value(value: Any, *, is_hidden: bool) -> Any:
    """Mask secrets in a decoded value; below the name of a secret, mask every value."""
    if isinstance(value, dict):
        return {
            mask_text(name): _mask_value(item, is_hidden=is_hidden or is_secret_name(name))
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_mask_value(item, is_hidden=is_hidden) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if is_hidden and value != "":
        return MASK
    if isinstance(value, str):
        return mask_text(value, len(value))
    written = msgspec.json.encode(value).decode()
    return value if mask_text(written) == written else MASK


def _current_needles() -> dict[str, list[str]]:
    global _needles, _spelled  # noqa: PLW0603 - the list belongs to the process, as the secrets do
    needles = _needles
    if needles is None:
        secrets = {
            *_lasting,
            *_transient,
            *(item for group in list(_held.values()) for item in group),
        }
        known = [secret for secret in secrets if len(secret) >= MIN_SECRET_CHARACTERS]
        _spelled = {secret: _spelled.get(secret) or _spellings(secret) for secret in known}
        needles = {}
        for needle in frozenset[str]().union(*_spelled.values()):
            letter = next((item for item in _RARE if item in needle), needle[0])
            needles.setdefault(letter, []).append(needle)
        _needles = needles
    return needles


def _invalidate_needles() -> None:
    global _needles  # noqa: PLW0603 - as above
    _needles = None


def _spellings(secret: str) -> frozenset[str]:
    """Return the spellings of a secret to search for, each in UTF-8 that is decoded as latin-1.

    Most secrets have four spellings: plain text, and three in base64.
    """
    rows = [row.strip() for row in secret.splitlines()] if "\n" in secret else []
    # Tracebacks indent the lines of a message, so each line is searched for on its own.
    spellings = {secret, *(row for row in rows if len(row) >= _ROW)}
    # Another program may quote the secret, then Python's `repr` of a list, then the log.
    for quotes in ((json.dumps, _json, _go_json, repr), (repr,), (_json,)):
        spellings |= {quote(text)[1:-1] for text in spellings for quote in quotes}
    raw = secret.encode(errors="replace")
    needles = {spelling.encode(errors="replace") for spelling in spellings} | set(_base64(raw))
    return frozenset(needle.decode("latin-1") for needle in needles)


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _go_json(text: str) -> str:
    return _json(text).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _base64(raw: bytes) -> Iterator[bytes]:
    for skipped in range(3):
        # Bytes before a secret shift it by 0, 2 or 4 bits; only complete digits are searched for.
        first, last = -(-8 * skipped // 6), 8 * (skipped + len(raw)) // 6
        digits = base64.b64encode(bytes(skipped) + raw)[first:last]
        yield digits
        yield digits.translate(_URL_SAFE)


_URL_SAFE = bytes.maketrans(b"+/", b"-_")

_SEPARATOR = (
    rb"(?:\\{0,15}+[\"'])?(?>[ \t]{0,8}+(?>=>|:=|==?|:(?!//)|%(?:25){0,3}3[ad])[ \t]{0,8}+|>)"
    rb"(?:\[(?!redacted\]))?+"
)
"""Separator between a name and its value."""

_UNMASKED = rb"(?!\[redacted\]|\|)"  # neither masked already nor the `|` before a YAML block
_PLAIN = rb"[^\s\0\"'\\&,;<>)\]}]++"
_LITERAL = rb"(?!(?:true|false|null|nil|none)(?![\w-]))"
_PROSE = rb"(?<=[ ])[a-z][a-z./-]{0,40}+(?:[ ][\w(/<\[\"'-]|:(?:\s|\Z))"
"""Word of letters, followed by another word or a colon: part of a sentence."""

# --- headers ----------------------------------------------------------------------------------

_SCHEME = (
    rb"(?:basic|bearer|token|digest|negotiate|ntlm|oauth|hawk|(?:api|shared)[-_]?key|ssws|aws"
    rb"|[a-z0-9]{1,9}-hmac-[a-z0-9]{1,9})[ ]{1,8}+"
)
_PARTS = rb"[^\s\0\"'\\]++(?:(?<=[,;])[ ][^\s\0\"'\\]++)*+"
"""`a=b; c=d`: a word, and further words after a comma or a semicolon."""

_AUTHENTICATION = re.compile(
    # Do not match sentences such as "basic authentication" and "bearer tokens".
    rb"(\b(?i:bearer|basic)[ ]{1,8}+)(?=[\w.~+/=-]{0,80}?[\d.+/=A-Z_-])[\w.~+/=-]{6,}+"
)

# --- URLs -------------------------------------------------------------------------------------

_USER_INFO = re.compile(
    # The password may contain slashes, but must not look like a port.
    rb"(://)"
    rb"(?:(?![^\s/@:?#\[\"'\\]{0,255}+:\d{1,5}(?:[/?#\s]|$))"
    rb"[^\s/@:?#\[\"'\\]{0,255}+:(?:(?!://)[^\s@\"'\\])*+|[^\s/@:?#\[\"'\\]{1,512}+)"
    rb"(?=@)(?:@[^\s@\"'\\/?#,]{1,255}+(?=@))*+"
)

# --- values after a name ----------------------------------------------------------------------

_NAME = (
    rb"(?:passw(?:or)?d|passphrase|pwd|(?:admin|db|root|user)[-_]?pass|token|secret(?:[-_]?id)?"
    rb"|credential|signature|(?<=[?&])sig"
    rb"|(?:api|auth|access|account|client|encryption|private|secret|shared|signing)[-_]?key)"
)

_COLON = re.compile(rb"[a-z]:[ ]\Z")
_BEFORE = re.compile(rb"[\w./-]{0,127}\Z")
_WORD = re.compile(rb"[A-Za-z]{1,24}\Z")

# --- tokens and keys --------------------------------------------------------------------------

_JWT = re.compile(rb"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]++\.[\w-]*+")

_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:[^\"'\\-]|\\++(?![\"'])|-(?!----END ))*+(?:-----END [A-Z ]{0,60}-----)?"
)

_BOOTSTRAP_TOKEN = re.compile(
    # Host names such as `worker.examplehostname1` have this form too. In 499 of 500 random tokens a
    # digit precedes a letter; in names digits come last.
    rb"(?:(?<![\w.-])|(?<=\\[nrt]))(?=[a-z0-9.]{0,21}[0-9][a-z])"
    rb"[a-z0-9]{6}\.[a-z0-9]{16}(?![\w-]|\.\w)"
)
_ITS_SECRET = re.compile(rb"\.[a-z0-9]{16}(?![\w-])")
"""Second half of a bootstrap token. It begins with a literal dot, so the search is fast."""


def mask_known_forms(text: bytes, mask: bytes, *, encoded: bool) -> bytes:
    """Return a text without secrets that have a known form.

    Args:
        mask: replacement for a secret.
        encoded: whether the text is a log line, in which a quote without a backslash begins or
            ends a string.
    """
    after = rb"\g<1>" + mask
    # Substrings of a str are found several times faster than those of bytes.
    folded = text.decode("latin-1").lower()
    if "eyj" in folded:
        text = _JWT.sub(mask, text)
    if "-----begin " in folded:
        text = _PRIVATE_KEY.sub(mask, text)
    if "@" in folded and "://" in folded:
        text = _USER_INFO.sub(after, text)
    if _ITS_SECRET.search(text):
        text = _BOOTSTRAP_TOKEN.sub(mask, text)
    if "authorization" in folded or "cookie" in folded:
        text = _header(encoded).sub(after, text)
    if "bearer" in folded or "basic" in folded:
        text = _AUTHENTICATION.sub(after, text)
    if (
        "token" in folded
        or "secret" in folded
        or "pass" in folded
        or "key" in folded
        or "sig" in folded
        or "credential" in folded
        or "pwd" in folded
    ):

        def shown(match: re.Match[bytes]) -> bytes:
            return match[0] if _follows_object(text, match) else match[1] + mask

        text = _pair(encoded).sub(shown, text)
    return text


def _follows_object(text: bytes, match: re.Match[bytes]) -> bool:
    """Return whether a match is an object name followed by a plain word, and so not a secret.

    An example is `m-nosecret: Running`.

    An object name is in lower case and contains a dash. Names that begin with `x-` are headers.
    """
    name, value = match[1], match[0][len(match[1]) :]
    if not (_COLON.search(name) and _WORD.match(value)):
        return False
    before = _BEFORE.search(text[max(0, match.start() - 127) : match.start()])
    whole = (before[0] if before else b"") + name
    return b"-" in whole and whole.islower() and not whole.startswith(b"x-")


def _inner(encoded: bool) -> bytes:
    """Return the pattern of a quoted text after its opening quote, which is the group `q`."""
    other = rb"(?:(?:\\\\){0,7}+(?:\\[\"']|'))" if encoded else rb"\\{0,15}+[\"']"
    return rb"(?:[^\"'\\]|\\{1,31}+(?![\"'\\])|(?!(?P=q))%b)++" % other


_QUOTE = rb"[bru]?(?P<q>\\{0,15}+[\"'])"


@cache
def _header(encoded: bool) -> re.Pattern[bytes]:
    plain = rb"(?:(?=%b)|(?!%b))" % (_SCHEME, _PROSE)
    return re.compile(
        rb"(?i)((?:authorization|cookie)%b(?:%b|%b)(?:%b)?+)%b%b(?(q)%b|%b)"
        % (_SEPARATOR, _QUOTE, plain, _SCHEME, _UNMASKED, _LITERAL, _inner(encoded), _PARTS)
    )


@cache
def _pair(encoded: bool) -> re.Pattern[bytes]:
    flag = rb"--[\w-]{0,60}?%b(?:\\{0,15}+[\"'],)?[ \0]{1,8}+(?!-)" % _NAME
    return re.compile(
        rb"(?i)((?:%b%b|%b)(?:%b|(?!%b|[bru]?\\{0,15}[\"'])))%b%b(?(q)%b|%b)"
        % (_NAME, _SEPARATOR, flag, _QUOTE, _PROSE, _UNMASKED, _LITERAL, _inner(encoded), _PLAIN)
    )
