"""The settings of a cloud config, told by the provider that reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from ccm import cloud
from ccm.doctor import recording
from ccm.doctor.recording import Setting

pytestmark = pytest.mark.asyncio


async def test_every_field_is_told_and_the_provider_goes_no_further() -> None:
    reached: list[str] = []

    @cloud.provider(sdk="1.0")
    async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
        fields = context.toml()
        fields.text("url", required=True)
        fields.text("api_key")
        fields.secret("pin", "0000")
        fields.integer("retries", 3, least=0)
        fields.integer("weight", 1)
        fields.boolean("verify", True)
        fields.duration("timeout", timedelta(minutes=1))
        fields.done()
        reached.append("the cloud")
        yield cloud.Cloud(name="x")

    assert await recording.read(open_cloud) == (
        "TOML",
        (
            Setting(name="url", kind="text", required=True),
            Setting(name="api_key", kind="secret"),
            Setting(name="pin", kind="secret"),
            Setting(name="retries", kind="whole number, at least 0", default="3"),
            Setting(name="weight", kind="whole number", default="1"),
            Setting(name="verify", kind="true or false", default="true"),
            Setting(name="timeout", kind="duration", default="1m0s"),
        ),
    )
    assert reached == []


async def test_sections_are_part_of_the_name() -> None:
    @cloud.provider(sdk="1.0")
    async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
        fields = context.ini()["Global"]
        fields.text("auth-url", required=True)
        fields.done()
        yield cloud.Cloud(name="x")

    form, settings = await recording.read(open_cloud)

    assert (form, [one.name for one in settings]) == ("INI", ["Global.auth-url"])


async def test_what_was_read_before_a_provider_stumbled_is_told() -> None:
    @cloud.provider(sdk="1.0")
    async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
        port = context.json().text("port", required=True)
        yield cloud.Cloud(name=f"x{int(port)}")

    form, settings = await recording.read(open_cloud)

    assert (form, [one.name for one in settings]) == ("JSON", ["port"])


async def test_a_provider_that_reads_the_bytes_itself_tells_nothing() -> None:
    @cloud.provider(sdk="1.0")
    async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
        assert context.config == b""
        yield cloud.Cloud(name="x")

    assert await recording.read(open_cloud) == ("", ())
