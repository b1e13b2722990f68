"""The provider: opened, exchanged, and its files and credentials followed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from structlog.testing import capture_logs

from ccm.app import options, provider, reload
from ccm.app.options import config
from ccm.app.provider import (
    ConfiguredProvider,
    Misconfigured,
    ProviderCrashed,
    ProviderFactory,
    ProviderHolder,
)
from ccm.app.reload import ContentRejected, Reloader
from ccm.base import log
from ccm.base.files import Signature
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import ConfigError, Context, errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import Cloud, InstancesV2
from ccm.cloud.registry import Opener
from ccm.cloud.registry import provider as as_provider
from ccm.kube.credentials import StaticCredentials, bearer
from ccm.sandbox.realserver import write_kubeconfig
from ccm.testing import clock
from ccm.testing.builders import node
from ccm.testing.clock import advance
from tests.support.calls import Provider
from tests.support.fakecloud import FakeCloud
from tests.unit.kube.proxy import Answer, connect, refuses, says, serve

CLOUD = Cloud(name="paper", has_cluster_id=True)
HANG = object()


class Script:
    """Provider with scripted attempts to open: they raise, hang, or yield something."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.open = 0

    @asynccontextmanager
    async def __call__(self, given: Context) -> AsyncIterator[Cloud]:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is HANG:
            await asyncio.Event().wait()
        self.open += 1
        # A task group must be left by the task that entered it.
        async with asyncio.TaskGroup():
            yield outcome
        self.open -= 1


def paper(opener: Opener, *flags: str) -> ConfiguredProvider:
    return ConfiguredProvider(options.parse(["--cloud-provider=paper", *flags]), opener, Mock())


@pytest.mark.virtual_time
@pytest.mark.row("daemon-exit-02")
async def test_failing_provider_opening_is_retried_and_logged_twice() -> None:
    script = Script(OSError("no route"), PermissionError("bad token"), OSError("again"), CLOUD)

    with capture_logs() as lines:
        async with paper(script).opened() as cloud:
            assert cloud is CLOUD
            assert script.open == 1

    assert script.open == 0
    assert 7 <= clock.elapsed_s() <= 7 * 1.2
    said = [line for line in lines if line["log_level"] != "debug"]
    assert [line["log_level"] for line in said] == ["warning", "info"]
    assert "no route" in said[0]["error"]


@pytest.mark.virtual_time
@pytest.mark.row("daemon-exit-01")
async def test_config_error_of_a_provider_is_a_configuration_error(tmp_path: Path) -> None:
    file = tmp_path / "cloud.yaml"
    file.touch()
    script = Script(ConfigError("region is missing", "token is missing"))

    said = r"paper(.|\n)*cloud.yaml(.|\n)*region(.|\n)*token"
    with pytest.raises(Misconfigured, match=said) as caught:
        async with paper(script, f"--cloud-config={file}").opened():
            pass
    assert isinstance(caught.value.__cause__, ConfigError), "what the provider raised"


@pytest.mark.virtual_time
async def test_provider_opening_is_retried_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "OPEN_LIMIT_S", 0.02)

    async with paper(Script(HANG, CLOUD)).opened() as cloud:
        assert cloud is CLOUD


@pytest.mark.virtual_time
async def test_provider_that_yields_no_cloud_is_refused() -> None:
    with pytest.raises(Misconfigured, match="'paper' yielded a NoneType, not a Cloud"):
        async with paper(Script(None)).opened():
            pass


async def _ends(given: Context) -> AsyncIterator[Cloud]:
    if given.config:
        yield CLOUD


async def _yields_nothing_usable(given: Context) -> AsyncIterator[Cloud]:
    routes: Any = object()
    async with asyncio.TaskGroup():
        yield Cloud(name="paper", has_cluster_id=True, routes=routes)


async def _misspells(given: Context) -> AsyncIterator[Cloud]:
    fields: dict[str, Any] = {"load_balancers": object()}
    async with asyncio.TaskGroup():
        yield Cloud(name="paper", **fields)


