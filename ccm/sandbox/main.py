"""`kube-ccm sandbox`: the sequence from the first process to the last line.

Start: folder, API server, simulated cloud or a provider's fake, daemon. Only then do kubelets
register, and only then is the MachineDeployment created: the screen shows the daemon's work from
the first node on. Services are created when all nodes are initialised, including those of Machines.
End, in every case: kubelets and informers, daemon, last line, cloud, API server, folder.

A signal ends the sandbox at any time, also during the start. If a process exits early, the sandbox
shows the end of its log and ends, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ccm.base import log, tasks
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import StaticCredentials, TlsSettings, bearer
from ccm.kube.errors import KubeError
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import EVENTS, NODES, SERVICES, ResourceKind
from ccm.kube.transport import Transport
from ccm.model import Service
from ccm.sandbox import (
    SandboxSettings,
    board,
    certificates,
    cloud,
    cluster,
    kubelet,
    machineapis,
    machines,
    process,
    screen,
)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells: 128 + SIGINT."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_POWER_PERIOD_S = 1.0
_MEMBERS_PERIOD_S = 0.25
_HEALTH_PERIOD_S = 0.2


ObjectHandler = Callable[[Any], object]
"""Handler of an object that appeared, changed or was deleted."""


def run(settings: SandboxSettings, *, out: TextIO) -> int:
    """Run a sandbox until a signal or, with `once`, it has converged; return the exit status."""
    return asyncio.run(_run(settings, screen.open_screen(out)))


async def _run(settings: SandboxSettings, shown: screen.Screen) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    with _state_folder(shown, keep=settings.keep) as folder:
        try:
            return await Sandbox(settings, shown, folder, stop).run()
        except (cluster.StartError, cloud.AdminError, KubeError) as error:
            shown.close()
            shown.say(f"sandbox: {error}")
            return EXIT_FAILED
        finally:
            shown.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Environment:
    """API server and cloud of the daemon, an API client, and the daemon's HTTPS port."""

    server: cluster.ApiServer
    cloud: cluster.SandboxCloud
    client: Client
    port: int


