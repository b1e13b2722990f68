"""Masks secrets in everything that leaves the process: log, events, statuses, HTTP answers.

Values that are told to `know` or `hold` are found by literal search: as they are, in JSON, in
Python's `repr`, and in base64. Others are found by their form:

1. headers `Authorization` and `Cookie`, and `Bearer x` or `Basic x` anywhere
2. user and password in a URL
3. values after a name: `password=x`, `"apiToken": "x"`, `--token x`, `<password>x</password>`
4. JSON web tokens
5. private keys in PEM
6. bootstrap tokens

A plain word after a name is left alone where it belongs to a sentence (`token: expired at noon`)
or follows the name of an object (`m-nosecret: Running`). Names are in the singular:
`tokens: 5` is a count.

Text may be quoted in text, so a quote may have backslashes before it. In a line of the log
(`encoded`) a quote without one ends a string, and no value goes beyond it. Repetitions are bounded
or possessive: the time is linear in the length of the text.

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
from functools import cache
from typing import Any

import msgspec

from ccm.base import credentials

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

_SETTING = re.compile(
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
    return _SETTING.search(name) is not None


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
    return without_forms(text, _MASK, encoded=encoded)


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

_SEPARATOR = (
    rb"(?:\\{0,15}+[\"'])?(?>[ \t]{0,8}+(?>=>|:=|==?|:(?!//)|%(?:25){0,3}3[ad])[ \t]{0,8}+|>)"
    rb"(?:\[(?!redacted\]))?+"
)
"""Between a name and its value."""

_UNMASKED = rb"(?!\[redacted\]|\|)"  # nor the head of a block of YAML
_PLAIN = rb"[^\s\0\"'\\&,;<>)\]}]++"
_LITERAL = rb"(?!(?:true|false|null|nil|none)(?![\w-]))"
_PROSE = rb"(?<=[ ])[a-z][a-z./-]{0,40}+(?:[ ][\w(/<\[\"'-]|:(?:\s|\Z))"
"""A word of letters and the next one, or a colon: a sentence."""

# --- headers ----------------------------------------------------------------------------------

_SCHEME = (
    rb"(?:basic|bearer|token|digest|negotiate|ntlm|oauth|hawk|(?:api|shared)[-_]?key|ssws|aws"
    rb"|[a-z0-9]{1,9}-hmac-[a-z0-9]{1,9})[ ]{1,8}+"
)
_PARTS = rb"[^\s\0\"'\\]++(?:(?<=[,;])[ ][^\s\0\"'\\]++)*+"
"""`a=b; c=d`: a word, and the next one after a comma or a semicolon."""

_AUTHENTICATION = re.compile(
    # Not sentences such as "basic authentication" and "bearer tokens".
    rb"(\b(?i:bearer|basic)[ ]{1,8}+)(?=[\w.~+/=-]{0,80}?[\d.+/=A-Z_-])[\w.~+/=-]{6,}+"
)

# --- URLs -------------------------------------------------------------------------------------

_USER_INFO = re.compile(
    # The password may have slashes, but it may not look like a port.
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

# --- forms of their own -----------------------------------------------------------------------

_JWT = re.compile(rb"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]++\.[\w-]*+")

_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:[^\"'\\-]|\\++(?![\"'])|-(?!----END ))*+(?:-----END [A-Z ]{0,60}-----)?"
)

_BOOTSTRAP_TOKEN = re.compile(
    # A host name such as `worker.examplehostname1` has this form too. In a random token a digit
    # stands before a letter, but for one in 500; in names digits come last.
    rb"(?:(?<![\w.-])|(?<=\\[nrt]))(?=[a-z0-9.]{0,21}[0-9][a-z])"
    rb"[a-z0-9]{6}\.[a-z0-9]{16}(?![\w-]|\.\w)"
)
_ITS_SECRET = re.compile(rb"\.[a-z0-9]{16}(?![\w-])")
"""Begins with a literal, so that most lines are looked through fast."""


def without_forms(text: bytes, mask: bytes, *, encoded: bool) -> bytes:
    """Return a text without secrets that have a known form.

    Args:
        text: a line of the log, or any other text.
        mask: stands in a secret's place.
        encoded: a quote without a backslash begins or ends a string of the line.
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

        def shown(found: re.Match[bytes]) -> bytes:
            return found[0] if _follows_object(text, found) else found[1] + mask

        text = _pair(encoded).sub(shown, text)
    return text


def _follows_object(text: bytes, found: re.Match[bytes]) -> bool:
    """Whether a plain word stands after the name of an object, such as `m-nosecret: Running`.

    Names of objects have lower-case letters and dashes; `x-` begins the name of a header.
    """
    name, value = found[1], found[0][len(found[1]) :]
    if not (_COLON.search(name) and _WORD.match(value)):
        return False
    before = _BEFORE.search(text[max(0, found.start() - 127) : found.start()])
    whole = (before[0] if before else b"") + name
    return b"-" in whole and whole.islower() and not whole.startswith(b"x-")


def _inner(encoded: bool) -> bytes:
    """The rest of a quoted text; its quote is the group `q`."""
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
