"""Working folder and API server of a sandbox."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import servers


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty folder, in which the sandbox creates its own folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture(
    params=[
        pytest.param(servers.BUILTIN),
        pytest.param(servers.REAL, marks=[pytest.mark.envtest, pytest.mark.soak]),
    ]
)
def environment(request: pytest.FixtureRequest, home: Path) -> Mapping[str, str]:
    """The environment that makes the sandbox take either API server."""
    variables = {**os.environ, "TMPDIR": str(home)}
    variables.pop("KUBEBUILDER_ASSETS", None)
    if request.param == servers.REAL:
        variables["KUBEBUILDER_ASSETS"] = str(servers.require_assets())
    return variables
