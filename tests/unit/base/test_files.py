"""Files for their owner's eyes."""

from __future__ import annotations

from pathlib import Path

from ccm.base import files


def test_nobody_else_reads_it_though_everybody_read_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("something longer than what follows")
    path.chmod(0o644)

    files.write_private(path, "kept")

    assert path.read_text() == "kept"
    assert path.stat().st_mode & 0o777 == 0o600
