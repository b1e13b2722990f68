"""Decoding of what other programs send."""

from __future__ import annotations

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All that `msgspec` raises for bytes: not the type, no JSON, no UTF-8, or nested too deeply."""
