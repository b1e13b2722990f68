"""Each symptom of the troubleshooting guide is caused, and shown by the guide's own commands."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from ccm.cli import explain, rollout
from ccm.cloud import Context, RetryAfter
from ccm.doctor import ExaminationError
from ccm.gardener import names
from ccm.sandbox import process, realserver
from ccm.testing import builders
from ccm.testing.fake_api import Fault
from providers import sim
from tests import servers
from tests.kubectl.tool import Kubectl
from tests.readme import readme, walk
from tests.scenario import harness, kubermatic, load, machines, test_doctor, test_orphans
from tests.scenario.examination import add_node, examined
from tests.scenario.harness import Daemon, Environment, wait_for
from tests.scenario.machines import ALL_CONTROLLERS, DEPLOYMENTS, MACHINES, SETS
from tests.scenario.test_misconfiguration import GOOD, flags_of, run

LOG = "kubectl -n kube-system logs deployment/cloud-controller-manager"
"""Command that shows the log of the daemon, which is no Pod here."""

MACHINE_FLAGS = {"controllers": ",".join(ALL_CONTROLLERS), "kube-api-qps": "-1"}
SERVICE_FLAGS = {"controllers": "cloud-node,service", "kube-api-qps": "-1"}
NODE_FLAGS = {"controllers": "cloud-node,cloud-node-lifecycle"}


class Operator:
    """An operator who types the commands of the guide.

    Args:
        env: the cluster and its daemons.
        kubectl: kubectl as the administrator.

    Attributes:
        cleanup: context for whatever a situation opens.
        words: flags of the Deployment, besides those of `examined`.
    """

    def __init__(
        self, env: Environment, kubectl: Kubectl, cleanup: contextlib.AsyncExitStack
    ) -> None:
        self.env = env
        self.cleanup = cleanup
        self.words: list[str] = []
        self._kubectl = kubectl
        self._way: list[str] = []
        self._message = ""

    async def lead(self, **flags: str) -> Daemon:
        """Start a daemon that can be asked for its state, and wait until it leads."""
        port, kubeconfig = process.pick_port(), str(self.env.server.kubeconfig_path)
        self._way = [f"--address={process.LOOPBACK}:{port}", "--insecure"]
        serving = {
            "secure-port": str(port),
            "bind-address": process.LOOPBACK,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
        }
        given = {name.replace("_", "-"): text for name, text in flags.items()}
        daemon = await self.env.start_leading(flags={**serving, **given})
        await daemon.says("serving")
        return daemon

    async def write_log(self, **flags: str) -> Daemon:
        """Start a daemon whose log has the default format, and wait until it leads."""
        given = {name.replace("_", "-"): text for name, text in flags.items()}
        daemon = await self.env.start(flags={**given, "logging-format": "text"})
        daemon.surprises = lambda: re.findall("Traceback.*", daemon.output)  # type: ignore[method-assign]

        async def leads() -> bool:
            return "became leader" in daemon.output

        await wait_for(leads, "the daemon leads")
        return daemon

    async def start_in_vain(self, config: str = GOOD, **flags: str) -> None:
        """Start a daemon that ends by itself."""
        given = {name.replace("_", "-"): text for name, text in flags.items()}
        folder = self.env.folder
        words = harness.command_line({**flags_of(folder, config), **given})
        self._message = (await run(words, folder)).message

    async def type(self, line: str) -> str:
        """Return the output of a command of the guide."""
        if line == LOG:
            return "\n".join([self._message, *(daemon.output for daemon in self.env.daemons)])
        program, *words = shlex.split(line)
        if program == "kubectl":
            return (await asyncio.to_thread(self._kubectl.run, *words))[1]
        assert program == "kube-ccm", line
        name, *given = [word for word in words if word != "$FLAGS"]
        if name == "doctor":
            return "\n".join((await examined(self.env, *self.words, *given)).lines)
        if name == "orphans":
            return await test_orphans.told(self.env, *given)
        kubeconfig, out = f"--kubeconfig={self.env.server.kubeconfig_path}", io.StringIO()
        with contextlib.suppress(ExaminationError):  # until the objects are there
            if name == "explain":
                asked = explain.read([kubeconfig, *given, *self._way])
                await explain.explain_object(asked, out, environ={})
            else:
                assert name == "rollout", line
                asked = rollout.read([kubeconfig, *given])
                await rollout.show_or_change(asked, out, environ={})
        return out.getvalue()


Situation = Callable[[Operator], Awaitable[Any]]
SITUATIONS: dict[str, Situation] = {}
"""Heading of the guide -> function that causes the symptom."""


def cause(heading: str) -> Callable[[Situation], Situation]:
    """Register the cause of a symptom."""

    def register(situation: Situation) -> Situation:
        assert heading not in SITUATIONS, heading
        SITUATIONS[heading] = situation
        return situation

    return register


# --- start of the daemon --------------------------------------------------------------------------


@cause("The daemon ends: the provider is unknown")
async def _(operator: Operator) -> None:
    await operator.start_in_vain(cloud_provider="hcluod")


@cause("The daemon ends: a flag is unknown")
async def _(operator: Operator) -> None:
    await operator.start_in_vain(node_monitor_periode="5s")


@cause("The daemon ends: the cloud config is invalid")
async def _(operator: Operator) -> None:
    await operator.start_in_vain("url: nowhere\ntimeout: soon\n")


@cause("The daemon ends: the port is in use")
async def _(operator: Operator) -> None:
    taken = await asyncio.start_server(lambda *_: None, process.LOOPBACK, 0)
    operator.cleanup.callback(taken.close)
    port = str(taken.sockets[0].getsockname()[1])
    await operator.start_in_vain(secure_port=port, bind_address=process.LOOPBACK)


@cause("The Pods do not start: the Secret is missing")
async def _(operator: Operator) -> None:
    await operator.cleanup.enter_async_context(test_doctor.installed(operator.env, ready=0))


@cause("The Pods do not start: the image cannot be pulled")
async def _(operator: Operator) -> None:
    env = operator.env
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    await test_doctor.pod(
        env, "cloud-controller-manager-0", ready=False, state={"waiting": waiting}
    )
    installed = test_doctor.installed(env, ready=0, keys=("cloud.yaml",))
    await operator.cleanup.enter_async_context(installed)


@cause("A Pod is not ready")
async def _(operator: Operator) -> None:
    port = process.pick_port()
    await operator.write_log(
        **NODE_FLAGS,
        secure_port=str(port),
        bind_address=process.LOOPBACK,
        authorization_always_allow_paths="/readyz",
    )
    await operator.env.cloud_proxy.down()
    await operator.env.cluster.register("worker-1")
    url = f"https://{process.LOOPBACK}:{port}/readyz"

    async def is_probed() -> bool:
        async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as response:
            return response.status == 500

    await wait_for(is_probed, "the probe of the kubelet fails")


@cause("A controller does not run")
async def _(operator: Operator) -> None:
    operator.words = ["--cluster-cidr="]


# --- leader ---------------------------------------------------------------------------------------


@cause("The Lease is held and nothing happens")
async def _(operator: Operator) -> None:
    await test_doctor.held(operator.env, test_doctor.NAME, "control-1_5f2c", silent_s=86_400)


@cause("Another program holds the Lease")
async def _(operator: Operator) -> None:
    await test_doctor.held(operator.env, test_doctor.NAME, "far-away_1")


@cause("Two managers are active")
async def _(operator: Operator) -> None:
    await test_doctor.held(operator.env, f"acme-{test_doctor.NAME}", "acme_1")


@cause("The daemon starts again and again")
async def _(operator: Operator) -> None:
    daemon = await operator.write_log(
        **NODE_FLAGS,
        **{name.replace("-", "_"): text for name, text in harness.SHORT_LEASE.items()},
    )
    await operator.env.proxy.down()
    await daemon.ended()


# --- the cloud ------------------------------------------------------------------------------------


@cause("The cloud rejects the credentials")
async def _(operator: Operator) -> None:
    await test_doctor.wrong_cloud_token(operator.env)


@cause("The cloud does not answer")
async def _(operator: Operator) -> None:
    await test_doctor.absent_cloud(operator.env)


@cause("A changed configuration has no effect")
async def _(operator: Operator) -> None:
    await operator.write_log(**NODE_FLAGS)
    operator.env.configure_cloud(url="nowhere")


# --- nodes ----------------------------------------------------------------------------------------


@cause("A node keeps its taint: no VM has its name")
async def _(operator: Operator) -> None:
    operator.env.machine("worker-1")
    await operator.lead(**NODE_FLAGS)
    await operator.env.cluster.register("worker-1.example.com")
    operator.words = ["--controllers=cloud-node"]


@cause("A node keeps its taint: no daemon is active")
async def _(operator: Operator) -> None:
    operator.env.machine("worker-1")
    await operator.env.cluster.register("worker-1")
    operator.words = ["--configure-cloud-routes=false"]


@cause("A node has no provider ID")
async def _(operator: Operator) -> None:
    await add_node(operator.env, "worker-1", providerID="")


@cause("A node belongs to another cloud or manager")
async def _(operator: Operator) -> None:
    await add_node(operator.env, "worker-1", providerID="aws:///eu-1/i-1")


@cause("Two nodes have the same provider ID")
async def _(operator: Operator) -> None:
    await test_doctor.one_id_twice(operator.env)


@cause("A node has the taint of a VM that is off")
async def _(operator: Operator) -> None:
    env = operator.env
    await operator.lead(**NODE_FLAGS)
    machine = await env.node("worker-1")
    await env.cluster.initialised("worker-1")
    env.cloud.world.act(machine.id, "stop")
    await env.cluster.set_ready("worker-1", "Unknown")


@cause("Many VMs vanished, and their nodes stay")
async def _(operator: Operator) -> None:
    env = operator.env
    await operator.lead(**NODE_FLAGS)
    every = [f"worker-{number}" for number in range(1, 10)]
    vms = [await env.node(name) for name in every]
    await env.cluster.initialised(*every)
    # First all VMs: a daemon that misses one VM alone deletes its node.
    for vm in vms[:6]:
        env.cloud.world.delete(vm.id, at_once=True)
    for name in every[:6]:
        await env.cluster.set_ready(name, "Unknown")


@cause("Pods of a node cannot be reached: its Pod range is foreign")
async def _(operator: Operator) -> None:
    await add_node(operator.env, "worker-1", podCIDR="10.99.1.0/24")


# --- Services -------------------------------------------------------------------------------------


async def _serve(operator: Operator, body: dict[str, Any], **flags: str) -> None:
    await operator.lead(**{**SERVICE_FLAGS, **flags})
    await load.create(operator.env, body)


@cause("A Service stays pending: an annotation is invalid")
async def _(operator: Operator) -> None:
    body = load.web("web")
    body["metadata"]["annotations"] = {"load-balancer.sim.cloud/size": "huge"}
    await _serve(operator, body)


@cause("A Service stays pending: the quota is used up")
async def _(operator: Operator) -> None:
    cloud = operator.env.cloud
    cloud.change_settings(msgspec.structs.replace(cloud.settings, balancer_quota=1))
    await _serve(operator, load.web("first"))
    await load.settled(operator.env, services=1, members=0)
    await load.create(operator.env, load.web("web"))


@cause("A Service stays pending: the cloud rejects the credentials")
async def _(operator: Operator) -> None:
    await operator.lead(**SERVICE_FLAGS)
    operator.env.cloud.token = "rotated"
    await load.create(operator.env, load.web("web"))


@cause("A Service stays pending: its class belongs to another controller")
async def _(operator: Operator) -> None:
    await _serve(operator, load.web("web", loadBalancerClass="acme.example/fast"))


@cause("A Service gets no load balancer: its type is another one")
async def _(operator: Operator) -> None:
    await _serve(operator, load.web("web", type="ClusterIP"))


@cause("A load balancer has no nodes")
async def _(operator: Operator) -> None:
    await _serve(operator, load.web("web"))


@cause("A Service cannot be deleted")
async def _(operator: Operator) -> None:
    await _serve(operator, load.web("web"))
    await load.settled(operator.env, services=1, members=0)
    operator.env.cloud.script.add(Fault(operation="delete_balancer"))
    await load.delete(operator.env, "web")


@cause("A load balancer is left over")
async def _(operator: Operator) -> None:
    config = operator.env.cloud_config.read_bytes()
    async with sim.open_cloud(Context(config=config)) as cloud:
        assert cloud.load_balancer is not None
        with contextlib.suppress(RetryAfter):
            await cloud.load_balancer.ensure_load_balancer(
                "kubernetes", builders.service("lost"), ()
            )


# --- machines -------------------------------------------------------------------------------------


async def _machines(operator: Operator, **flags: str) -> None:
    """CRDs, the class `small`, and a daemon with the machine controllers."""
    env = operator.env
    await machines.prepare(env)
    await machines.make_class(
        env.cluster, "small", machines.SIM, machines.sim_secret(env.cloud.token)
    )
    await operator.lead(**{**MACHINE_FLAGS, **flags})


async def _running_machine(operator: Operator) -> None:
    """The machine controllers, and worker-0, whose node has joined."""
    env = operator.env
    await _machines(operator)
    await machines.create(env.cluster, 1, "worker-")
    await machines.join(env, 1)
    await wait_for(lambda: machines.in_phase(env, "Running", 1), "it runs")


@cause("Nothing happens: the CRDs are missing")
async def _(operator: Operator) -> None:
    await operator.lead(**MACHINE_FLAGS)
    operator.words = [f"--controllers={MACHINE_FLAGS['controllers']}"]


@cause("Nothing happens: the controllers are off")
async def _(operator: Operator) -> None:
    await machines.prepare(operator.env)
    await operator.lead(**NODE_FLAGS)
    await machines.create(operator.env.cluster, 1, "worker-")


@cause("A Machine is in CrashLoopBackOff: its class is invalid")
async def _(operator: Operator) -> None:
    await _machines(operator)
    template = {"capacity": {"cpu": 2, "memory": "8Gi"}, "instanceType": "small"}
    patch = {"nodeTemplate": {**template, "region": "sim-1", "zone": "sim-1a"}}
    place = f"{harness.MACHINE_API}/machineclasses/small"
    await operator.env.cluster.patch(place, patch, kind="merge")
    await machines.create(operator.env.cluster, 1, "worker-")


@cause("A Machine is in CrashLoopBackOff: the Secret of its class is missing")
async def _(operator: Operator) -> None:
    await _machines(operator)
    await operator.env.cluster.patch(
        f"{machines.SECRETS}/small", {"metadata": {"finalizers": None}}, kind="merge"
    )
    await operator.env.cluster.delete(f"{machines.SECRETS}/small")
    await machines.create(operator.env.cluster, 1, "worker-")


@cause("A Machine is in CrashLoopBackOff: the quota is used up")
async def _(operator: Operator) -> None:
    cloud = operator.env.cloud
    operator.env.machine("other")
    cloud.change_settings(msgspec.structs.replace(cloud.settings, instance_quota=1))
    await _machines(operator)
    await machines.create(operator.env.cluster, 1, "worker-")


@cause("A Machine is Pending, and then Failed")
async def _(operator: Operator) -> None:
    await _machines(operator, machine_creation_timeout="1s")
    await machines.create(operator.env.cluster, 1, "worker-")


@cause("A Machine is Unknown")
async def _(operator: Operator) -> None:
    await _running_machine(operator)
    await operator.env.cluster.set_ready("worker-0", "False")


@cause("A Machine is Terminating: its drain waits")
async def _(operator: Operator) -> None:
    env = operator.env
    await _running_machine(operator)
    living = machines.living_pods(env, counted_in=env.folder / "manager")
    pods = await operator.cleanup.enter_async_context(living)
    await pods.create("web-0", "worker-0")
    await pods.budget("web", 1)
    await wait_for(lambda: pods.ready(1), "the Pod is ready and counted")
    await env.cluster.delete(f"{MACHINES}/worker-0")


@cause("A Machine does not get a VM: another owner has it")
async def _(operator: Operator) -> None:
    vm = operator.env.machine("other")
    await _machines(operator)
    spec = {**machines.of("small"), "providerID": f"sim://{vm.id}"}
    body = {**machines.TYPE, "kind": "Machine", "metadata": {"name": "worker-0"}, "spec": spec}
    await operator.env.cluster.create(MACHINES, body)


@cause("A MachineSet is frozen")
async def _(operator: Operator) -> None:
    env = operator.env
    await _machines(operator)
    await env.cluster.create(SETS, machines.group("MachineSet", "pool", 5))
    await wait_for(lambda: machines.in_phase(env, "Pending", 5), "VMs are there")
    env.cloud.script.add(Fault(operation="delete_instance"))
    await env.cluster.patch(f"{SETS}/pool", {"spec": {"replicas": 1}}, kind="merge")


@cause("A MachineSet pauses after failures")
async def _(operator: Operator) -> None:
    await _machines(operator, machine_creation_timeout="1s")
    await operator.env.cluster.create(SETS, machines.group("MachineSet", "pool", 1))


@cause("A rollout does not continue")
async def _(operator: Operator) -> None:
    env = operator.env
    await _machines(operator)
    body = machines.group("MachineDeployment", "pool", 2, paused=True)
    await env.cluster.create(DEPLOYMENTS, body)


@cause("Machines are being deleted with their CRD")
async def _(operator: Operator) -> None:
    env = operator.env
    await _running_machine(operator)
    await env.cluster.delete(f"{harness.DEFINITIONS}/machines.{names.GROUP}")
    operator.words = [f"--controllers={MACHINE_FLAGS['controllers']}"]

    async def define_again() -> None:
        async with servers.connect(env.server) as session:
            await harness.define(session)

    operator.cleanup.push_async_callback(define_again)


@cause("Kubermatic's API: the controllers wait for a Lease")
async def _(operator: Operator) -> None:
    env = operator.env
    await kubermatic.install(env)
    await test_doctor.held(env, "machine-controller", "mc-7d9f_1", program="machine-controller")
    operator.words = [f"--controllers={kubermatic.FLAGS['controllers']}"]


@cause("Kubermatic's API: a Machine waits for its user data")
async def _(operator: Operator) -> None:
    env = operator.env
    await kubermatic.install(env)
    secret, body = kubermatic.FLEET.api.simulated(env.cloud.token)
    await env.cluster.create(kubermatic.SECRETS, secret)
    await operator.lead(**kubermatic.FLAGS)
    operator.words = [f"--controllers={kubermatic.FLAGS['controllers']}"]
    body = {**body, "metadata": {"name": "workers"}, "spec": {**body["spec"], "replicas": 1}}
    await env.cluster.create(kubermatic.DEPLOYMENTS, body)


# --- commands -------------------------------------------------------------------------------------


@cause("explain finds no daemon")
async def _(operator: Operator) -> None:
    await operator.env.cluster.register("worker-1")


# --- the guide ------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """Heading -> text of each question."""
    _, *parts = re.split(r"^### ", readme.text(readme.SYMPTOMS), flags=re.MULTILINE)
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def lines(block: str) -> Iterator[str]:
    """Yield the commands of a block."""
    yield from filter(None, block.replace("\\\n", "").splitlines())


@pytest_asyncio.fixture
async def operator(env: Environment, tmp_path: Path) -> AsyncIterator[Operator]:
    """An operator with an empty cluster."""
    kubeconfig = tmp_path / "kubectl.kubeconfig"
    async with contextlib.AsyncExitStack() as cleanup:
        url = await cleanup.enter_async_context(proxy(env))
        realserver.write_kubeconfig(kubeconfig, url=url, token="")
        kubectl = Kubectl(walk.program("kubectl"), kubeconfig, tmp_path / "home")
        yield Operator(env, kubectl, cleanup)


@contextlib.asynccontextmanager
async def proxy(env: Environment) -> AsyncIterator[str]:
    """Add the token of the administrator to requests, as `kubectl proxy` does; yield the URL.

    kubectl sends no token over plain HTTP.
    """

    async def forward(request: web.Request) -> web.Response:
        headers = {
            key: request.headers[key]
            for key in ("Accept", "Content-Type")
            if key in request.headers
        }
        async with session.request(
            request.method, request.path_qs, headers=headers, data=await request.read()
        ) as response:
            return web.Response(
                status=response.status,
                body=await response.read(),
                content_type=response.content_type,
            )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app)
    async with servers.connect(env.server) as session:
        await runner.setup()
        try:
            port = process.pick_port()
            await web.TCPSite(runner, process.LOOPBACK, port).start()
            yield f"http://{process.LOOPBACK}:{port}"
        finally:
            await runner.cleanup()


@servers.only_builtin
@pytest.mark.slow
@pytest.mark.parametrize("heading", SITUATIONS)
async def test_the_commands_of_the_guide_show_each_symptom(
    operator: Operator, heading: str
) -> None:
    await SITUATIONS[heading](operator)
    text = sections()[heading]
    for step in readme.steps(text):
        deadline = time.monotonic() + harness.WAIT_S
        while True:
            output = "\n".join([await operator.type(line) for line in lines(step.text)])
            if not (missing := readme.broken(step.promised, output)):
                break
            assert time.monotonic() < deadline, f"{missing}\n--- output ---\n{output}"
            await asyncio.sleep(0.2)


def test_each_question_of_the_guide_is_tried() -> None:
    found = sections()

    assert found.keys() == SITUATIONS.keys()
    assert len(found) >= 30
    for heading, text in found.items():
        assert any(step.promised for step in readme.steps(text)), heading
