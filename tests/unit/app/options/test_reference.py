"""The reference of flags is current."""

from __future__ import annotations

import re

from ccm.app import options
from ccm.app.options import reference


def test_the_file_is_what_the_table_says() -> None:
    """If not: `python -m ccm.app.options.reference > ccm/app/FLAGS.md`."""
    assert reference.FILE.read_text(encoding="utf-8") == reference.markdown()


def test_every_flag_has_one_line() -> None:
    named = re.findall(r"^\| (?:`-\w`)?`--([a-z0-9-]+)` \|", reference.markdown(), re.MULTILINE)

    assert sorted(named) == sorted(options.FLAGS)