async def _refuses(given: Context) -> AsyncIterator[Cloud]:
    async with asyncio.TaskGroup():
        if not given.config:
            raise ConfigError("region is missing")
        yield CLOUD


def _returns(given: Context) -> Any:
    return CLOUD


@pytest.mark.virtual_time
@pytest.mark.row("daemon-exit-01")
@pytest.mark.parametrize(
    ("opener", "words"),
    [
        (as_provider(sdk="2.0")(_ends), ["yield"]),
        (as_provider(sdk="2.0")(_yields_nothing_usable), ["routes: ", "create_route is missing"]),
        (as_provider(sdk="2.0")(_misspells), ["'load_balancers'", "'load_balancer'"]),
        (as_provider(sdk="2.0")(_refuses), ["--cloud-config", "region is missing"]),
        (as_provider(sdk="2.0")(_returns), ["_returns is not an async generator function"]),
        (_ends, ["async_generator", "@cloud.provider"]),
        (_returns, ["Cloud", "@cloud.provider"]),
    ],
)
async def test_faulty_provider_is_refused_without_a_retry(opener: Any, words: list[str]) -> None:
    """Another attempt would fail in the same way."""
    with pytest.raises(Misconfigured) as caught:
        async with asyncio.timeout(60), paper(opener).opened():
            pass

    assert clock.elapsed_s() == 0
    assert "cloud provider 'paper'" in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == []


class Providers:
    """Factory of providers with a task group; tracks which are open."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.crash = asyncio.Event()
        self.slow = Provider(lambda: asyncio.sleep(60))
        self.holder = ProviderHolder()

    def opening(self, name: str, *, close_s: float = 0.0, fault: str = "") -> ProviderFactory:
        """Return a provider that closes slowly or fails to close."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Cloud]:
            async with asyncio.TaskGroup() as group:
                falling = group.create_task(self._fall())
                self.open.append(name)
                try:
                    yield self.slow.cloud(name)
                    await asyncio.sleep(close_s)
                    if fault:
                        raise OSError(fault)
                finally:
                    self.open.remove(name)
                    falling.cancel()

        return opened

    def calls(self) -> asyncio.Task[bool]:
        """Start a call."""
        return spawn(self.holder.handle.call(InstancesV2.instance_exists, node("n")), name="call")

    async def _fall(self) -> None:
        await self.crash.wait()
        raise OSError("the pool is gone")


async def fine(cloud: Cloud) -> None:
    """Accepts every provider."""


async def refuse(cloud: Cloud) -> None:
    raise ValueError(cloud.name)


@pytest.fixture
async def held() -> AsyncIterator[Providers]:
    """Open the provider `old`, and close the one in use at the end."""
    found = Providers()
    await found.holder.open(found.opening("old"))
    yield found
    await found.holder.close()
    assert found.open == []


@pytest.mark.virtual_time
async def test_closing_a_hanging_provider_times_out(held: Providers) -> None:
    with pytest.raises(ValueError, match="new"):
        await held.holder.exchange(held.opening("new", close_s=60), refuse)
    await held.holder.exchange(held.opening("hanging", close_s=60), fine)

    with pytest.raises(TimeoutError, match="did not close"):
        await held.holder.close()


@pytest.mark.virtual_time
async def test_provider_that_crashes_during_its_check_is_refused(held: Providers) -> None:
    other = Providers()

    async def look(cloud: Cloud) -> None:
        other.crash.set()
        await asyncio.sleep(0.01)

    with pytest.raises(ProviderCrashed, match="ended unexpectedly"):
        await held.holder.exchange(other.opening("new"), look)

    assert held.holder.handle.cloud.name == "old"


@pytest.mark.virtual_time
@pytest.mark.parametrize("trouble", ["refused", "refused and closes ill", "does not open"])
async def test_refused_provider_is_closed_and_the_old_one_stays_in_use(
    held: Providers, trouble: str
) -> None:
    opening = held.opening("new", fault="no" if "ill" in trouble else "")
    if trouble == "does not open":
        opening = Mock(side_effect=ValueError("new"))

    with pytest.raises(ValueError, match="new"):
        await held.holder.exchange(opening, refuse)

    assert (held.holder.handle.cloud.name, held.open) == ("old", ["old"])


