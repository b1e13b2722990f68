"""What each file that is followed does with its new content."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from ccm.app import options, provider, reload
from ccm.app.options import config
from ccm.app.provider import ConfiguredProvider, ProviderHolder
from ccm.app.reload import Refused, Reloader
from ccm.base import log
from ccm.base.files import Signature
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import ConfigError, errors
from ccm.cloud.config import Context
from ccm.cloud.interface import Cloud
from ccm.kube.credentials import Fixed, bearer
from ccm.sandbox.realserver import write_kubeconfig
from ccm.testing.clock import advance
from tests.unit.kube.proxy import Answer, connect, refuses, says, serve


@pytest.fixture
def verbosity() -> Iterator[None]:
    """The verbosity is as before afterwards."""
    before = log.verbosity()
    yield
    log.change(before, ())


async def outcome(source: reload.Source) -> str:
    """What a source says about its content of now."""
    try:
        return await source.use()
    except Refused as refusal:
        return f"refused, final {refusal.final}: {refusal}"


def write_config(path: Path, **flags: object) -> None:
    head = {"apiVersion": config.GROUP_VERSION, "kind": config.KIND}
    path.write_text(yaml.safe_dump({**head, "Flags": {"cloud-provider": "sim", **flags}}))


def configuration(file: Path) -> reload.Configuration:
    """The source of a file without anything special in it."""
    write_config(file)
    return reload.Configuration(config.effective(options.parse([f"--config={file}"])))


@pytest.mark.usefixtures("verbosity")
async def test_our_own_configuration_changes_what_is_logged_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config"
    source = configuration(file)

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
    source = configuration(file)
    before = log.verbosity()
    write_config(file, **wrong)

    with pytest.raises(Refused, match=words):
        await source.use()

    assert log.verbosity() == before


@pytest.mark.parametrize(
    ("fault", "said", "followed"),
    [
        (None, "the provider was opened again", {"new"}),
        (ConfigError("no url"), "refused, final True", {"old", "new"}),
        ("no ID", "refused, final True: cloud provider 'new' cannot tell", {"old", "new"}),
        (errors.Unavailable("down"), "refused, final False", {"old", "new"}),
        (OSError("x"), "refused, final False", {"old", "new"}),
    ],
)
async def test_a_provider_that_does_not_open_is_refused(
    tmp_path: Path, fault: object, said: str, followed: set[str]
) -> None:
    """Its files are followed too then, because they may be what has to be corrected."""

    @asynccontextmanager
    async def opener(given: Context) -> AsyncIterator[Cloud]:
        given.follow("new")
        if isinstance(fault, Exception):
            raise fault
        async with asyncio.TaskGroup():
            yield Cloud(name="new", has_cluster_id=fault is None)

    file = tmp_path / "cloud.yaml"
    file.touch()
    configured = ConfiguredProvider(options.parse([f"--cloud-config={file}"]), opener, Mock())
    configured.followed[Path("old")] = None
    holder = ProviderHolder()
    handle = await holder.open(lambda: nullcontext(Cloud(name="old")))
    source = reload.CloudConfig(
        str(file), configured, holder, lambda cloud: provider.answers(cloud, None)
    )

    assert (await outcome(source)).startswith(said)
    assert handle.cloud.name == ("old" if fault else "new")
    assert {str(path) for path in source.more} == followed
    await holder.close()


@pytest.mark.parametrize(
    ("server", "answer", "said", "token"),
    [
        ("{url}", says({}), "new credentials are in use", "new"),
        ("{url}", refuses(401, "Unauthorized"), "refused, final False: ", "old"),
        ("http://other:1", says({}), "refused, final True: it names another server", "old"),
        ("", says({}), "refused, final True: .*server: is not set", "old"),
    ],
    ids=["good", "refused", "another server", "no server"],
)
async def test_new_credentials_are_tried_and_then_used(
    tmp_path: Path, server: str, answer: Answer, said: str, token: str
) -> None:
    file = tmp_path / "file"
    async with serve() as api, connect(api.url, credentials=Fixed(bearer("old"))) as transport:
        write_kubeconfig(file, url=server.format(url=api.url), token="new")
        api.will(answer)

        found = await outcome(reload.Kubeconfig(str(file), transport, environ={}))
        api.answers.clear()
        await transport.do("GET", "/x")

    assert re.match(said, found)
    assert api.seen[-1].headers["Authorization"] == f"Bearer {token}"


class File:
    """A source that reads its file; `wrong` in it is refused."""

    name = "a-file"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.more: Mapping[Path, Signature] = {}
        self.tries: list[str] = []

    async def use(self) -> str:
        content = self.path.read_text() if self.path.exists() else "wrong"
        self.tries.append(content)
        if content == "wrong":
            raise Refused("wrong is refused; token=abcdef", final=True)
        return f"now {content}"


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("contents", "recorded"),
    [
        (["two"], ["a-file: now two"]),
        (["wrong", "right"], ["a-file: wrong is refused; token=[redacted]", "a-file: now right"]),
        (["link"], ["a-file: now other"]),
        (["gone for a while"], []),
        (["gone"], ["a-file: wrong is refused; token=[redacted]"]),
    ],
    ids=[
        "changed",
        "wrong-once-and-without-secrets",
        "as-mounted-secrets-change",
        "no-change",
        "gone",
    ],
)
async def test_a_changed_file_is_used_and_recorded_once(
    tmp_path: Path, contents: list[str], recorded: list[str]
) -> None:
    file = File(tmp_path / "file")
    file.path.write_text("one")
    events: list[str] = []
    task = spawn(Reloader([file], lambda *event: events.append(event[-1])).run(), name="reloader")
    await advance(1.0)
    for content in contents:
        if content == "link":
            (tmp_path / "other").write_text("other")
            (tmp_path / "fresh").symlink_to(tmp_path / "other")
            (tmp_path / "fresh").rename(file.path)
        elif content.startswith("gone"):
            aside = file.path.rename(tmp_path / "aside")
            await advance(reload.CHECK_S * (2 if "while" in content else reload.GONE_LOOKS + 2))
            aside.rename(file.path) if "while" in content else None
        else:
            file.path.write_text(content)
        await advance(reload.CHECK_S * 4)
    await cancel_and_join(task)

    assert events == recorded
