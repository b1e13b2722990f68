"""Kubeconfigs for the API servers of a sandbox, as JSON, which is YAML too."""

from __future__ import annotations

import json
from pathlib import Path

from ccm.base import files

NAME = "ccm-sandbox"
"""Of the one context, its cluster and its user."""


def write(path: Path, *, url: str, token: str, ca_file: Path | None = None) -> None:
    """Write a kubeconfig with one context, that its owner only can read.

    Args:
        path: the file.
        url: base URL of the API server.
        token: bearer token of the user; empty for a server that asks for none.
        ca_file: certificates that prove the server; None for plain http.
    """
    proof = {"certificate-authority": str(ca_file)} if ca_file else {}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": url, **proof}}],
        "users": [{"name": NAME, "user": {"token": token} if token else {}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }
    files.write_private(path, json.dumps(document, indent=2) + "\n")
