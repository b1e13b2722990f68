"""Generated documentation of annotations and settings.

`python -m providers.hcloud.reference` writes `ANNOTATIONS.md` and `SETTINGS.md` beside this module.
A test checks that they are current.
"""

from __future__ import annotations

from pathlib import Path

from ccm.cloud.settings import markdown

from . import config, service_annotations

FOLDER = Path(__file__).parent

_HEADER = "Written by `python -m providers.hcloud.reference` from the declarations; change those.\n"


def annotation_table() -> str:
    """Return the content of `ANNOTATIONS.md`."""
    return (
        f"# Service annotations of the Hetzner Cloud\n\n{_HEADER}\n{service_annotations.table()}\n"
    )


def setting_table() -> str:
    """Return the content of `SETTINGS.md`."""
    return f"# Settings of the Hetzner Cloud\n\n{_HEADER}\n{markdown(config.Config)}\n"


FILES = {"ANNOTATIONS.md": annotation_table, "SETTINGS.md": setting_table}
"""File name -> function that returns the content."""


def write() -> None:
    """Write all files."""
    for name, text in FILES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    write()
