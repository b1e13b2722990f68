"""`kube-ccm explain` where no daemon tells anything: what the cluster alone shows."""

from __future__ import annotations

import io
import json

import pytest

from ccm.cli import explain
from ccm.sandbox import ports
from tests.scenario.harness import Environment
from tests.scenario.test_doctor_cluster import held

SERVICES = "/api/v1/namespaces/default/services"


async def told(env: Environment, *words: str) -> tuple[int, str]:
    """Exit status and output."""
    said = io.StringIO()
    wanted = explain.read([f"--kubeconfig={env.server.kubeconfig_path}", *words])
    code = await explain.answer(wanted, said, environ={})
    return code, said.getvalue()


async def service(env: Environment, **spec: str) -> None:
    """A Service that wants a load balancer."""
    ports = [{"port": 80, "nodePort": 30080}]
    body = {"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": ports, **spec}}
    await env.cluster.create(SERVICES, body)


async def test_a_daemon_is_asked_as_a_sandbox_hints(env: Environment) -> None:
    """It asks the built-in API server too who its caller is, and what that one may."""
    port, kubeconfig = ports.pick_port(), str(env.server.kubeconfig_path)
    flags = {
        "secure-port": str(port),
        "bind-address": ports.LOOPBACK,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
    }
    await env.node("n1")
    daemon = await env.start_leading(flags=flags)
    await daemon.says("serving")
    await env.cluster.initialised("n1")
    await env.cluster.set_ready("n1", "True")
    way = (f"--address={ports.LOOPBACK}:{port}", "--insecure")

    code, said = await told(env, "node", "n1", *way)

    assert code == 0
    assert said.startswith("n1 is ready, and there is nothing for the daemon to do")
    assert "last calls to the cloud:" in said


@pytest.mark.both_servers
async def test_nobody_leads(env: Environment) -> None:
    await env.cluster.register("n1")

    code, said = await told(env, "node", "n1")

    assert code == 1
    assert said.startswith(
        "n1 is not initialised: no daemon leads: kube-system/cloud-controller-manager does not "
        "exist yet"
    )


async def test_who_leads_is_silent(env: Environment) -> None:
    await held(env, "cloud-controller-manager", "far_1", silent_s=300)
    await service(env)

    _, said = await told(env, "svc", "web")

    first, *others = said.splitlines()
    assert first.startswith(
        "default/web has no load balancer: no daemon leads: kube-system/cloud-controller-manager "
        "is held by far_1, silent for "
    )
    assert others[0].startswith("  next: start the daemon: it takes over by itself")


async def test_who_leads_has_no_pod(env: Environment) -> None:
    await held(env, "cloud-controller-manager", "far-away_1")
    await env.cluster.register("n1")

    _, said = await told(env, "node", "n1")

    assert "the daemon that leads cannot be asked: kube-system/cloud-controller-manager is" in said
    assert "next: ask it directly with --address=HOST:10258" in said


async def test_the_class_tells_whose_a_service_is_without_a_daemon(env: Environment) -> None:
    await service(env, loadBalancerClass="metallb.io/metallb")

    _, said = await told(env, "service", "default/web", "-o", "json")
    found = json.loads(said)
    assert found["cause"].endswith("it asks for a load balancer of class metallb.io/metallb")
    assert (found["exists"], found["isWell"], found["daemon"]) == (True, False, None)

    _, said = await told(env, "service", "web", "--load-balancer-classes=metallb.io/metallb")
    assert said.startswith("default/web has no load balancer: no daemon leads")


async def test_the_labels_tell_whose_a_node_is_without_a_daemon(env: Environment) -> None:
    await env.cluster.register("n1")

    _, said = await told(env, "node", "n1", "--own-nodes=cloud=ours")

    assert "it is not this daemon's: its labels are not those of --own-nodes" in said


async def test_what_does_not_exist_is_said_to_be_so(env: Environment) -> None:
    _, said = await told(env, "node", "n404")

    assert said.startswith("node n404 does not exist: no daemon leads")


async def test_a_cluster_that_cannot_be_reached_is_one_line(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = await told(env, "node", "n1", "--master=http://127.0.0.1:1")

    assert (code, said) == (1, "")
    assert capsys.readouterr().err.startswith("kube-ccm explain: http://127.0.0.1:1: ")
