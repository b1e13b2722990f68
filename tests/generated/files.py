"""All generated files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.generated import crds, flags, hcloud, persistence, providers, rbac


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of each file."""
    for module in (crds, flags, hcloud, persistence, providers, rbac):
        yield from module.files()
