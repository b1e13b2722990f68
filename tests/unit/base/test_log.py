"""Log lines in every format, levels, bound facts, streams and forwarded libraries."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ccm.base import log, log_render, redact

pytestmark = pytest.mark.virtual_time

HEAD = r"\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_log\.py:\d+\]"


@pytest.fixture
def stream() -> Iterator[io.BytesIO]:
    """Log JSON to a buffer; restore the logging of the process afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    stream = io.BytesIO()
    log.setup(fmt="json", stream=stream)
    yield stream
    log.setup()
    root.handlers, root.level = handlers, level


def written(stream: io.BytesIO) -> str:
    return stream.getvalue().decode()


def objects(stream: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written(stream).splitlines()]


@pytest.mark.parametrize(
    ("method", "letter"), [("info", "I"), ("warning", "W"), ("error", "E"), ("critical", "F")]
)
def test_text_lines_have_the_format_of_klog(stream: io.BytesIO, method: str, letter: str) -> None:
    log.setup(stream=stream)

    getattr(log.logger("node"), method)(
        "node initialised", node="a b", attempt=3, ready=True, error="no"
    )

    expected = (
        rf'{letter}{HEAD} "node initialised" logger="node" err="no" node="a b" attempt=3 '
        r"ready=true\n"
    )
    assert re.fullmatch(expected, written(stream))


def test_dev_format_has_colours_only_when_requested(stream: io.BytesIO) -> None:
    log.setup(fmt="dev", stream=stream)

    log.logger("node").warning("not found", node="a")

    log.setup(fmt="dev", stream=stream, colours=True)
    log.logger("node").error("failed")

    plain, coloured = written(stream).splitlines()
    expected = r'\d\d:\d\d:\d\d\.\d{3} warning  not found +node="a" node test_log\.py:\d+'
    assert re.fullmatch(expected, plain)
    assert "\x1b[31merror   \x1b[0m" in coloured


@pytest.mark.parametrize(
    ("verbosity", "vmodule", "count"),
    [
        (0, [], 0),
        (3, [], 0),
        (4, [], 1),
        (0, [("test_log", 4)], 1),
        (0, [("*/test_l?g", 5)], 1),
        (0, [("client", 9)], 0),
        (0, [("test*", 3)], 0),
    ],
)
def test_debug_lines_need_verbosity_four_globally_or_by_vmodule(
    stream: io.BytesIO, verbosity: int, vmodule: list[tuple[str, int]], count: int
) -> None:
    log.setup(fmt="json", verbosity=verbosity, vmodule=vmodule, stream=stream)

    log.logger("node").debug("looked")

    assert len(objects(stream)) == count


def test_log_levels_can_change_while_a_thread_reads_them() -> None:
    levels = log.Levels()

    class Cache(dict[str, int]):
        def __contains__(self, module: object) -> bool:
            levels.set(0)
            return super().__contains__(module)

    levels._cache = Cache({"ccm.node": 4})

    assert levels.is_enabled(4, "ccm.node")


def test_full_log_buffer_is_flushed_in_order(stream: io.BytesIO) -> None:
    infos = io.BytesIO()
    log.setup(fmt="json", stream=stream, info_stream=infos, buffer_bytes=300)

    for number in range(10):
        log.logger("node").info("line", number=number)
    early = len(objects(infos))
    log.flush()

    assert 0 < early < 10
    assert [line["number"] for line in objects(infos)] == list(range(10))


def test_lone_surrogates_are_logged_escaped(stream: io.BytesIO) -> None:
    log.logger("x").error("broken \udcff", path="/\udcff", error=ValueError("\udcfe"), count=3)

    (line,) = objects(stream)
    assert (line["msg"], line["path"]) == ("broken \\udcff", "/\\udcff")
    assert (line["err"], line["count"]) == ("\\udcfe", 3)


@pytest.mark.parametrize("fmt", ["text", "json", "dev"])
@pytest.mark.parametrize("piece", ["token ", "://a@", "x"])
def test_huge_log_lines_are_truncated_in_bounded_time(
    stream: io.BytesIO, fmt: log.Format, piece: str
) -> None:
    log.setup(fmt=fmt, stream=stream)
    said = piece * (1 << 18)
    before = time.process_time()

    log.logger("x").error(said, fact=[said], error=ValueError(said), exception=said)

    assert time.process_time() - before < 4
    assert len(written(stream)) < 5 * log_render.MAX_CHARACTERS
    assert written(stream).count("...") == 4
    if fmt == "json":
        (line,) = objects(stream)
        assert line["err"].startswith(piece[:3])


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_multi_line_secret_is_masked_in_tracebacks(stream: io.BytesIO, fmt: log.Format) -> None:
    log.setup(fmt=fmt, stream=stream)
    secret = "first-line-of-a-secret\nsecondLine88-of-a-secret"
    redact.register(secret, lasting=False)
    try:
        raise ExceptionGroup("all", [ValueError(f"bad: {secret}")])
    except ExceptionGroup:
        log.logger("x").exception("failed")
    redact.unregister(secret)

    assert "ValueError: bad" in written(stream)
    assert "secondLine88" not in written(stream)


@pytest.mark.parametrize("fmt", ["text", "dev"])
def test_control_characters_cannot_forge_a_log_line(stream: io.BytesIO, fmt: log.Format) -> None:
    said = "no\nforged\rforged\x85forged\u2028forged\x1b[2J\x9b2J\u202e"
    log.setup(fmt=fmt, stream=stream)
    try:
        raise ValueError(said)
    except ValueError as error:
        log.logger("node").error(said, exc_info=error, error=error, name=said)

    first, *rest = written(stream).splitlines()
    assert rest[0] == "\tTraceback (most recent call last):"
    assert all(line.startswith("\t") for line in rest)
    assert "".join([first, *(line[1:] for line in rest)]).isprintable()


def test_json_lines_have_the_keys_of_klog_and_split_streams(stream: io.BytesIO) -> None:
    infos = io.BytesIO()
    log.setup(fmt="json", verbosity=6, stream=stream, info_stream=infos)
    log.logger("node").v(6).info("detail")
    logging.getLogger("some.library").info("chatter")
    with log.bound(zone="z1"):
        log.logger("node").error("failed", error=ValueError("broken"), attempt=3)
    logging.getLogger("some.library").error("careful, %s", "please")

    (info,) = objects(infos)
    assert [*info] == ["ts", "caller", "msg", "v", "logger", "level"]
    line, forwarded = objects(stream)
    assert re.fullmatch(r"test_log\.py:\d+", line.pop("caller"))
    assert line.pop("ts") > 1_500_000_000_000
    expected = {"msg": "failed", "logger": "node", "err": "broken", "level": "error"}
    assert line == {**expected, "zone": "z1", "attempt": 3}
    assert (forwarded["logger"], forwarded["msg"]) == ("some.library", "careful, please")


def test_secrets_are_masked_in_log_lines(stream: io.BytesIO) -> None:
    redact.register("wLq2hunter\n2")
    try:
        raise ValueError("refused: wLq2hunter\n2 is wrong")
    except ValueError as error:
        log.logger("node").error("failed", exc_info=error, error=error, header="Bearer abc.def1")
    finally:
        redact.unregister("wLq2hunter\n2")
    logging.getLogger("some.library").warning("GET https://me:pa55@cloud.example/x")

    assert not re.search("hunter|def1|pa55", written(stream))
