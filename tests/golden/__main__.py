"""`python -m tests.golden`: draw every picture again."""

from __future__ import annotations

from tests.golden import pictures

for subject in pictures.SUBJECTS:
    (pictures.FOLDER / f"{subject}.txt").write_text(pictures.drawn(subject))
