"""The behaviour that users see is the one of the golden files."""

from __future__ import annotations

import difflib
import functools

import pytest

from tests.golden import pictures


@functools.cache
def stored(subject: str) -> str:
    return (pictures.FOLDER / f"{subject}.txt").read_text()


@pytest.mark.parametrize("subject", sorted(pictures.SUBJECTS))
def test_behaviour_matches_the_golden_file(subject: str) -> None:
    before, now = stored(subject), pictures.drawn(subject)

    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), "golden", "now", "", "", 0)
    changed = "\n".join(list(lines)[2:40])
    assert before == now, (
        f"{subject} changed; rewrite with `python -m tests.golden`, "
        f"and add a line with the reason to CHANGELOG.md for each difference:\n{changed}"
    )
