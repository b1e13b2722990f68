"""Truth values as Go reads them."""

from __future__ import annotations

_WORDS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def parse_bool(text: str) -> bool | None:
    """The truth value, or None for any other word; `tRUE`, `yes` and blanks are other words."""
    return _WORDS.get(text)
