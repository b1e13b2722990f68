"""What every run tries on the pinned kube-apiserver holds for the other supported versions.

All but `tests/kubectl`, which compares the built-in server with the pinned one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests import servers
from tests.envtest import assets


@pytest.mark.soak
@pytest.mark.envtest
@pytest.mark.timeout(3600)  # the first time the server has to be built
@pytest.mark.parametrize("version", assets.OTHER_VERSIONS)
def test_another_version_of_the_api_server_passes_the_same_tests(version: str) -> None:
    folder = servers.assets_of(version)
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    assert assets.version_of(folder) == version

    ended = subprocess.run(
        [*tests, "-m", "envtest and not soak", "--ignore=tests/kubectl", "tests"],
        cwd=assets.ROOT,
        env={**os.environ, "KUBEBUILDER_ASSETS": str(folder), "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout
    counted = re.search(r"(\d+) passed", ended.stdout)
    assert counted, ended.stdout
    assert int(counted[1]) >= 100
