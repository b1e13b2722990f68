"""The limit of open files is raised as far as the system allows, and never lowered."""

from __future__ import annotations

import resource

import pytest

from ccm.app import main

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, main.MOST),
        (1024, ENDLESS, main.MOST),
        (4096, 4096, None),
        (1 << 20, 1 << 20, None),
        (ENDLESS, ENDLESS, None),
    ],
)
def test_what_is_allowed_is_used(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int | None
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))

    main.raise_limit()

    assert given == ([] if expected is None else [(expected, hard)])
