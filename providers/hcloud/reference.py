"""The tables for people, written from the declarations.

`python -m providers.hcloud.reference` writes `ANNOTATIONS.md` and `SETTINGS.md` beside this module
anew; a test compares them.
"""

from __future__ import annotations

from pathlib import Path

from ccm.cloud.settings import markdown

from . import config, service_annotations

FOLDER = Path(__file__).parent

_WRITTEN = (
    "Written by `python -m providers.hcloud.reference` from the declarations; change those.\n"
)


def annotation_table() -> str:
    """What stands in `ANNOTATIONS.md`."""
    return (
        f"# Service annotations of the Hetzner Cloud\n\n{_WRITTEN}\n{service_annotations.table()}\n"
    )


def setting_table() -> str:
    """What stands in `SETTINGS.md`."""
    return f"# Settings of the Hetzner Cloud\n\n{_WRITTEN}\n{markdown(config.Config)}\n"


FILES = {"ANNOTATIONS.md": annotation_table, "SETTINGS.md": setting_table}
"""Name -> what stands there."""


def write() -> None:
    """Write all of them."""
    for name, text in FILES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    write()
