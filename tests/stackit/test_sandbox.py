"""The commands of the guide, as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.stackit import reference
from tests.sandbox.command import carried_out, fake, guided, plain

GUIDE = reference.FOLDER / "README.md"


def test_the_first_command(tmp_path: Path) -> None:
    """Nothing of somebody's real account reaches the daemon."""
    real = {"STACKIT_SERVICE_ACCOUNT_KEY_PATH": "/nowhere", "STACKIT_NO_AUTH": "perhaps"}

    said = carried_out(tmp_path, guided(GUIDE)[0], {**plain(tmp_path), **real})

    assert said.startswith("done: 3 machines run, 5 nodes initialised, 2 Services served")


@pytest.mark.soak
def test_the_other_commands(tmp_path: Path) -> None:
    """In the end nothing that machines cost is left."""
    _, (_, *program), (_, variable), sandbox = guided(GUIDE)
    name, _, text = variable.partition("=")

    with fake(tmp_path, *program):
        said = carried_out(tmp_path, sandbox, {**plain(tmp_path), name: text})

    assert said.startswith("done: 2 machines run, 1 nodes initialised, 2 Services served")
    assert ", 0 warnings in " in said
