"""A bucket behind an unreliable connection, and one that ignores conditions."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from yarl import URL

from ccm.base.backoff import ExponentialBackoff
from ccm.base.tasks import cancel_and_join, spawn
from ccm.persistence import errors, store
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.interface import ABSENT, GVK, Version
from ccm.persistence.objects import key_of
from ccm.persistence.s3 import S3Config, S3Store
from ccm.persistence.store import Claim
from ccm.testing.persistence_harness import captured_logs
from tests import forwardproxy, pki
from tests.contract.persistence import buckets
from tests.unit.persistence.helpers import HERE, KIND, NAME, opened, thing
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.xdist_group("s3")

_KEY = re.compile("Credential=([^/]+)/")
CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code></Error>"
UNIMPLEMENTED = b"<Error><Code>NotImplemented</Code></Error>"
CONDITIONS = ("If-Match", "If-None-Match")

Happening: TypeAlias = Callable[[], Awaitable[None]]


@dataclasses.dataclass
class Proxy:
    """Faults that the proxy applies to requests, and its records.

    Attributes:
        strips: condition headers that are removed.
        unimplemented: whether PUTs with a condition are refused with 501.
        drops: number of responses to successful PUTs that are dropped.
        replaces: number of responses to successful PUTs that are replaced by `status`.
        refuses: number of requests that are refused with `status`.
        status: 503, or 429.
        conflicts: number of PUTs that are refused with 409: a concurrent write.
        puts: number of PUTs.
        deletions: number of deletions.
        keys: IDs of the access keys in requests.
        encryption: encryption requested by PUTs.
        before: action run once, before the next PUT is forwarded.
        after: action run once, before the response to the next PUT.
        hangs_after: number of requests after which one is neither forwarded nor answered.
        is_hanging: whether a request is held.
        ends: set at the end of the proxy.
    """

    url: str = ""
    strips: tuple[str, ...] = ()
    unimplemented: bool = False
    drops: int = 0
    replaces: int = 0
    refuses: int = 0
    status: int = 503
    conflicts: int = 0
    puts: int = 0
    deletions: int = 0
    keys: set[str] = dataclasses.field(default_factory=set)
    encryption: set[str | None] = dataclasses.field(default_factory=set)
    before: Happening | None = None
    after: Happening | None = None
    hangs_after: int = 10**9
    is_hanging: bool = False
    ends: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def meets(self, name: str) -> None:
        """Let it happen, if it has not yet."""
        happening = getattr(self, name)
        setattr(self, name, None)
        if happening is not None:
            await happening()


@asynccontextmanager
async def between(target: str, tls: pki.Files | None = None) -> AsyncIterator[Proxy]:
    proxy = Proxy()

    async def hand_on(request: web.Request) -> web.Response:
        proxy.keys |= set(_KEY.findall(request.headers.get("Authorization", "")))
        proxy.hangs_after -= 1
        if proxy.hangs_after < 0:
            proxy.is_hanging = True
            await proxy.ends.wait()
            return web.Response(status=503)
        if proxy.refuses > 0:
            proxy.refuses -= 1
            return web.Response(status=proxy.status)
        if proxy.conflicts > 0 and request.method == "PUT":
            proxy.conflicts -= 1
            return web.Response(status=409, body=CONFLICT)
        proxy.deletions += "delete" in request.query  # a POST of several
        if request.method == "PUT":
            await proxy.meets("before")
        headers = {
            name: value
            for name, value in request.headers.items()
            if name != "Host" and name.title() not in proxy.strips
        }
        if proxy.unimplemented and any(name.title() in CONDITIONS for name in headers):
            return web.Response(status=501, body=UNIMPLEMENTED)
        url = target + request.raw_path
        async with session.request(
            request.method, URL(url, encoded=True), headers=headers,
            data=await request.read(),
        ) as answer:  # fmt: skip
            body = await answer.read()
        if request.method == "PUT":
            await proxy.meets("after")
            proxy.puts += 1
            proxy.encryption.add(request.headers.get("x-amz-server-side-encryption"))
            if proxy.drops > 0 and answer.status == 200:
                proxy.drops -= 1
                assert request.transport is not None
                request.transport.abort()
            if proxy.replaces > 0 and answer.status == 200:
                proxy.replaces -= 1
                return web.Response(status=proxy.status)
        kept = {name: answer.headers[name] for name in ("ETag", "Content-Type", "Last-Modified")
                if name in answer.headers}  # fmt: skip
        return web.Response(status=answer.status, body=body, headers=kept)

    async with aiohttp.ClientSession() as session:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", hand_on)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_shown(tls))
        await site.start()
        proxy.url = site.name
        try:
            yield proxy
        finally:
            proxy.ends.set()
            await runner.cleanup()


def _shown(tls: pki.Files | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.chain, tls.key)
    return context


@pytest.fixture
def config(bucket_url: str, tmp_path: Path) -> S3Config:
    return next(iter(buckets.S3Harness(bucket_url, tmp_path).configs.values()))


def through(proxy: Proxy, config: S3Config) -> S3Store:
    return S3Store(msgspec.structs.replace(config, endpoint=proxy.url))


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are repeated at once."""
    monkeypatch.setattr(store, "BACKOFF", ExponentialBackoff(base_s=0.001, cap_s=0.001))


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_overloaded_s3_is_retried(bucket_url: str, config: S3Config, status: int) -> None:
    """In each operation, until the deadline."""
    async with between(bucket_url) as proxy:
        proxy.status, proxy.refuses = status, 8
        async with opened(through(proxy, config), probe_s=3600) as store:
            proxy.refuses = 8
            key = await store.put_object(NAME, thing())
            proxy.refuses = 8
            assert await store.get_object(NAME, KIND, key) == thing()
            proxy.refuses = 8
            assert await store.get_all_objects(NAME, KIND) == [thing()]
            proxy.refuses = 8
            await store.delete_object(NAME, KIND, key)
            assert proxy.refuses == 0
            assert await store.get_object(NAME, KIND, key) is None


