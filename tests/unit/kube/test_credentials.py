"""A token file is followed; what cannot be read never costs the token we have."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ccm.base import redact
from ccm.kube import credentials
from ccm.kube.credentials import Credential, Fixed, TokenFile
from ccm.kube.errors import NoCredentials
from tests.handclock import HandClock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("uno\n")
    return path


async def test_white_space_around_the_token_is_not_sent(file: Path) -> None:
    file.write_text("  uno \r\n\n")

    assert await TokenFile(file).current() == Credential(header="Bearer uno")


async def test_a_rotated_token_is_used_within_a_minute(hand: HandClock, file: Path) -> None:
    source = TokenFile(file)
    await source.current()
    file.write_text("two")

    hand.advance(49)
    before = (await source.current()).header
    hand.advance(1)
    after = (await source.current()).header

    assert (before, after) == ("Bearer uno", "Bearer two")


@pytest.mark.parametrize("content", [None, "", " \n", "two lines\nno", "caf\xe9"])
async def test_an_unreadable_file_keeps_the_old_token(
    hand: HandClock, file: Path, content: str | None
) -> None:
    source = TokenFile(file)
    await source.current()
    file.unlink()
    if content is not None:
        file.write_text(content)

    with capture_logs() as lines:
        hand.advance(100)
        first = (await source.current()).header
        hand.advance(100)
        second = (await source.current()).header
        file.write_text("three")
        hand.advance(100)
        third = (await source.current()).header

    assert (first, second, third) == ("Bearer uno", "Bearer uno", "Bearer three")
    assert [line["log_level"] for line in lines] == ["warning", "info"]
    assert not any("uno" in str(line) for line in lines)


async def test_a_file_that_could_never_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match="nothing"):
        await TokenFile(tmp_path / "nothing").current()


async def test_a_rejected_token_is_read_again_at_once(hand: HandClock, file: Path) -> None:
    source = TokenFile(file)
    used = await source.current()
    file.write_text("two")
    hand.advance(1)

    changed = await source.rejected(used, hand.monotonic())

    assert changed
    assert (await source.current()).header == "Bearer two"


async def test_a_rejected_token_that_did_not_change_is_no_reason_to_repeat(
    hand: HandClock, file: Path
) -> None:
    source = TokenFile(file)
    used = await source.current()
    hand.advance(1)

    assert not await source.rejected(used, hand.monotonic())


async def test_a_token_read_after_the_request_began_is_not_dropped(
    hand: HandClock, file: Path
) -> None:
    source = TokenFile(file)
    sent_at = hand.monotonic()
    hand.advance(1)
    used = await source.current()
    file.write_text("two")

    assert not await source.rejected(used, sent_at)
    assert await source.rejected(Credential(header="Bearer zero"), sent_at)


async def test_a_fixed_credential_never_changes() -> None:
    source = Fixed(credentials.basic("user", "pa:ss"))

    credential = await source.current()

    assert credential.header is not None
    assert base64.b64decode(credential.header.removeprefix("Basic ")) == b"user:pa:ss"
    assert not await source.rejected(credential, 0.0)


def test_a_credential_is_not_printed() -> None:
    assert "secret" not in repr(credentials.bearer("secret"))


@pytest.mark.parametrize(
    ("made", "secret"),
    [
        (lambda: credentials.bearer("opaque-token"), "opaque-token"),
        (lambda: credentials.basic("me", "hunter22"), "hunter22"),
    ],
    ids=["bearer", "basic"],
)
def test_the_log_never_shows_a_credential(made: Callable[[], Credential], secret: str) -> None:
    sent = str(made().header)

    assert redact.words(f"{secret} and {sent.split()[1]}").count(redact.MASK) == 2
