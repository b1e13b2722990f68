"""Values of labels, which most clouds allow as Kubernetes does."""

from __future__ import annotations

import re
from hashlib import sha256

_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def is_label_value(text: str) -> bool:
    """Whether a label may have that value."""
    return _VALUE.fullmatch(text) is not None


def label_value(text: str) -> str:
    """The text itself, or where it cannot stand in a label one that is made of it."""
    return text if is_label_value(text) else sha256(text.encode()).hexdigest()[:40]
