"""Log lines in both formats, levels, bound facts and forwarded libraries."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from ccm.base import log

HEAD = r"\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ "


@pytest.fixture
def stream() -> Iterator[io.BytesIO]:
    """Where lines go; the process's logging is as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield io.BytesIO()
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def written(stream: io.BytesIO) -> str:
    return stream.getvalue().decode()


def objects(stream: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written(stream).splitlines()]


@pytest.mark.parametrize(
    ("method", "letter"), [("info", "I"), ("warning", "W"), ("error", "E"), ("critical", "F")]
)
def test_text_lines_look_like_klogs(stream: io.BytesIO, method: str, letter: str) -> None:
    log.setup(stream=stream)

    getattr(log.logger("node"), method)("node initialised", node="a b", attempt=3, ready=True)

    expected = rf'{letter}{HEAD}node\] "node initialised" node="a b" attempt=3 ready=true\n'
    assert re.fullmatch(expected, written(stream))


def test_text_quotes_what_would_break_a_line(stream: io.BytesIO) -> None:
    log.setup(stream=stream)

    log.logger("node").info("failed", error=ValueError('line one\n"line two"'), cause="x\ny")

    assert written(stream).endswith(r' error="line one\n\"line two\"" cause="x\ny"' + "\n")
    assert written(stream).count("\n") == 1


def test_a_traceback_follows_its_text_line(stream: io.BytesIO) -> None:
    log.setup(stream=stream)

    try:
        raise ValueError("broken")
    except ValueError:
        log.logger("node").exception("failed")

    first, *rest = written(stream).splitlines()
    assert first.endswith('node] "failed"')
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "ValueError: broken"


def test_json_lines_have_klogs_keys(stream: io.BytesIO) -> None:
    log.setup(fmt="json", stream=stream)

    log.logger("node", zone="z1").warning("failed", error=ValueError("broken"), attempt=3)

    (line,) = objects(stream)
    assert line.pop("ts") > 1_500_000_000_000
    assert line == {
        "level": "warning",
        "msg": "failed",
        "err": "broken",
        "logger": "node",
        "zone": "z1",
        "attempt": 3,
    }


@pytest.mark.parametrize(("verbosity", "count"), [(0, 0), (3, 0), (4, 1)])
def test_debug_lines_appear_from_verbosity_four(
    stream: io.BytesIO, verbosity: int, count: int
) -> None:
    log.setup(fmt="json", verbosity=verbosity, stream=stream)

    log.logger("node").debug("looked")

    assert len(objects(stream)) == count


def test_facts_bound_for_a_block_end_with_it(stream: io.BytesIO) -> None:
    log.setup(fmt="json", stream=stream)

    with log.bound(key="node-1"):
        log.logger("node").info("inside")
    log.logger("node").info("outside")

    assert [line.get("key") for line in objects(stream)] == ["node-1", None]


def test_warnings_of_libraries_are_forwarded_and_their_chatter_is_not(stream: io.BytesIO) -> None:
    log.setup(fmt="json", stream=stream)
    library = logging.getLogger("some.library")

    library.info("chatter")
    library.warning("careful, %s", "please")

    (line,) = objects(stream)
    assert (line["logger"], line["level"], line["msg"]) == (
        "some.library",
        "warning",
        "careful, please",
    )


def test_a_librarys_traceback_is_kept(stream: io.BytesIO) -> None:
    log.setup(fmt="json", stream=stream)

    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("some.library").exception("failed")

    (line,) = objects(stream)
    assert line["exception"].endswith("ValueError: broken")