@pytest.mark.virtual_time
async def test_old_provider_stays_open_until_its_last_call_ended(held: Providers) -> None:
    answer = asyncio.Event()
    seen: list[list[str]] = []

    async def slow() -> bool:
        await answer.wait()
        seen.append(list(held.open))
        return True

    held.slow.act = slow
    call = held.calls()
    await asyncio.sleep(0)
    await held.holder.exchange(held.opening("new"), fine)
    await asyncio.sleep(1.0)
    answer.set()

    assert await call
    assert seen == [["old", "new"]]
    await asyncio.sleep(0.01)
    assert held.open == ["new"]


@pytest.fixture
def verbosity() -> Iterator[None]:
    """The verbosity is as before afterwards."""
    before = log.verbosity()
    yield
    log.set_verbosity(before, ())


async def outcome(source: reload.ReloadSource) -> str:
    """Return the result of a reload as text."""
    try:
        return await source.reload()
    except ContentRejected as refusal:
        return f"refused, final {refusal.is_permanent}: {refusal}"


def write_config(path: Path, **flags: object) -> None:
    head = {"apiVersion": config.GROUP_VERSION, "kind": config.KIND}
    path.write_text(yaml.safe_dump({**head, "Flags": {"cloud-provider": "sim", **flags}}))


def configuration(file: Path) -> reload.DaemonConfigSource:
    """Return the source of an empty configuration file."""
    write_config(file)
    return reload.DaemonConfigSource(config.with_config_file(options.parse([f"--config={file}"])))


@pytest.mark.usefixtures("verbosity")
async def test_config_reload_changes_the_log_verbosity(tmp_path: Path) -> None:
    file = tmp_path / "config"
    source = configuration(file)

    write_config(file, v=4)
    first = await source.reload()
    write_config(file, v=5, **{"cluster-name": "x"})
    second = await source.reload()

    assert (first, second) == ("changed: v", "changed, effective after a restart: cluster-name")
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
async def test_invalid_config_file_is_rejected_on_reload(
    tmp_path: Path, wrong: dict[str, object], words: str
) -> None:
    file = tmp_path / "config"
    source = configuration(file)
    before = log.verbosity()
    write_config(file, **wrong)

    with pytest.raises(ContentRejected, match=words):
        await source.reload()

    assert log.verbosity() == before


@pytest.mark.parametrize(
    ("fault", "said", "followed"),
    [
        (None, "provider reopened", {"new"}),
        (ConfigError("no url"), "refused, final True", {"old", "new"}),
        ("no ID", "refused, final True: cloud provider 'new' cannot distinguish", {"old", "new"}),
        (errors.Unavailable("down"), "refused, final False", {"old", "new"}),
        (OSError("x"), "refused, final False", {"old", "new"}),
    ],
)
async def test_provider_that_fails_to_reopen_is_refused_on_reload(
    tmp_path: Path, fault: object, said: str, followed: set[str]
) -> None:
    """Its files are watched as well, because the fault may be in one of them."""

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
    configured.watched_files[Path("old")] = None
    holder = ProviderHolder()
    handle = await holder.open(lambda: nullcontext(Cloud(name="old")))
    source = reload.CloudConfigSource(
        str(file), configured, holder, lambda cloud: provider.check_reachable(cloud, None)
    )

    assert (await outcome(source)).startswith(said)
    assert handle.cloud.name == ("old" if fault else "new")
    assert {str(path) for path in source.dependencies} == followed
    await holder.close()


