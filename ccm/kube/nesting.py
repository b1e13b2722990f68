"""JSON that is nested too deeply to be decoded, taken apart at its first level.

The API server stores objects with some 10,000 levels; the decoder takes about 1,000. One such
object must not keep all others of its list or watch from being read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},:]', re.DOTALL)


def split(text: bytes) -> list[bytes]:
    """Return the items of an array, or the keys and values of an object in turn, undecoded."""
    parts, depth, start = list[bytes](), 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                start = token.end() if depth == 1 else start
            case b"," | b":" if depth == 1:
                parts.append(text[start : token.start()].strip())
                start = token.end()
            case b"]" | b"}":
                depth -= 1
                if depth == 0:
                    last = text[start : token.start()].strip()
                    return [*parts, last] if last else parts
    return parts


def members(text: bytes) -> Mapping[bytes, bytes]:
    """Return the members of an object, undecoded; the names have their quotes."""
    parts = split(text)
    return dict(zip(parts[::2], parts[1::2], strict=False))
