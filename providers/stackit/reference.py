"""The tables for people, written from the declarations.

`python -m providers.stackit.reference` writes `ANNOTATIONS.md`, `SETTINGS.md` and `ERRORS.md` anew
beside this module; a test compares them.
"""

from __future__ import annotations

from pathlib import Path

from ccm.cloud.errors import CODES, POLICY
from ccm.cloud.settings import markdown

from . import config, refusals, service_annotations

FOLDER = Path(__file__).parent

_WRITTEN = (
    "Written by `python -m providers.stackit.reference` from the declarations; change those.\n"
)


def annotation_table() -> str:
    """What stands in `ANNOTATIONS.md`."""
    return f"# Service annotations of STACKIT\n\n{_WRITTEN}\n{service_annotations.table()}\n"


def setting_table() -> str:
    """What stands in `SETTINGS.md`."""
    return (
        f"# Settings of STACKIT\n\n{_WRITTEN}\n"
        f"## Cloud config\n\n{markdown(config.Config)}\n\n"
        f"## Environment\n\n{markdown(config.Variables)}\n"
    )


def error_table() -> str:
    """What stands in `ERRORS.md`."""
    rows = ["| answer | when | code | node, Service | machine |", "| --- | --- | --- | --- | --- |"]
    for one in refusals.TABLE:
        code = CODES[one.kind].name
        shown = code if one.kind.__name__ == code else f"{code} (`{one.kind.__name__}`)"
        rows.append(
            f"| {one.answer} | {one.when} | {shown} | {POLICY[one.kind].value} | "
            f"{one.machine or refusals.machine_retry(one.kind)} |"
        )
    text = "\n".join(rows)
    return (
        f"# Errors of STACKIT\n\n{_WRITTEN}\n"
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
"""Name -> what stands there."""


def write() -> None:
    """Write all of them."""
    for name, text in FILES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    write()
