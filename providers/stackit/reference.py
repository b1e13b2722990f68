"""Generated documentation of annotations, settings and errors.

`python -m providers.stackit.reference` writes `ANNOTATIONS.md`, `SETTINGS.md` and `ERRORS.md`
beside this module. A test checks that they are current.
"""

from __future__ import annotations

from pathlib import Path

from ccm.cloud.errors import CODES, POLICY
from ccm.cloud.settings import markdown

from . import config, refusals, service_annotations

FOLDER = Path(__file__).parent

_HEADER = (
    "Written by `python -m providers.stackit.reference` from the declarations; change those.\n"
)


def annotation_table() -> str:
    """Return the content of `ANNOTATIONS.md`."""
    return f"# Service annotations of STACKIT\n\n{_HEADER}\n{service_annotations.table()}\n"


def setting_table() -> str:
    """Return the content of `SETTINGS.md`."""
    return (
        f"# Settings of STACKIT\n\n{_HEADER}\n"
        f"## Cloud config\n\n{markdown(config.Config)}\n\n"
        f"## Environment\n\n{markdown(config.Variables)}\n"
    )


def error_table() -> str:
    """Return the content of `ERRORS.md`."""
    rows = ["| answer | when | code | node, Service | machine |", "| --- | --- | --- | --- | --- |"]
    for row in refusals.TABLE:
        code = CODES[row.kind].name
        shown = code if row.kind.__name__ == code else f"{code} (`{row.kind.__name__}`)"
        rows.append(
            f"| {row.response} | {row.meaning} | {shown} | {POLICY[row.kind].value} | "
            f"{row.machine or refusals.machine_retry(row.kind)} |"
        )
    text = "\n".join(rows)
    return (
        f"# Errors of STACKIT\n\n{_HEADER}\n"
        "What an API answers, what it means, the code in a machine's `lastOperation.errorCode`,\n"
        "and when it is tried again: about a node or a Service, and when a machine is made.\n"
        "Back off begins with seconds, back off long with half a minute; slow is every ten\n"
        "minutes and whenever the object changes.\n\n"
        f"{text}\n"
    )


FILES = {
    "ANNOTATIONS.md": annotation_table,
    "SETTINGS.md": setting_table,
    "ERRORS.md": error_table,
}
"""File name -> function that returns the content."""


def write() -> None:
    """Write all files."""
    for name, text in FILES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    write()
