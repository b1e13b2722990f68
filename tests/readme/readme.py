"""The README's fenced code blocks that carry a file name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def text() -> str:
    """The whole README."""
    return (ROOT / "README.md").read_text()


def files() -> Mapping[str, str]:
    """File name -> content of each named block."""
    return dict(_BLOCK.findall(text()))
