"""Credentials of storage, as they are read from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccm.base import redact
from ccm.persistence.credentials import text_of
from ccm.persistence.errors import BackendUnavailable


def test_a_credential_is_known_and_one_that_is_too_long_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("of-a-bucket\n")
    assert text_of(file) == "of-a-bucket"
    assert redact.words("of-a-bucket") == redact.MASK

    file.write_text("x" * 300_000)
    with pytest.raises(BackendUnavailable, match="key cannot be read: it has more than 65536"):
        text_of(file)
