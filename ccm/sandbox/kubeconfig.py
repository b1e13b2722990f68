"""Kubeconfigs for the API servers of a sandbox, as JSON, which is YAML too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ccm.base import files


def write(path: Path, clusters: Mapping[str, Mapping[str, str]], token: str) -> None:
    """Write a kubeconfig that its owner only can read.

    Args:
        path: the file.
        clusters: ways to the server, each with a context of its name; the first is the
            current one, and the user has its name too.
        token: bearer token of the user; empty for a server that asks for none.
    """
    user = next(iter(clusters))
    contexts = [{"name": name, "context": {"cluster": name, "user": user}} for name in clusters]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster} for name, cluster in clusters.items()],
        "users": [{"name": user, "user": {"token": token} if token else {}}],
        "contexts": contexts,
        "current-context": user,
    }
    files.write_private(path, json.dumps(document, indent=2) + "\n")