@pytest.mark.usefixtures("_soon")
async def test_error_names_the_overload_of_s3(
    bucket_url: str, config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with between(bucket_url) as proxy, opened(through(proxy, config)) as provider:
        monkeypatch.setattr(store, "RETRY_S", 0.2)
        proxy.refuses = 10**9
        with pytest.raises(errors.BackendUnavailable, match="HTTP 503, the service is overloaded"):
            await provider.put_object(NAME, thing())
        assert not (await provider.instance_status(NAME)).status
        proxy.refuses = 0


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("fault", ["drops", "replaces"])
async def test_conditional_write_succeeds_if_its_response_was_lost(
    bucket_url: str, config: S3Config, fault: str
) -> None:
    """The service is then overloaded, so that the check of the outcome fails at first."""
    async with between(bucket_url) as proxy, opened(through(proxy, config)) as store:
        _, expect = await store.put_versioned(NAME, thing(size=1), expect=ABSENT)

        async def overload() -> None:
            proxy.refuses = 6

        proxy.after = overload
        setattr(proxy, fault, 1)
        key, version = await store.put_versioned(NAME, thing(size=2), expect=expect)

        assert proxy.refuses == getattr(proxy, fault) == 0
        assert await store.get_versioned(NAME, KIND, key) == (thing(size=2), version)


@pytest.mark.usefixtures("_soon")
async def test_conditional_write_that_was_replaced_is_no_conflict(
    bucket_url: str, config: S3Config
) -> None:
    """It took effect, its response was lost, and another process wrote the object."""
    async with (
        between(bucket_url) as proxy,
        opened(through(proxy, config)) as store,
        opened(S3Store(config)) as other,
    ):
        _, expect = await store.put_versioned(NAME, thing(size=1), expect=ABSENT)

        async def written() -> None:
            await other.put_object(NAME, thing(size=3))

        proxy.after, proxy.drops = written, 1
        with pytest.raises(errors.BackendUnavailable, match="response to a write was lost"):
            await store.put_versioned(NAME, thing(size=2), expect=expect)

        proxy.refuses = 1  # before anything is sent: the outcome is clear
        with pytest.raises(errors.VersionConflict):
            await store.put_versioned(NAME, thing(size=2), expect=expect)


async def _is_killed(config: S3Config, url: str, requests: int) -> bool:
    """Open the store, and end it at a request; return False if it sent fewer."""
    async with between(url) as proxy:
        proxy.hangs_after = requests
        opening = spawn(through(proxy, config).open(Claim(HERE.cluster_uid, 0)), name="open")
        await eventually(lambda: proxy.is_hanging or opening.done())
        await cancel_and_join(opening)
        return proxy.is_hanging


async def test_killed_process_leaves_no_object_of_its_own(
    bucket_url: str, config: S3Config
) -> None:
    """It is killed at any request of the opening."""

    def names() -> set[str]:
        listed = buckets.request(f"{bucket_url}/{config.bucket}")
        return {
            name.decode().rpartition("/")[2] for name in re.findall(b"<Key>(.*?)</Key>", listed)
        }

    requests = 0
    while await _is_killed(config, bucket_url, requests):
        left = await asyncio.to_thread(names)
        assert left <= {".ccm-probe", ".ccm-instance.json"}
        requests += 1
    assert await asyncio.to_thread(names) == {".ccm-probe", ".ccm-instance.json"}
    assert requests > 3


@pytest.mark.parametrize(
    ("strips", "missing"),
    [
        (("If-None-Match",), "If-None-Match"),
        (("If-Match",), "If-Match"),
        ((), "If-None-Match"),
    ],
)
async def test_s3_without_conditional_writes_is_refused(
    bucket_url: str, config: S3Config, strips: tuple[str, ...], missing: str
) -> None:
    """The service ignores a header, or responds that it is not implemented; nothing is stored."""
    async with between(bucket_url) as proxy:
        proxy.strips, proxy.unimplemented = strips, not strips
        with pytest.raises(errors.BackendDead) as refused:
            async with opened(through(proxy, config)):
                pass
        text = f"does not support conditional writes ({missing}), so two leaders could overwrite"
        assert text in str(refused.value)
        assert "use a service that supports them, or another backend" in str(refused.value)
    listed = await asyncio.to_thread(buckets.request, f"{bucket_url}/{config.bucket}")
    assert b".ccm-instance.json" not in listed


async def test_write_whose_response_was_lost_is_recognized(
    bucket_url: str, config: S3Config
) -> None:
    """The write succeeded: its ID identifies it although the retry met a conflict."""
    async with between(bucket_url) as proxy, opened(through(proxy, config)) as store:
        proxy.drops = 1
        key, version = await store.put_versioned(NAME, thing(), expect=ABSENT)

        assert proxy.drops == 0
        assert await store.get_versioned(NAME, KIND, key) == (thing(), version)


def leads(store: S3Store, epoch: int) -> AbstractAsyncContextManager[StoreProvider]:
    return opened(store, writer=lambda: WriterIdentity(epoch=epoch))


@pytest.mark.parametrize("epoch", [3, 4])
async def test_deletion_does_not_remove_a_later_write(
    bucket_url: str, config: S3Config, epoch: int
) -> None:
    """The later write comes from the next leader, or from a concurrent writer."""
    async with (
        between(bucket_url) as proxy,
        leads(through(proxy, config), 3) as old,
        AsyncExitStack() as stack,
    ):
        key = await old.put_object(NAME, thing(size=1))

        async def written() -> None:
            new = await stack.enter_async_context(leads(S3Store(config), epoch))
            await new.put_object(NAME, thing(size=2))

        proxy.after = written
        await old.delete_object(NAME, KIND, key)

        assert await old.get_object(NAME, KIND, key) == thing(size=2)


async def test_former_leader_removes_no_object_after_its_tombstone(
    bucket_url: str, config: S3Config
) -> None:
    """The tombstone suffices: the object is not found and not listed."""
    async with (
        between(bucket_url) as proxy,
        leads(through(proxy, config), 3) as old,
        AsyncExitStack() as stack,
    ):
        key = await old.put_object(NAME, thing())

        async def taken_over() -> None:
            await stack.enter_async_context(leads(S3Store(config), 4))

        proxy.after = taken_over
        with pytest.raises(errors.Fenced):
            await old.delete_object(NAME, KIND, key)

        assert proxy.deletions == 0
        assert await old.get_object(NAME, KIND, key) is None
        assert await old.get_all_objects(NAME, KIND) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bucket": "my bucket"}, "s3.bucket is 'my bucket'; use 3 to 255 letters"),
        ({"bucket": ""}, "s3.bucket is ''; use 3"),
        ({"prefix": "../x"}, "s3.prefix is '../x'; use folder names .* such as ccm/prod"),
        ({"prefix": "a//b"}, "s3.prefix is 'a//b'; use"),
        ({"prefix": "a/./b"}, "s3.prefix is 'a/./b'; use"),
        ({"prefix": "a\0b"}, r"s3.prefix is 'a\\x00b'; use"),
        ({"region": "eu central"}, "s3.region is 'eu central'; use the name of a region"),
        ({"endpoint": "s3.example"}, "s3.endpoint is 's3.example'; use a URL .*https://"),
        ({"endpoint": "https://s3.example:99999"}, "s3.endpoint .*:99999'; use .*port from 1 to"),
        ({"endpoint": "https://s3.example:x"}, "s3.endpoint .*:x'; use a URL"),
        (
            {"endpoint": "https://me:needle@s3.example"},
            "'https://s3.example'; use a URL without credentials",
        ),
        ({"access_key_id_file": "id"}, "access_key_id_file and .*set both or none"),
    ],
)
def test_invalid_s3_setting_is_refused(settings: dict[str, str], said: str) -> None:
    given = {
        name: Path(value) if name.endswith("_file") else value for name, value in settings.items()
    }
    with pytest.raises(errors.BackendDead, match=said):
        S3Store(S3Config(**{"bucket": "b-1"} | given))  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["", "/", "ccm", "/ccm/prod/", "..a/b.c/d_(e)!"])
