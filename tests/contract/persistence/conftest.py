"""Small pages, so that few objects show the behaviour of a listing at page ends."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.contract.persistence.stores import PAGE


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in ("kubestore", "postgres", "s3", "sqlite"):
        monkeypatch.setattr(import_module(f"ccm.persistence.{backend}"), "PAGE", PAGE)
