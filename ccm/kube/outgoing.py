"""What is written to the API server: words that somebody else said leave through here.

Whoever may read a Service, a node or its events reads what the daemon writes there. A provider
quotes its cloud in messages, and a cloud or a proxy what it was sent: such texts lose their
secrets and are cut, whoever wrote them into an object. What the API server checks itself, such as
addresses, labels and provider IDs, is left as it is: half of it would mean something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ccm.base import redact

_ENCODER = msgspec.json.Encoder()
_TEXTS = frozenset({"error", "message", "note"})
_NAMED_BY_OTHERS = frozenset({"annotations", "data", "labels"})
_HOST = re.compile(r"[A-Za-z0-9.*_-]{1,253}")
_ANY = re.compile(rb'"(?:error|hostname|message|note)":"')


def encode(body: Mapping[str, Any]) -> bytes:
    """An object or a patch as JSON; what people read in it is fit for everybody."""
    try:
        sent = _ENCODER.encode(body)
    except UnicodeEncodeError:  # half a character in somebody's words, which are mended
        return _ENCODER.encode(_public("", body))
    # Most writes hold no such text, and are many.
    return _ENCODER.encode(_public("", body)) if _ANY.search(sent) else sent


def _public(name: str, value: Any) -> Any:
    if isinstance(value, str):  # most are
        if name in _TEXTS or (name == "hostname" and not _HOST.fullmatch(value)):
            return redact.public(value)
        return value
    if isinstance(value, Mapping):
        # What people name themselves, such as an annotation "note", is no text of ours.
        return {
            key: one if key in _NAMED_BY_OTHERS else _public(str(key), one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_public(name, one) for one in value]
    return value