async def test_s3_prefix_is_a_folder(config: S3Config, prefix: str) -> None:
    async with opened(S3Store(msgspec.structs.replace(config, prefix=prefix))) as store:
        key = await store.put_object(NAME, thing())
        assert await store.get_object(NAME, KIND, key) == thing()
        assert await store.get_all_objects(NAME, KIND) == [thing()]


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
async def test_text_that_no_store_keeps_does_not_mark_s3_down(config: S3Config, text: str) -> None:
    kind, no_text = GVK("g", "v1", text), cast("Version", 5)
    async with opened(S3Store(config)) as store:
        for call in (
            store.put_object(NAME, thing() | {"kind": text}),
            store.get_object(NAME, kind, key_of("", "one")),
            store.delete_object(NAME, kind, key_of("", "one")),
            store.get_all_objects(NAME, kind),
            store.put_versioned(NAME, thing(), expect=Version(text)),
            store.put_versioned(NAME, thing(), expect=no_text),
        ):
            with pytest.raises(errors.InvalidObject):
                await call
        assert (await store.instance_status(NAME)).status


def test_s3_over_plain_http_is_refused() -> None:
    with pytest.raises(errors.BackendDead, match=r"not encrypted.*https://"):
        S3Store(S3Config(bucket="b-1", endpoint="http://127.0.0.1:1"))
    with captured_logs() as logged:
        S3Store(S3Config(bucket="b-1", endpoint="http://127.0.0.1:1", allow_insecure=True))
    assert "bucket is used without TLS" in logged()


