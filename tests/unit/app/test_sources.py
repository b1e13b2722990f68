"""What each file that is followed does with its new content."""

from __future__ import annotations

import functools
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
import yaml

from ccm.app import options, sources
from ccm.app.options import config
from ccm.app.provider import Misconfigured
from ccm.app.reload import Refused
from ccm.app.tenant import Tenant
from ccm.base import log
from ccm.base.files import Signature
from ccm.cloud import errors
from ccm.cloud.calls.handle import Handle
from ccm.cloud.config import Context
from ccm.cloud.interface import Cloud
from ccm.kube import config as kube_config
from ccm.kube.credentials import Fixed, bearer
from ccm.kube.transport import Transport
from tests.unit.kube.wire import (
    CERTS,
    Answer,
    Server,
    connect,
    refuses,
    says,
    serve,
    server_context,
)


@pytest.fixture
def verbosity() -> Iterator[None]:
    """The verbosity is as before afterwards."""
    before = log.verbosity()
    yield
    log.change(before, ())


def write_config(path: Path, **flags: object) -> None:
    head = {"apiVersion": config.GROUP_VERSION, "kind": config.KIND}
    path.write_text(yaml.safe_dump({**head, "Flags": {"cloud-provider": "sim", **flags}}))


@pytest.mark.usefixtures("verbosity")
async def test_our_own_configuration_changes_what_is_logged_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config"
    write_config(file)
    source = sources.Configuration(config.effective(options.parse([f"--config={file}"])))

    write_config(file, v=4)
    first = await source.use()
    write_config(file, v=5, **{"cluster-name": "x"})
    second = await source.use()

    assert (first, second) == ("changed: v", "at the next start: cluster-name")
    assert log.verbosity() == 5


@pytest.mark.usefixtures("verbosity")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"v": "x"}, "Flags.v"),
        ({"kube-api-burst": -1}, "--kube-api-burst=-1"),
        ({"q": 1}, "Flags.q"),
    ],
)
async def test_a_broken_configuration_changes_nothing(
    tmp_path: Path, wrong: dict[str, object], words: str
) -> None:
    file = tmp_path / "config"
    write_config(file)
    source = sources.Configuration(config.effective(options.parse([f"--config={file}"])))
    before = log.verbosity()
    write_config(file, **wrong)

    with pytest.raises(Refused, match=words):
        await source.use()

    assert log.verbosity() == before


@pytest.mark.parametrize(
    ("fault", "final"),
    [(Misconfigured("no url"), True), (errors.Unavailable("down"), False), (OSError("x"), False)],
)
async def test_a_provider_that_does_not_open_is_refused(
    tmp_path: Path, fault: Exception, final: bool
) -> None:
    @asynccontextmanager
    async def good() -> AsyncIterator[Cloud]:
        yield Cloud(name="good")

    @asynccontextmanager
    async def bad() -> AsyncIterator[Cloud]:
        async with good() as cloud:
            if cloud.name == "good":
                raise fault
            yield cloud

    async def accept(cloud: Cloud) -> None:
        raise AssertionError(cloud.name)

    tenant = Tenant()
    handle = Handle(await tenant.enter(good))
    source = sources.CloudConfig(
        tmp_path, bad, tenant=tenant, handle=handle, accept=accept, followed={}
    )

    with pytest.raises(Refused) as caught:
        await source.use()

    assert caught.value.final is final
    assert handle.cloud.name == "good"
    await tenant.leave()


def write_kubeconfig(path: Path, server: str, token: str) -> None:
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": token}}],
            }
        )
    )


async def use(server: Server, file: Path) -> tuple[str, list[str]]:
    """What the source says, and as whom the next request is sent."""
    async with connect(server.url, credentials=Fixed(bearer("old-token"))) as wire:
        source = sources.Kubeconfig(str(file), wire, master="", environ={})
        try:
            said = await source.use()
        except Refused as refusal:
            said = f"refused, final {refusal.final}: {refusal}"
        server.seen.clear()
        await wire.do("GET", "/x")
    return said, [one.headers["Authorization"] for one in server.seen]


