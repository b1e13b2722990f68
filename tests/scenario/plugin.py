"""A provider of somebody else's, installed for one test."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, name: str, source: str) -> dict[str, str]:
    """Put a provider where a daemon finds it; the environment which that daemon needs.

    Args:
        folder: of the test.
        name: of the provider.
        source: its module; `open_cloud` opens it.
    """
    site = folder / "site"
    info = site / f"ccm_{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"ccm_{name}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ccm-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ccm.providers]\n{name} = ccm_{name}:open_cloud\n")
    return {"PYTHONPATH": str(site)}
