"""What holds for every plan that is made here."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon takes its caches out of the garbage collector's rounds; here they would add up."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