class Sandbox:
    """One run of a sandbox.

    Args:
        shown: the screen.
        folder: folder for all files.
        stop: event that ends the run.
    """

    def __init__(
        self, settings: SandboxSettings, shown: screen.Screen, folder: Path, stop: asyncio.Event
    ) -> None:
        self._settings = settings
        self._screen = shown
        self._folder = folder
        self._stop = stop
        self._simulated = settings.provider is None
        self._api = machineapis.APIS[settings.machine_api]
        self._board = board.Board(
            settings.node_names,
            labels=board.SIM_LABELS if self._simulated else (),
            routes=settings.routes,
            services=machines.services(settings.services).keys(),
            machines=settings.machines,
            # The name of a VM is known only in the simulated cloud: it is the Machine's name.
            machines_join=self._simulated,
            has_members=self._simulated,
        )
        self._took_s: float | None = None
        self._log: cluster.DaemonLog | None = None

    async def run(self) -> int:
        """Run the sandbox; return the exit status.

        Raises:
            StartError: a process did not start, or exited early.
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
            await self._run_daemon(stage)
            await self._report(stage)
        return self._exit_code()

    async def _set_up(self, stack: contextlib.AsyncExitStack) -> _Environment:
        settings, say = self._settings, self._screen.say
        server = await stack.enter_async_context(
            cluster.open_api_server(self._folder / "apiserver", assets=settings.assets)
        )
        say(f"API server ({server.kind}): {server.url}")
        opened_cloud = await stack.enter_async_context(
            cluster.open_cloud(self._folder / "cloud", settings)
        )
        if opened_cloud.kind:
            say(opened_cloud.kind)
        url = opened_cloud.admin.url if opened_cloud.admin is not None else ""
        running = cloud.CloudEndpoint(url=url, token=opened_cloud.token)
        stack.enter_context(cloud.announce(self._folder, running))
        say(f"export KUBECONFIG={server.kubeconfig}")
        # The content of the kubeconfig; parsing the file would take longer.
        authorities = server.ca_file.read_bytes() if server.ca_file else None
        config = ClusterConfig(
            server=server.url,
            credentials=StaticCredentials(bearer(server.token)),
            tls=TlsSettings(authorities=authorities),
            source="the sandbox",
        )
        client = Client(
            await stack.enter_async_context(Transport(config, user_agent="ccm-sandbox"))
        )
        if settings.machines:
            await machines.create_crds(client, self._api)
        return _Environment(
            server=server, cloud=opened_cloud, client=client, port=process.pick_port()
        )

    async def _run_daemon(self, stage: _Environment) -> None:
        """Run daemon, kubelets and screen until the end."""
        flags = cluster.daemon_flags(
            kubeconfig=stage.server.kubeconfig,
            provider=stage.cloud.provider,
            routes=self._settings.routes,
            port=stage.port,
            machine_controllers=self._api.controllers if self._settings.machines else "",
        )
        environment = stage.cloud.environment
        argv, log_file = ["ccm", *flags], self._folder / "daemon.log"
        async with cluster.open_child(argv, log_file, environment) as daemon:
            self._log = cluster.DaemonLog(log_file)
            informers = self._informers(stage.client)
            kubelets = kubelet.Kubelets(
                informers.informer_for(NODES),
                stage.client.resource(NODES),
                ranges=kubelet.PodRanges() if self._settings.routes else None,
                external=self._settings.instances,
            )
            has_machines = bool(self._settings.machines)
            companions = [*self._api.companions(informers, stage.client)] if has_machines else []
            if has_machines and self._api.has_approver:
                companions += certificates.ServingCertificates(informers, stage.client).controllers
            await tasks.first_of(
                self._stop.wait(),
                self._run_scenario(stage),
                informers.run(),
                kubelets.run(),
                kubelet.PodLifecycle(informers, stage.client).run(),
                kubelet.DisruptionController(informers, stage.client).run(),
                self._follow_machines(stage, kubelets, informers),
                self._watch_processes(stage, daemon),
                self._count_members(stage),
                self._refresh_screen(stage),
                *(companion.run() for companion in companions),
                name="sandbox",
            )
            if has_machines and stage.cloud.child is None:
                # Leave no VM in the user's own cloud; any other cloud ends with the sandbox.
                self._screen.say("deleting the Machines and their VMs")
                for name in await machines.remove(stage.client, self._api):
                    self._screen.say(f"Machine {name} still exists; check its VM in your cloud")
        self._read_daemon_log()

    def _informers(self, client: Client) -> SharedInformers:
        rows, now = self._board, time.monotonic
        informers = SharedInformers(client)

        def follow(
            kind: ResourceKind[Any], seen: ObjectHandler, gone: ObjectHandler, namespace: str = ""
        ) -> None:
            informers.informer_for(kind, namespace=namespace).add_handler(
                name="board",
                on_add=lambda obj, _: seen(obj),
                on_update=lambda _, obj: seen(obj),
                on_delete=lambda obj, _: gone(obj),
            )

        def service_seen(service: Service) -> None:
            if service.key != machines.KUBERNETES_SERVICE:
                rows.service_seen(service, now())

        follow(
            NODES,
            lambda node: rows.node_seen(node, now()),
            lambda node: rows.node_gone(node.name, now()),
        )
        follow(SERVICES, service_seen, lambda service: rows.service_gone(service.key, now()))
        follow(EVENTS, lambda event: rows.event_seen(event, now()), lambda _event: None)
        if self._settings.machines:
            follow(
                self._api.codec.machines,
                lambda obj: rows.machine_seen(obj, now()),
                lambda obj: rows.machine_gone(obj.key, now()),
                self._api.namespace,
            )
            follow(
                self._api.codec.machine_deployments,
                lambda obj: rows.deployments.update({obj.key: machines.rollout_summary(obj)}),
                lambda obj: rows.deployments.pop(obj.key, None),
                self._api.namespace,
            )
        return informers

    async def _run_scenario(self, stage: _Environment) -> None:
        """Create Machines and Services in order; return when the sandbox is to end."""
        started = time.monotonic()
        limit = self._settings.timeout_s if self._settings.once else None
        try:
            async with asyncio.timeout(limit):
                if count := self._settings.machines:
                    objects = stage.cloud.provider.machine_objects
                    await machines.create(stage.client, self._api, count, objects)
                await self._board.wait_initialised()
                await machines.create_services(stage.client, self._settings.services)
                await self._board.wait_converged()
        except TimeoutError:
            return
        self._took_s = time.monotonic() - started
        if self._settings.once:
            return
        done = ", ".join(board.achieved(self._board))
        self._screen.say(f"converged: {done} in {self._took_s:.1f} s")
        self._screen.say("Ctrl-C stops everything; until then, in another terminal:")
        for line in self._hints(stage):
            self._screen.say(f"  {line}")
        await self._stop.wait()

    async def _follow_machines(
        self, stage: _Environment, kubelets: kubelet.Kubelets, informers: SharedInformers
    ) -> None:
        """Start and stop kubelets with their machines, until cancelled."""
        while True:
            if (admin := stage.cloud.admin) is not None:
                with contextlib.suppress(cloud.AdminError):
                    kubelets.set_running_machines(await admin.running())
            else:
                # A real cloud does not tell the sandbox which machines run: assume that all do.
                running = {name: name for name in self._settings.node_names}
                if self._settings.machines:
                    api = self._api
                    known = informers.informer_for(
                        api.codec.machines, namespace=api.namespace
                    ).store
                    running |= machines.provider_ids_by_node(known.list())
                kubelets.set_running_machines(running)
            await asyncio.sleep(_POWER_PERIOD_S)

    async def _count_members(self, stage: _Environment) -> None:
        """Poll the members of load balancers; runs until cancelled."""
        while (admin := stage.cloud.admin) is not None:
            with contextlib.suppress(cloud.AdminError):
                self._board.members_seen(await admin.members(), time.monotonic())
            await asyncio.sleep(_MEMBERS_PERIOD_S)
        await self._stop.wait()

    def _hints(self, stage: _Environment) -> Iterator[str]:
        """Yield commands for another terminal, each after the `export` commands that it needs."""
        node = next(iter((*self._settings.node_names, *sorted(self._board.nodes.rows))), "NODE")
        has_kubectl = shutil.which("kubectl") is not None
        yield f"export KUBECONFIG={shlex.quote(str(stage.server.kubeconfig))}"
        if sys.prefix != sys.base_prefix:  # a virtual environment, which that terminal may lack
            yield f"export PATH={shlex.quote(str(Path(sys.prefix) / 'bin'))}:$PATH"
        if has_kubectl:
            yield "kubectl get nodes -o wide"
            yield "kubectl create service loadbalancer web --tcp=80"
        daemon = f"--address={process.LOOPBACK}:{stage.port} --insecure"
        if self._board.machines.rows and self._board.deployments:
            yield from self._machine_hints(daemon, has_kubectl=has_kubectl)
        if self._simulated:
            yield f"kube-ccm sandbox poweroff {node}"
            yield f"kube-ccm sandbox delete {node}"
            yield "kube-ccm sandbox add one-more"
        yield f"kube-ccm explain node {node} {daemon}"
        for name, text in stage.cloud.variables.items():
            yield f"export {name}={shlex.quote(text)}"
        provider, routes = stage.cloud.provider, "--configure-cloud-routes=false"
        if self._settings.routes:
            routes = f"--cluster-cidr={kubelet.POD_RANGE}"
        doctor = [f"kube-ccm doctor --cloud-provider={provider.name} {routes}"]
        if self._settings.machines:
            doctor.append(f"--controllers={shlex.quote(self._api.controllers)}")
        if provider.config is not None:
            doctor.append(f"--cloud-config={shlex.quote(str(provider.config))}")
        yield from " \\\n  ".join(doctor).split("\n")

    def _machine_hints(self, daemon: str, *, has_kubectl: bool) -> Iterator[str]:
        api, machine = self._api, min(self._board.machines.rows)
        key = min(self._board.deployments)
        name = key.partition("/")[2]
        inside = "" if api.namespace == machineapis.NAMESPACE else f" -n {api.namespace}"
        if has_kubectl:
            yield f"kubectl get machinedeployments,machinesets,machines{inside}"
        yield f"kube-ccm explain machine {machine} {daemon}"
        if has_kubectl:
            yield f"kubectl scale machinedeployment {name}{inside} --replicas=4"
        if has_kubectl and self._simulated:
            changed = {"spec": {"template": {"spec": api.other_type}}}
            patch = json.dumps(changed, separators=(",", ":"))
            yield f"kubectl patch machinedeployment {name}{inside} --type=merge -p '{patch}'"
        apart = f" --namespace={api.namespace}" if inside else ""
        yield f"kube-ccm rollout status machinedeployment/{name}{apart}"
        yield f"kube-ccm explain machinedeployment {key} {daemon}"

    async def _watch_processes(self, stage: _Environment, daemon: process.Child) -> None:
        """Raise StartError with the end of the log when one of our processes exits."""
        server, child = stage.server, stage.cloud.child
        while (code := daemon.exit_code) is None and server.is_running():
            if child is not None and child.exit_code is not None:
                what = "simulated cloud" if self._simulated else "fake of the cloud"
                raise cluster.StartError(cluster.log_tail_message(f"the {what} exited", child.log))
            await asyncio.sleep(_HEALTH_PERIOD_S)
        if code is None:
            raise cluster.StartError(cluster.log_tail_message("the API server exited", server.log))
        what = f"the daemon exited with status {code}"
        raise cluster.StartError(cluster.log_tail_message(what, daemon.log))

    async def _refresh_screen(self, stage: _Environment) -> None:
        while True:
            self._read_daemon_log()
            if (admin := stage.cloud.admin) is not None:
                with contextlib.suppress(cloud.AdminError):
                    self._board.cloud_calls = await admin.call_count()
            self._screen.show(self._board, now=time.monotonic())
            await asyncio.sleep(self._screen.period_s)

    def _read_daemon_log(self) -> None:
        for entry in self._log.read_entries() if self._log else ():
            if entry.is_warning:
                self._board.daemon_warned(str(entry), time.monotonic())

    async def _report(self, stage: _Environment) -> None:
        """Show the last line, with final figures, after the daemon has ended."""
        self._screen.show(self._board, now=time.monotonic())
        self._screen.close()
        if (file := self._settings.picture) is not None:
            try:
                screen.write_svg(self._board, file, now=time.monotonic())
            except OSError as error:
                self._screen.say(f"--picture={file}: cannot be written: {error.strerror}")
        async for page in stage.client.resource(EVENTS).pages():
            for event in page.items:
                self._board.count_warnings(event)
        last = self._log.last if self._log else None
        calls = last.cloud_calls if last else None
        if stage.cloud.admin is not None:
            calls = await stage.cloud.admin.call_count()
        for line in board.unsettled_lines(self._board):
            self._screen.say(line)
        self._screen.say(
            board.last_line(
                self._board,
                writes=last.writes if last else None,
                cloud_calls=calls,
                took_s=self._took_s,
            )
        )

    def _exit_code(self) -> int:
        if not self._settings.once or self._took_s is not None:
            return EXIT_OK
        return EXIT_INTERRUPTED if self._stop.is_set() else EXIT_FAILED


@contextlib.contextmanager
def _state_folder(shown: screen.Screen, *, keep: bool) -> Iterator[Path]:
    """Yield a new folder with the sandbox's own log; delete it at the end unless `keep` is set."""
    folder = Path(tempfile.mkdtemp(prefix=cloud.PREFIX))
    shown.say(f"starting; state and logs: {folder}{' (kept at the end)' if keep else ''}")
    try:
        with (folder / "sandbox.log").open("ab", buffering=0) as sink:
            log.setup(stream=sink)
            try:
                yield folder
            finally:
                log.setup()
    finally:
        if not keep:
            shutil.rmtree(folder)
