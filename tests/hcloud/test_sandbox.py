"""The commands of the guide, as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.hcloud import reference
from tests.sandbox.command import carried_out, fake, guided, plain

GUIDE = reference.FOLDER / "README.md"


def test_the_first_command(tmp_path: Path) -> None:
    """Nothing of somebody's real account reaches the daemon."""
    real = {"HCLOUD_TOKEN": "real" * 16, "HCLOUD_ENDPOINT": "http://127.0.0.1:9/v1"}

    said = carried_out(tmp_path, guided(GUIDE)[0], {**plain(tmp_path), **real})

    assert said.startswith("done: 3 machines run, 5 nodes initialised, 2 Services served")


@pytest.mark.soak
def test_with_routes(tmp_path: Path) -> None:
    """What the guide says about `--routes`."""
    said = carried_out(tmp_path, [*guided(GUIDE)[0], "--routes"], plain(tmp_path))

    assert "5 routes" in said
    assert ", 0 warnings in " in said


@pytest.mark.soak
def test_the_other_commands(tmp_path: Path) -> None:
    """In the end nothing that machines cost is left."""
    _, (_, *program), sandbox = guided(GUIDE)

    with fake(tmp_path, *program):
        said = carried_out(tmp_path, sandbox, plain(tmp_path))

    assert said.startswith("done: 2 machines run, 1 nodes initialised, 2 Services served")
    assert ", 0 warnings in " in said
