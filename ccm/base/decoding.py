"""Errors of decoding data from other programs."""

from __future__ import annotations

import msgspec

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors that `msgspec` raises for bytes: wrong type, no JSON, no UTF-8, or nested too deeply."""

UNDECODABLE = DECODE_ERRORS  # alias for one release
