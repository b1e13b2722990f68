"""`kube-ccm explain` with a daemon, and from the objects of the cluster alone."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import pytest

from ccm.cli import explain
from ccm.doctor import ExaminationError
from ccm.sandbox import process
from tests import servers
from tests.scenario import load
from tests.scenario.harness import Environment
from tests.scenario.test_doctor import NAME, Plant, held


async def told(env: Environment, *words: str) -> tuple[int, str]:
    """Exit status and output."""
    said = io.StringIO()
    wanted = explain.read([f"--kubeconfig={env.server.kubeconfig_path}", *words])
    code = await explain.explain_object(wanted, said, environ={})
    return code, said.getvalue()


async def test_explain_queries_the_daemon_at_a_given_address(env: Environment) -> None:
    """The daemon authenticates and authorizes the caller at the built-in API server too."""
    port, kubeconfig = process.pick_port(), str(env.server.kubeconfig_path)
    flags = {
        "secure-port": str(port),
        "bind-address": process.LOOPBACK,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
    }
    await env.node("n1")
    daemon = await env.start_leading(flags=flags)
    await daemon.says("serving")
    await env.cluster.initialised("n1")
    await env.cluster.set_ready("n1", "True")
    way = (f"--address={process.LOOPBACK}:{port}", "--insecure")

    code, said = await told(env, "node", "n1", *way)

    assert code == 0
    assert said.startswith("n1 is ready, ")
    assert "last reconcile: " in said


async def silent(env: Environment) -> None:
    await held(env, NAME, "far_1", silent_s=300)
    await load.create(env, load.web("web"))


async def without_pod(env: Environment) -> None:
    await held(env, NAME, "far-away_1")
    await env.cluster.register("n1")


ALONE: Mapping[str, tuple[Plant, list[str], str, str]] = {
    "nobody leads": (
        *(lambda env: env.cluster.register("n1"), ["node", "n1"]),
        *("n1 is not initialised: there is no leader: ", NAME),
    ),
    "who leads is silent": (
        *(silent, ["svc", "web"]),
        *(
            "default/web has no load balancer: there is no leader: ",
            "held by far_1, not renewed for ",
        ),
    ),
    "who leads has no Pod": (
        *(without_pod, ["node", "n1"]),
        "n1 is not initialised: the reason is unknown, because querying the leader failed: ",
        "--address=HOST:10258 of kube-ccm explain",
    ),
    "what does not exist": (
        *(lambda env: env.cluster.register("n1"), ["node", "n404"]),
        *("node n404 does not exist: there is no leader", ""),
    ),
}
"""Planted objects, the arguments, the beginning of the answer, and a part of it."""


@servers.only_builtin
@pytest.mark.parametrize("name", ALONE)
async def test_explain_finds_the_cause_in_the_cluster_without_a_daemon(
    env: Environment, name: str
) -> None:
    plant, words, first, also = ALONE[name]
    await plant(env)

    code, said = await told(env, *words)

    assert (code, said.startswith(first)) == (3, True), said
    assert also in said


@pytest.mark.both_servers
async def test_explain_prints_json_for_a_service_without_a_daemon(env: Environment) -> None:
    await load.create(env, load.web("web"))

    found = json.loads((await told(env, "service", "default/web", "-o", "json"))[1])
    with pytest.raises(ExaminationError, match=r"^http://127\.0\.0\.1:1: "):
        await told(env, "node", "n1", "--master=http://127.0.0.1:1")

    assert found["cause"].startswith("default/web has no load balancer: there is no leader")
    assert (found["exists"], found["isWell"], found["daemon"]) == (True, False, None)
