"""`kube-ccm sandbox`: the order of things, from the first process to the last line.

Start: folder, API server, simulated cloud or a provider's fake, daemon; then the kubelets
register, so that the daemon is watched from the first node on, and Machines get their
MachineDeployment; Services come when all nodes are initialised, those of Machines too. End,
whatever the reason: kubelets and caches, daemon, last line, cloud, API server, folder.

A signal ends the sandbox at any moment, also while it starts. Processes of ours that
end before their time end it too, with their last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ccm.base import log, parsing, tasks
from ccm.gardener.kinds import MACHINE_DEPLOYMENTS, MACHINES
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Fixed, TlsSettings, bearer
from ccm.kube.errors import KubeError
from ccm.kube.informer import Informers
from ccm.kube.resources import EVENTS, NODES, SERVICES
from ccm.kube.transport import Transport
from ccm.model import Service
from ccm.sandbox import (
    board,
    cloud,
    cluster,
    fakes,
    hints,
    kubelet,
    machines,
    podlife,
    ports,
    running,
    screen,
    webservices,
)
from ccm.sandbox.settings import Provider, Settings

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
"""What shells show after Ctrl-C: 128 + SIGINT."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_SIM = "sim"
_POWER_PERIOD_S = 1.0
_MEMBERS_PERIOD_S = 0.25
_HEALTH_PERIOD_S = 0.2


def run(settings: Settings, *, out: TextIO) -> int:
    """Run a sandbox until it converged or is ended by a signal; returns the exit status."""
    return asyncio.run(_run(settings, screen.open_screen(out)))


async def _run(settings: Settings, shown: screen.Screen) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    with _state_folder(shown, keep=settings.keep) as folder, _logging_to(folder):
        try:
            return await Sandbox(settings, shown, folder, stop).play()
        except (cluster.StartError, cloud.CloudTrouble, KubeError) as error:
            shown.close()
            shown.say(f"sandbox: {error}")
            return EXIT_FAILED
        finally:
            shown.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """What runs while the daemon does."""

    server: cluster.ApiServer
    cloud: cluster.Cloud | None
    fake: fakes.Fake | None
    provider: Provider
    """The daemon's, with its cloud config."""
    client: Client
    port: int
    """The daemon's own."""


