"""Shared fixture of the tests of plans."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable `gc.freeze`: the caches that each test freezes would accumulate.

    And `gc.collect` before it: in a process with all tests it takes a tenth of a second.
    """
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "collect", lambda generation=2: 0)