@pytest.mark.parametrize(
    ("server", "answer", "said", "token"),
    [
        ("{url}", says({}), "new credentials applied", "new"),
        ("{url}", refuses(401, "Unauthorized"), "refused, final False: ", "old"),
        ("http://other:1", says({}), "refused, final True: the server changed to http", "old"),
        ("", says({}), "refused, final True: .*server: is not set", "old"),
    ],
    ids=["good", "refused", "another server", "no server"],
)
async def test_reloaded_kubeconfig_is_used_only_after_a_successful_try(
    tmp_path: Path, server: str, answer: Answer, said: str, token: str
) -> None:
    file = tmp_path / "file"
    async with (
        serve() as api,
        connect(api.url, credentials=StaticCredentials(bearer("old"))) as transport,
    ):
        write_kubeconfig(file, url=server.format(url=api.url), token="new")
        api.will(answer)

        found = await outcome(reload.KubeconfigSource(str(file), transport, environ={}))
        api.answers.clear()
        await transport.do("GET", "/x")

    assert re.match(said, found)
    assert api.seen[-1].headers["Authorization"] == f"Bearer {token}"


class File:
    """A source that reads its file; `wrong` in it is refused."""

    name = "a-file"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dependencies: Mapping[Path, Signature] = {}
        self.tries: list[str] = []

    async def reload(self) -> str:
        content = self.path.read_text() if self.path.exists() else "wrong"
        self.tries.append(content)
        if content == "wrong":
            raise ContentRejected("wrong is refused; token=abcdef", final=True)
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
)
async def test_changed_file_is_reloaded_with_one_event(
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
            await advance(
                reload.CHECK_S * (2 if "while" in content else reload.MISSING_FILE_CHECKS + 2)
            )
            aside.rename(file.path) if "while" in content else None
        else:
            file.path.write_text(content)
        await advance(reload.CHECK_S * 4)
    await cancel_and_join(task)

    assert events == recorded


async def test_crashed_provider_is_detected(held: Providers) -> None:
    watch = spawn(held.holder.wait_for_crash(), name="watch")
    await held.holder.exchange(held.opening("new"), fine)
    await asyncio.sleep(0.01)
    assert not watch.done()

    held.crash.set()

    with pytest.raises(ProviderCrashed, match="ended unexpectedly"):
        await watch
    with pytest.raises(ExceptionGroup):
        await held.holder.close()


async def test_provider_is_closed_when_its_opening_is_cancelled() -> None:
    late = Providers()
    before = asyncio.all_tasks()
    opening = spawn(late.holder.open(late.opening("late")), name="open")
    while not late.open:
        await asyncio.sleep(0)

    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening

    assert late.open == []
    assert asyncio.all_tasks() == before


def test_flags_set_timeout_and_rate_limit_of_cloud_calls() -> None:
    make = Mock()
    flags = ["--cloud-provider=paper", "--cloud-call-timeout=5s"]
    given = options.parse([*flags, "--cloud-api-qps=0.1", "--cloud-api-burst=3"])
    provider.make_handle(given, CLOUD, make=make)
    handed = make.call_args.kwargs
    assert handed["deadline_s"] == 5
    assert [handed["limiter"].try_acquire() for _ in range(4)] == [True] * 3 + [False]


SICK, FIT = (node("a", provider_id="fake://1", ready=ready) for ready in ("False", "True"))
GONE, THERE, AWAY = FakeCloud(exists=False), FakeCloud(exists=True), errors.Unavailable("x")


@pytest.mark.parametrize(
    ("new", "old", "asked", "is_taken"),
    [
        (THERE, GONE, SICK, True),
        (GONE, THERE, SICK, False),
        (GONE, GONE, FIT, True),
        (GONE, FakeCloud(exists_error=AWAY), SICK, True),
        (GONE, FakeCloud(exists_error=AWAY), FIT, False),
        (GONE, THERE, node("a", provider_id="other://1", ready="True"), True),
        (FakeCloud(name="new", exists=True), THERE, SICK, False),
    ],
    ids=["known", "denied", "by both", "unknown", "ready", "another's", "of another kind"],
)
async def test_new_provider_must_know_the_nodes_of_the_old_one(
    new: FakeCloud, old: FakeCloud, asked: Any, is_taken: bool
) -> None:
    refused = pytest.raises(errors.FailedPrecondition, match="no instance of the nodes a;")
    with nullcontext() if is_taken else refused:
        await provider.check_knows_nodes(new.cloud(), CloudClient(old.cloud()), [asked])
