"""Shared fixture of the tests of plans."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable `gc.freeze`: the caches that each test freezes would accumulate."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