async def test_s3_metadata_service_is_reached_without_a_proxy(
    config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without keys, the identity of the machine comes from the metadata service."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    async with forwardproxy.serving(1) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        bare = msgspec.structs.replace(
            config,
            endpoint="http://s3.test",
            access_key_id_file=None,
            secret_access_key_file=None,
        )
        with pytest.raises(errors.BackendDead):
            async with opened(S3Store(bare)):
                pass

        assert "169.254" not in " ".join(proxy.heads)


def test_s3_with_an_unsupported_proxy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://proxy.test")
    with pytest.raises(errors.BackendDead, match="bucket b-1: HTTPS_PROXY"):
        S3Store(S3Config(bucket="b-1"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ca_file": "absent"}, "absent cannot be read"),
        ({"ca_file": "id"}, "ca_file .*id"),
        ({"access_key_id_file": "absent"}, "absent cannot be read"),
        ({"server_side_encryption": "AES"}, "see bucket,.* server_side_encryption"),
    ],
)
async def test_invalid_s3_settings_are_named(
    config: S3Config, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    """Settings that only the S3 library refuses are named too."""
    given = {
        name: tmp_path / value if name.endswith("_file") else value
        for name, value in settings.items()
    }
    with pytest.raises(errors.BackendDead, match=said):
        async with opened(S3Store(msgspec.structs.replace(config, **given))):
            pass


async def test_s3_certificate_is_verified(
    bucket_url: str, config: S3Config, tmp_path: Path
) -> None:
    """With another CA, or without one, nothing is sent."""
    ours, other = pki.Authority(tmp_path, "ours"), pki.Authority(tmp_path, "other")
    async with between(bucket_url, ours.server("127.0.0.1")) as proxy:
        strict = msgspec.structs.replace(config, endpoint=proxy.url, allow_insecure=False)
        async with opened(S3Store(msgspec.structs.replace(strict, ca_file=ours.file))) as store:
            key = await store.put_object(NAME, thing())
            assert await store.get_object(NAME, KIND, key) == thing()
        asked = proxy.puts
        for ca_file in (other.file, None):
            stranger = S3Store(msgspec.structs.replace(strict, ca_file=ca_file))
            with pytest.raises(
                errors.BackendDead, match=r"certificate rejected .UnknownIssuer.*ca_file"
            ):
                async with opened(stranger):
                    pass
        assert proxy.puts == asked


async def test_deletion_by_the_next_leader_is_not_overwritten(
    bucket_url: str, config: S3Config
) -> None:
    """The former leader wrote the object before, and finds none when it checks again."""
    async with (
        between(bucket_url) as proxy,
        leads(through(proxy, config), 3) as old,
        AsyncExitStack() as stack,
    ):
        key = await old.put_object(NAME, thing(size=1))

        async def taken_over() -> None:
            new = await stack.enter_async_context(leads(S3Store(config), 4))
            await new.delete_object(NAME, KIND, key)

        proxy.before = taken_over
        with pytest.raises(errors.Fenced):
            await old.put_object(NAME, thing(size=2))

        assert await old.get_object(NAME, KIND, key) is None


async def test_s3_keys_are_reread(bucket_url: str, config: S3Config) -> None:
    """The kubelet replaces mounted files in place; the next probe reads them again."""
    async with between(bucket_url) as proxy, opened(through(proxy, config), probe_s=0.01) as store:
        assert config.access_key_id_file is not None
        config.access_key_id_file.write_text("another-access-key")
        async with asyncio.timeout(DEADLINE_S):
            while "another-access-key" not in proxy.keys:
                await asyncio.sleep(0.01)
        await store.put_object(NAME, thing())
    assert proxy.keys == {"some-access-key", "another-access-key"}


@pytest.mark.parametrize("files", [True, False])
async def test_s3_client_is_kept_while_the_credentials_are_unchanged(
    monkeypatch: pytest.MonkeyPatch, config: S3Config, *, files: bool
) -> None:
    """Without key files, a new client would have to query the metadata service again."""
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "some-key")
    none = {"access_key_id_file": None, "secret_access_key_file": None}
    store = S3Store(config if files else msgspec.structs.replace(config, **none))
    made = []
    async with opened(store):
        for _ in "ab":
            made.append(store._bucket)
            await store.probe()

    assert made[0] is made[1]


