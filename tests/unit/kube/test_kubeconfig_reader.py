"""A kubeconfig is read without the rest of the kubernetes package, which stays as it was."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from ccm.kube import kubeconfig_reader

reader = kubeconfig_reader.load()
heavy = ("kubernetes", "urllib3", "oauthlib", "requests_oauthlib", "google.auth")
print([name for name in sys.modules if name.startswith(heavy)], reader.merger.__name__)

import kubernetes.client
import urllib3

print(kubernetes.client.CoreV1Api.__name__, bool(urllib3.__version__))
"""


def test_only_the_reader_is_loaded_and_nothing_of_it_is_left_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[] KubeConfigMerger", "CoreV1Api True"]
