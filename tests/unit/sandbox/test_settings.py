"""Names of nodes nobody named."""

from __future__ import annotations

from ccm.sandbox import settings


def test_default_names_sort_as_they_are_numbered() -> None:
    names = settings.default_names(settings.MAX_NODES - 1)

    assert names[0] == "node-0001"
    assert list(names) == sorted(names)
