"""Every flag of the daemon: its default, what it takes, and what it refuses.

A line of the table beside this file holds the flag, its default, texts it takes, and texts it
refuses, each part between bars
and texts between spaces. `''` is the empty text, `-` none at all: the flag alone. What is taken
comes back as `written` where a text stands as `text->written`. Where a flag takes any text there
is nothing to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path(__file__).with_suffix(".txt")


WITH: Mapping[str, tuple[str, ...]] = {
    "cloud-api-burst": ("--cloud-api-qps=1",),
    "requestheader-uid-headers": ("--feature-gates=RemoteRequestHeaderUID=true",),
    "webhook-tls-cert-file": ("--webhook-tls-private-key-file=/a/key",),
    "webhook-tls-private-key-file": ("--webhook-tls-cert-file=/a/cert",),
    "tls-cert-file": ("--tls-private-key-file=/a/key",),
    "tls-private-key-file": ("--tls-cert-file=/a/cert",),
    **{
        f"log-{form}-{what}": ("--feature-gates=LoggingAlphaOptions=true",)
        for form in ("text", "json")
        for what in ("split-stream", "info-buffer-size")
    },
}
"""Flags that make sense together with others only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One flag.

    Attributes:
        name: of the flag.
        default: as written.
        takes: words of the command line, and what comes back as written.
        refuses: texts.
    """

    name: str
    default: str
    takes: Mapping[str, str]
    refuses: tuple[str, ...]


def rows() -> Mapping[str, Row]:
    """All rows by the name of their flag."""
    found = {}
    for line in _TABLE.read_text().splitlines():
        name, default, takes, refuses = (part.strip() for part in line.split("|"))
        found[name] = Row(
            name=name,
            default=default,
            takes=dict(_taken(name, takes)),
            refuses=tuple(map(_text, refuses.split())),
        )
    return found


def _taken(name: str, texts: str) -> Iterator[tuple[str, str]]:
    for entry in texts.replace("'' ->", "''->").split():
        text, arrow, written = entry.partition("->")
        if entry in ("-", "->true"):
            yield f"--{name}", "true"
        else:
            yield f"--{name}={_text(text)}", written if arrow else _text(text)


def _text(text: str) -> str:
    return "" if text == "''" else text