class Sandbox:
    """One run of a sandbox.

    Args:
        settings: what is wanted.
        shown: where it is shown.
        folder: where all files go.
        stop: set when the user wants to end it.
    """

    def __init__(
        self, settings: Settings, shown: screen.Screen, folder: Path, stop: asyncio.Event
    ) -> None:
        self._settings = settings
        self._screen = shown
        self._folder = folder
        self._stop = stop
        self._simulated = settings.provider is None
        self._board = board.Board(
            settings.node_names,
            labels=board.SIM_LABELS if self._simulated else (),
            routes=settings.routes,
            services=webservices.keys(settings.services),
            machines=settings.machines,
            # A VM of the simulated cloud has its Machine's name; of others the name is not known.
            machines_join=self._simulated,
            has_members=self._simulated,
        )
        self._took_s: float | None = None
        self._last: cluster.LogEntry | None = None

    async def play(self) -> int:
        """The whole; returns the exit status.

        Raises:
            StartError: a process did not start, or ended before its time.
        """
        async with contextlib.AsyncExitStack() as stack:
            setting_up = tasks.spawn(self._set_up(stack), name="set-up")
            try:
                await tasks.first_of(asyncio.wait([setting_up]), self._stop.wait(), name="start")
            finally:
                await tasks.cancel_and_join(setting_up)
            if self._stop.is_set():
                return self._exit_code()
            stage = setting_up.result()
            await self._act(stage)
            await self._report(stage)
        return self._exit_code()

    async def _set_up(self, stack: contextlib.AsyncExitStack) -> _Stage:
        settings = self._settings
        say = self._screen.say
        server = await stack.enter_async_context(
            cluster.open_api_server(self._folder / "apiserver", assets=settings.assets)
        )
        say(f"API server ({server.kind}): {server.url}")
        sim: cluster.Cloud | None = None
        if self._simulated:
            sim = await stack.enter_async_context(
                cluster.open_cloud(self._folder / "cloud", latency=settings.latency)
            )
            await sim.admin.place(settings.node_names)
            latency = parsing.format_duration(settings.latency)
            say(
                f"simulated cloud: {sim.admin.url}, {len(settings.node_names)} instances, "
                f"each call takes {latency}"
            )
        provider = settings.provider or Provider(name=_SIM, config=sim.config if sim else None)
        fake: fakes.Fake | None = None
        if provider.fake:
            fake = await stack.enter_async_context(
                fakes.open_fake(self._folder / "cloud", provider, settings.node_names)
            )
            provider = fake.provider
            say(f"a fake of {provider.name}, for no --cloud-config names the real one: {fake.url}")
        told = running.Running(url=sim.admin.url, token=sim.token) if sim else running.Running()
        stack.enter_context(running.announced(self._folder, told))
        say(f"export KUBECONFIG={server.kubeconfig}")
        transport = await stack.enter_async_context(
            Transport(_cluster_config(server), user_agent="ccm-sandbox")
        )
        client = Client(transport)
        if settings.machines:
            await machines.define(client)
        port = ports.pick_port()
        return _Stage(
            server=server, cloud=sim, fake=fake, provider=provider, client=client, port=port
        )

    async def _act(self, stage: _Stage) -> None:
        """Daemon, kubelets and picture, until it is over."""
        flags = cluster.daemon_flags(
            kubeconfig=stage.server.kubeconfig,
            provider=stage.provider.name,
            config=stage.provider.config,
            routes=self._settings.routes,
            port=stage.port,
            machines=bool(self._settings.machines),
        )
        environment = stage.fake.environment if stage.fake else None
        async with cluster.open_daemon(self._folder, flags, environment) as daemon:
            self._screen.say(
                f"daemon: may make {cluster.API_QPS} API requests a second here (its default: 20)"
            )
            informers = self._informers(stage.client)
            kubelets = kubelet.Kubelets(
                informers.of(NODES),
                stage.client.resource(NODES),
                ranges=kubelet.PodRanges() if self._settings.routes else None,
                external=self._settings.instances,
            )
            await tasks.first_of(
                self._stop.wait(),
                self._direct(stage),
                informers.run(),
                kubelets.run(),
                podlife.PodLife(informers, stage.client).run(),
                podlife.Disruption(informers, stage.client).run(),
                self._power(stage, kubelets, informers),
                self._watch_processes(stage, daemon),
                self._count_members(stage),
                self._show(stage, daemon),
                name="sandbox",
            )
            await self._clear(stage)
        self._hear(daemon)
        self._last = daemon.log.last

    async def _clear(self, stage: _Stage) -> None:
        """Leave no VM behind in somebody's own cloud; any other ends anyway."""
        if stage.cloud or stage.fake or not self._settings.machines:
            return
        self._screen.say("deleting the Machines, and their VMs with them")
        for name in await machines.remove(stage.client):
            self._screen.say(f"Machine {name} is not gone: look for its VM in your cloud")

    def _informers(self, client: Client) -> Informers:
        rows = self._board
        informers = Informers(client)
        informers.of(NODES).add_handler(
            name="board",
            on_add=lambda node, _: rows.node_seen(node, time.monotonic()),
            on_update=lambda _, node: rows.node_seen(node, time.monotonic()),
            on_delete=lambda node, _: rows.node_gone(node.name, time.monotonic()),
        )
        informers.of(SERVICES).add_handler(
            name="board",
            on_add=lambda service, _: self._service_seen(service),
            on_update=lambda _, service: self._service_seen(service),
            on_delete=lambda service, _: rows.service_gone(service.key, time.monotonic()),
        )
        informers.of(EVENTS).add_handler(
            name="board",
            on_add=lambda event, _: rows.event_seen(event, time.monotonic()),
            on_update=lambda _, event: rows.event_seen(event, time.monotonic()),
        )
        if self._settings.machines:
            informers.of(MACHINES, namespace=machines.NAMESPACE).add_handler(
                name="board",
                on_add=lambda one, _: rows.machine_seen(one, time.monotonic()),
                on_update=lambda _, one: rows.machine_seen(one, time.monotonic()),
                on_delete=lambda one, _: rows.machine_gone(one.key, time.monotonic()),
            )
            informers.of(MACHINE_DEPLOYMENTS, namespace=machines.NAMESPACE).add_handler(
                name="board",
                on_add=lambda one, _: rows.deployments.update({one.key: machines.standing(one)}),
                on_update=lambda _, one: rows.deployments.update({one.key: machines.standing(one)}),
                on_delete=lambda one, _: rows.deployments.pop(one.key, None),
            )
        return informers

    def _service_seen(self, service: Service) -> None:
        if service.key != webservices.OF_THE_API_SERVER:
            self._board.service_seen(service, time.monotonic())

    async def _direct(self, stage: _Stage) -> None:
        """What happens, one after the other; returns when the sandbox shall end."""
        started = time.monotonic()
        limit = self._settings.timeout_s if self._settings.once else None
        try:
            async with asyncio.timeout(limit):
                if count := self._settings.machines:
                    await machines.create(stage.client, count, self._made_of(stage))
                await self._board.wait_initialised()
                await webservices.create(stage.client, self._settings.services)
                await self._board.wait_converged()
        except TimeoutError:
            return
        self._took_s = time.monotonic() - started
        if self._settings.once:
            return
        done = ", ".join(board.achieved(self._board))
        self._screen.say(f"converged: {done} in {self._took_s:.1f} s")
        for line in self._hints(stage):
            self._screen.say(line)
        await self._stop.wait()

    def _made_of(self, stage: _Stage) -> Sequence[Mapping[str, Any]]:
        """The classes of the Machines, and their Secrets."""
        if stage.cloud is not None:
            return machines.simulated(stage.cloud.token)
        return stage.provider.machine_class

    async def _power(self, stage: _Stage, kubelets: kubelet.Kubelets, informers: Informers) -> None:
        """Let kubelets boot and fall silent with their machines; without end."""
        while True:
            if stage.cloud is not None:
                with contextlib.suppress(cloud.CloudTrouble):
                    kubelets.follow(await stage.cloud.admin.running())
            else:
                # Whether somebody's own machines run, nobody can tell.
                running = {name: name for name in self._settings.node_names}
                if self._settings.machines:
                    known = informers.of(MACHINES, namespace=machines.NAMESPACE).store
                    running |= machines.nodes(known.list())
                kubelets.follow(running)
            await asyncio.sleep(_POWER_PERIOD_S)

    async def _count_members(self, stage: _Stage) -> None:
        """Look where the load balancers send traffic to; without end."""
        while stage.cloud is not None:
            with contextlib.suppress(cloud.CloudTrouble):
                self._board.members_seen(await stage.cloud.admin.members(), time.monotonic())
            await asyncio.sleep(_MEMBERS_PERIOD_S)
        await self._stop.wait()

    def _hints(self, stage: _Stage) -> Iterator[str]:
        yield "Ctrl-C ends everything; until then, in another terminal:"
        yield from hints.commands(
            kubeconfig=stage.server.kubeconfig,
            provider=stage.provider,
            routes=self._settings.routes,
            node=next(iter((*self._settings.node_names, *sorted(self._board.nodes.rows))), "NODE"),
            port=stage.port,
            simulated=self._simulated,
            machine=min(self._board.machines.rows, default=""),
            deployment=machines.DEPLOYMENT,
            other_class=machines.OTHER_CLASS if self._simulated else "",
            variables=stage.fake.variables if stage.fake else {},
        )

    async def _watch_processes(self, stage: _Stage, daemon: cluster.Daemon) -> None:
        """Ends with an error when a process of ours does.

        Raises:
            StartError: it ended; the text holds its last words.
        """
        while True:
            await asyncio.sleep(_HEALTH_PERIOD_S)
            code = daemon.child.exit_code
            if code is not None:
                raise cluster.StartError(
                    cluster.last_words(f"the daemon ended with status {code}", daemon.child.log)
                )
            clouds = (("simulated cloud", stage.cloud), ("fake of the cloud", stage.fake))
            for what, part in (("API server", stage.server), *clouds):
                if part is not None and not part.is_running():
                    raise cluster.StartError(cluster.last_words(f"the {what} ended", part.log))

    async def _show(self, stage: _Stage, daemon: cluster.Daemon) -> None:
        while True:
            self._hear(daemon)
            if stage.cloud is not None:
                with contextlib.suppress(cloud.CloudTrouble):
                    self._board.cloud_calls = await stage.cloud.admin.call_count()
            self._screen.show(self._board, now=time.monotonic())
            await asyncio.sleep(self._screen.period_s)

    def _hear(self, daemon: cluster.Daemon) -> None:
        for entry in daemon.log.news():
            if entry.is_warning:
                self._board.daemon_warned(str(entry), time.monotonic())

    async def _report(self, stage: _Stage) -> None:
        """The last line, with figures as they are now that the daemon has ended."""
        self._screen.show(self._board, now=time.monotonic())
        self._screen.close()
        self._draw()
        async for page in stage.client.resource(EVENTS).pages():
            for event in page.items:
                self._board.count_warnings(event)
        calls = self._last.cloud_calls if self._last else None
        if stage.cloud is not None:
            calls = await stage.cloud.admin.call_count()
        for line in board.laggards(self._board):
            self._screen.say(line)
        self._screen.say(
            board.last_line(
                self._board,
                writes=self._last.writes if self._last else None,
                cloud_calls=calls,
                took_s=self._took_s,
            )
        )

    def _draw(self) -> None:
        """The last table, as a file, if one is wanted."""
        if (file := self._settings.picture) is None:
            return
        try:
            screen.write_svg(self._board, file, now=time.monotonic())
        except OSError as error:
            self._screen.say(f"--picture={file}: it cannot be written: {error.strerror}")

    def _exit_code(self) -> int:
        if not self._settings.once or self._took_s is not None:
            return EXIT_OK
        return EXIT_INTERRUPTED if self._stop.is_set() else EXIT_FAILED


def _cluster_config(server: cluster.ApiServer) -> ClusterConfig:
    """How we reach the API server; like a kubeconfig, without the time it takes to read one."""
    return ClusterConfig(
        server=server.url,
        credentials=Fixed(bearer(server.token)),
        tls=TlsSettings(authorities=server.ca_file.read_bytes() if server.ca_file else None),
        source="the sandbox",
    )


@contextlib.contextmanager
def _state_folder(shown: screen.Screen, *, keep: bool) -> Iterator[Path]:
    """A fresh folder, gone at the end unless it shall be kept."""
    folder = Path(tempfile.mkdtemp(prefix=running.PREFIX))
    shown.say(f"starting; state and logs: {folder}{' (to be kept)' if keep else ''}")
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder)


@contextlib.contextmanager
def _logging_to(folder: Path) -> Iterator[None]:
    """Our own log goes to a file: the screen is for people."""
    with (folder / "sandbox.log").open("ab", buffering=0) as sink:
        log.setup(stream=sink)
        try:
            yield
        finally:
            log.setup()
