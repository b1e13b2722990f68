"""Syntax of label keys and values, as the API server enforces it."""

from __future__ import annotations

import re
from functools import lru_cache

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_MAX_NAME = 63
_MAX_PREFIX = 253


@lru_cache
def value_fault(value: str) -> str:
    """Return the fault of a label value; empty = it is valid."""
    if len(value) > _MAX_NAME:
        return f"{value!r} has {len(value)} characters; a label value has at most {_MAX_NAME}"
    if value and not _NAME.fullmatch(value):
        return (
            f"{value!r} is not a valid label value; use letters, digits, '-', '_' and '.', with a "
            "letter or digit at each end"
        )
    return ""


@lru_cache
def key_fault(key: str) -> str:
    """Return the fault of a label key; empty = it is valid."""
    prefix, separator, name = key.rpartition("/")
    if separator and (len(prefix) > _MAX_PREFIX or not _SUBDOMAIN.fullmatch(prefix)):
        return f"{key!r} is not a valid label key; the prefix before the '/' must be a DNS name"
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        return (
            f"{key!r} is not a valid label key; use 1 to {_MAX_NAME} letters, digits, '-', '_' "
            "and '.', optionally after a DNS name and a '/'"
        )
    return ""