async def test_s3_uses_the_proxy_of_the_environment(
    bucket_url: str, config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules are those of all HTTP calls: no proxy for loopback, and no ALL_PROXY."""
    async with forwardproxy.serving(int(bucket_url.rpartition(":")[2])) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        monkeypatch.setenv("HTTP_PROXY", url)
        away = msgspec.structs.replace(config, endpoint="http://192.0.2.1")
        async with opened(S3Store(away)) as store:
            await store.put_object(NAME, thing())
        assert {one.split("/")[2] for one in proxy.asked} == {"192.0.2.1"}
        proxy.heads.clear()

        async with opened(S3Store(config)) as store:
            assert await store.get_all_objects(NAME, KIND) == [thing()]
        monkeypatch.setenv("NO_PROXY", "s3.test:80")
        monkeypatch.setenv("ALL_PROXY", url)
        named = msgspec.structs.replace(config, endpoint="http://s3.test")
        with pytest.raises(errors.BackendDead, match="host name does not resolve"):
            async with opened(S3Store(named)):
                pass

        assert proxy.heads == []


async def test_s3_server_side_encryption_is_requested(bucket_url: str, config: S3Config) -> None:
    """The header is sent with each PUT."""
    async with between(bucket_url) as proxy:
        strict = msgspec.structs.replace(config, server_side_encryption="AES256")
        async with opened(through(proxy, strict)) as store:
            await store.put_object(NAME, thing())
        assert proxy.encryption == {"AES256"}
