"""Files and objects that several scenarios start from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccm.sandbox import realserver

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


def write_kubeconfig(
    path: Path, url: str, user: Mapping[str, str], *, ca_file: Path | None = None
) -> None:
    """A kubeconfig whose user has these credentials."""
    realserver.write_kubeconfig(path, url=url, token="", ca_file=ca_file)
    document = json.loads(path.read_text())
    document["users"][0]["user"] = user
    path.write_text(json.dumps(document))


def lease(name: str, **spec: Any) -> dict[str, Any]:
    """A Lease beside the daemons' own."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": spec,
    }
