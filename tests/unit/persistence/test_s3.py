"""A bucket behind a bad connection, and one that ignores what it must not."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from yarl import URL

from ccm.persistence import errors
from ccm.persistence.interface import ABSENT, CAS
from ccm.persistence.s3 import S3Config, S3Store
from tests.contract.persistence import buckets
from tests.unit.persistence.helpers import KIND, NAME, opened, thing

pytestmark = pytest.mark.xdist_group("s3")

CONDITIONS = ("If-Match", "If-None-Match")


@dataclasses.dataclass
class Proxy:
    """What is done to requests on their way.

    Attributes:
        strips: the conditions.
        drops: this many answers to a PUT that was carried out.
        refuses: this many requests, with 503.
        puts: that came by.
    """

    url: str = ""
    strips: bool = False
    drops: int = 0
    refuses: int = 0
    puts: int = 0


@asynccontextmanager
async def between(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy()

    async def hand_on(request: web.Request) -> web.Response:
        if proxy.refuses > 0:
            proxy.refuses -= 1
            return web.Response(status=503)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name != "Host" and not (proxy.strips and name.title() in CONDITIONS)
        }
        url = target + request.raw_path
        async with session.request(
            request.method, URL(url, encoded=True), headers=headers,
            data=await request.read(),
        ) as answer:  # fmt: skip
            body = await answer.read()
        if request.method == "PUT":
            proxy.puts += 1
            if proxy.drops > 0 and answer.status == 200:
                proxy.drops -= 1
                assert request.transport is not None
                request.transport.abort()
        kept = {name: answer.headers[name] for name in ("ETag", "Content-Type", "Last-Modified")
                if name in answer.headers}  # fmt: skip
        return web.Response(status=answer.status, body=body, headers=kept)

    async with aiohttp.ClientSession() as session:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", hand_on)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.url = site.name
        yield proxy
        await runner.cleanup()


@pytest.fixture
def config(bucket_url: str, tmp_path: Path) -> S3Config:
    return next(iter(buckets.S3Harness(bucket_url, tmp_path).configs.values()))


def through(proxy: Proxy, config: S3Config) -> S3Store:
    return S3Store(msgspec.structs.replace(config, endpoint=proxy.url))


async def test_store_that_ignores_conditions(bucket_url: str, config: S3Config) -> None:
    """It is found out, and nothing is written under a condition that would not hold."""
    async with between(bucket_url) as proxy:
        proxy.strips = True
        async with opened(through(proxy, config)) as store:
            assert CAS not in store.capabilities(NAME)
            with pytest.raises(errors.VersionConflict, match="cannot keep conditions"):
                await store.put_versioned(NAME, thing(), expect=ABSENT)
            key = await store.put_object(NAME, thing())
            assert await store.get_object(NAME, KIND, key) == thing()
            await store.delete_object(NAME, KIND, key)
            assert await store.get_object(NAME, KIND, key) is None


async def test_answer_that_got_lost(bucket_url: str, config: S3Config) -> None:
    """The write came through: it is recognised by its id, though a second try met a conflict."""
    async with between(bucket_url) as proxy, opened(through(proxy, config)) as store:
        proxy.drops = 1
        key, version = await store.put_versioned(NAME, thing(), expect=ABSENT)

        assert proxy.drops == 0
        assert await store.get_versioned(NAME, KIND, key) == (thing(), version)


async def test_short_outage_is_waited_for(bucket_url: str, config: S3Config) -> None:
    async with between(bucket_url) as proxy, opened(through(proxy, config)) as store:
        proxy.refuses = 2
        await store.put_object(NAME, thing())

        assert await store.get_all_objects(NAME, KIND) == [thing()]


async def test_long_outage_is_told(bucket_url: str, config: S3Config) -> None:
    async with between(bucket_url) as proxy, opened(through(proxy, config), probe_s=3600) as store:
        key = await store.put_object(NAME, thing(size=1))
        proxy.refuses = 100
        with pytest.raises(errors.BackendUnavailable):
            await store.put_object(NAME, thing(size=2))
        proxy.refuses = 0
        assert await store.get_object(NAME, KIND, key) == thing(size=1)


async def test_missing_bucket_is_told(bucket_url: str, config: S3Config) -> None:
    gone = msgspec.structs.replace(config, bucket="no-such-bucket")
    with pytest.raises(errors.BackendDead, match="no-such-bucket"):
        async with opened(S3Store(gone)):
            pass


def test_plain_http_is_refused() -> None:
    with pytest.raises(errors.BackendDead, match=r"not encrypted.*https://"):
        S3Store(S3Config(bucket="b-1", endpoint="http://127.0.0.1:1"))
