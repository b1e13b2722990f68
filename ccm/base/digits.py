"""Whole numbers in text that others wrote: ASCII digits, and no more of them than 64 bits hold.

`str.isdigit` also accepts `²` and the digits of other scripts, and `int` raises for thousands of
digits, so that the two together are no check.
"""

from __future__ import annotations

MOST = 2**63 - 1
"""The largest number that Kubernetes, Go and the clouds' APIs agree on."""

_LONGEST = len(str(MOST))


def parse_digits(text: str, *, most: int = MOST) -> int | None:
    """Return the number from 0 to `most` that a text of ASCII digits is; None for any other."""
    if not (len(text) <= _LONGEST and text.isascii() and text.isdigit()):
        return None
    found = int(text)
    return found if found <= most else None