async def test_new_credentials_are_tried_and_then_used(tmp_path: Path) -> None:
    async with serve() as server:
        write_kubeconfig(tmp_path / "file", server.url, "new-token")

        said, sent = await use(server, tmp_path / "file")

    assert (said, sent) == ("new credentials are in use", ["Bearer new-token"])


async def test_credentials_that_the_server_refuses_are_not_used(tmp_path: Path) -> None:
    async with serve() as server:
        write_kubeconfig(tmp_path / "file", server.url, "new-token")
        server.will(refuses(401, "Unauthorized"))

        said, sent = await use(server, tmp_path / "file")

    assert said.startswith("refused, final False")
    assert sent == ["Bearer old-token"]


@pytest.mark.parametrize(
    ("content", "words"), [("http://other:1", "another server"), ("", "server: is not set")]
)
async def test_a_kubeconfig_for_another_server_needs_a_restart(
    tmp_path: Path, content: str, words: str
) -> None:
    async with serve() as server:
        write_kubeconfig(tmp_path / "file", content, "new-token")

        said, sent = await use(server, tmp_path / "file")

    assert said.startswith("refused, final True")
    assert words in said
    assert sent == ["Bearer old-token"]


async def test_a_cloud_that_lists_nothing_is_asked_about_no_node() -> None:
    await sources.answers(Cloud(name="empty"), None)


@pytest.mark.parametrize(
    ("works", "followed"), [(True, {"new"}), (False, {"old", "new"})], ids=["used", "refused"]
)
async def test_the_files_of_the_provider_in_use_are_followed(
    tmp_path: Path, works: bool, followed: set[str]
) -> None:
    """And those of one that was refused, because they may be what has to be corrected."""
    files: dict[Path, Signature] = {Path("old"): None}
    given = Context(followed=files)

    @asynccontextmanager
    async def opening() -> AsyncIterator[Cloud]:
        given.follow("new")
        if not works:
            raise errors.Unavailable("down")
        yield Cloud(name="paper")

    async def accept(_: Cloud) -> None:
        pass

    tenant = Tenant()
    handle = Handle(Cloud(name="first"))
    source = sources.CloudConfig(
        tmp_path, opening, tenant=tenant, handle=handle, accept=accept, followed=files
    )

    with nullcontext() if works else pytest.raises(Refused):
        await source.use()

    assert {str(path) for path in source.more} == followed
    await tenant.leave()


@pytest.mark.parametrize(
    ("answer", "said", "token"),
    [
        (says({}), "new credentials are in use", "second-token"),
        (refuses(401, "Unauthorized"), "refused", "first-token"),
    ],
    ids=["good", "refused"],
)
async def test_inside_a_cluster_the_service_account_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, said: str, token: str
) -> None:
    """A rotated token is tried before it is used; until then the old one stays."""
    shutil.copy(CERTS / "authority-one.pem", tmp_path / "ca.crt")
    (tmp_path / "token").write_text("first-token")
    monkeypatch.setattr(
        kube_config, "load", functools.partial(kube_config.load, service_account=tmp_path)
    )
    async with serve(server_context("server-one")) as server:
        host, port = "127.0.0.1", str(server.port)
        environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        found, more = sources.read_cluster("", "", environ)
        async with Transport(found) as wire:
            source = sources.Kubeconfig("", wire, master="", environ=environ, more=more)
            (tmp_path / "token").write_text("second-token")
            await wire.do("GET", "/before")
            server.will(answer)
            try:
                outcome = await source.use()
            except Refused as refusal:
                outcome = f"refused: {refusal}"
            await wire.do("GET", "/after")

    assert (source.name, source.path) == ("service-account", tmp_path / "token")
    assert set(source.more) == {tmp_path / "token", tmp_path / "ca.crt"}
    assert outcome.startswith(said)
    sent = [(one.target, one.headers["Authorization"]) for one in server.seen]
    assert sent == [
        ("/before", "Bearer first-token"),
        ("/api/v1", "Bearer second-token"),
        ("/after", f"Bearer {token}"),
    ]
