"""The flags of logging."""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from ccm.base import flag_checks as checks
from ccm.base import flag_values as values
from ccm.base.flags import Fault, Section

GLOBAL = Section("global")


@dataclass(frozen=True, kw_only=True)
class LogFlags:
    """What is logged, and how."""

    logging_format: str = GLOBAL.flag(
        "text",
        "Format of log lines: text, as klog writes it, or json; dev, an addition of ours, is for "
        "a developer's terminal.",
        check=checks.one_of("text", "json", "dev"),
    )
    log_flush_frequency: timedelta = GLOBAL.flag(
        timedelta(seconds=5),
        "Longest time a log line is held back, if there is a buffer. 0 means until it is full.",
        check=checks.not_negative,
    )
    v: int = GLOBAL.flag(
        0,
        "How much is logged: from 1 on every flag, and requests to the HTTPS server that are "
        "refused or privileged, from 4 on each decision, from 8 on what libraries do.",
        short="v",
        kind=values.LEVEL,
    )
    vmodule: tuple[tuple[str, int], ...] = GLOBAL.flag(
        (),
        "Log levels for single modules; text format only. A pattern with a slash is compared with "
        "a path such as ccm/kube/client, one without with its last part; * and ? may be used.",
        kind=values.LEVELS,
    )
    log_text_split_stream: bool = GLOBAL.flag(
        False, "Errors to stderr, the rest to stdout (text). Alpha."
    )
    log_json_split_stream: bool = GLOBAL.flag(
        False, "Errors to stderr, the rest to stdout (json). Alpha."
    )
    log_text_info_buffer_size: int = GLOBAL.flag(
        0,
        "Bytes of text lines that may be held back on stdout when streams are split. Alpha.",
        unit="bytes",
        check=checks.zero_or_more("nothing is held back"),
        kind=values.QUANTITY,
    )
    log_json_info_buffer_size: int = GLOBAL.flag(
        0,
        "Bytes of json lines that may be held back on stdout when streams are split. Alpha.",
        unit="bytes",
        check=checks.zero_or_more("nothing is held back"),
        kind=values.QUANTITY,
    )


def faults(flags: LogFlags, *, alpha: bool) -> Iterator[Fault]:
    """Settings that make no sense together; `alpha` says whether the alpha ones are allowed."""
    if flags.logging_format in ("json", "dev") and flags.vmodule:
        yield "vmodule", "works with --logging-format=text only"
    for form in ("text", "json"):
        for what in ("split_stream", "info_buffer_size"):
            if not alpha and getattr(flags, f"log_{form}_{what}"):
                name = f"log-{form}-{what.replace('_', '-')}"
                yield name, "needs --feature-gates=LoggingAlphaOptions=true"
