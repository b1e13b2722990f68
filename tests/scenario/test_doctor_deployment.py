"""What `kube-ccm doctor` finds at the daemon's Deployment, its Pods, Secrets, and their leader."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ccm.model.times import format_micro_time
from tests.manifests import shipped
from tests.scenario.examination import add_node, examined, finds
from tests.scenario.harness import Environment
from tests.scenario.objects import LEASES, lease

DEPLOYMENTS = "/apis/apps/v1/namespaces/kube-system/deployments"
PODS = "/api/v1/namespaces/kube-system/pods"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
NAME = shipped.NAME
IMAGE = "registry.example/kube-ccm:1"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": NAME}


@contextlib.asynccontextmanager
async def installed(
    env: Environment, *, ready: int = 2, provider: str = "sim", keys: tuple[str, ...] | None = None
) -> AsyncIterator[None]:
    """The base's Deployment with an image and a provider, so many replicas of it ready."""
    made = shipped.only(shipped.objects(shipped.MANIFESTS / "deployment.yaml"), "Deployment")
    container = made["spec"]["template"]["spec"]["containers"][0]
    container["image"] = IMAGE
    container["args"].append(f"--cloud-provider={provider}")
    paths = [f"{DEPLOYMENTS}/{NAME}"]
    await env.cluster.create(DEPLOYMENTS, made)
    status = {"replicas": 2, "readyReplicas": ready, "availableReplicas": ready}
    await env.cluster.patch(f"{DEPLOYMENTS}/{NAME}/status", {"status": status})
    if keys is not None:
        secret = {"metadata": {"name": "cloud-config"}, "stringData": dict.fromkeys(keys, "x")}
        await env.cluster.create(SECRETS, secret)
        paths.append(f"{SECRETS}/cloud-config")
    try:
        yield
    finally:
        for path in paths:
            await env.cluster.delete(path)


async def led(env: Environment) -> None:
    now = format_micro_time(datetime.now(UTC))
    spec = {"holderIdentity": "node-1_abc", "leaseDurationSeconds": 15, "renewTime": now}
    await env.cluster.create(LEASES, lease(NAME, **spec))


async def add_pod(env: Environment, name: str, **status: Any) -> None:
    """One of its Pods, on node-1."""
    container = {"name": "main", "image": IMAGE, "args": ["--cloud-provider=sim"]}
    spec = {"containers": [container], "nodeName": "node-1", "hostNetwork": True}
    await env.cluster.create(PODS, {"metadata": {"name": name, "labels": LABELS}, "spec": spec})
    one = {"name": "main", "image": IMAGE, "imageID": "", "restartCount": 0, **status}
    given = {"phase": "Running", "containerStatuses": [one]}
    await env.cluster.patch(f"{PODS}/{name}/status", {"status": given})


@pytest.mark.both_servers
async def test_a_deployment_that_works(env: Environment) -> None:
    await add_node(env)
    await led(env)
    await add_pod(env, "ccm-1", ready=True, state={"running": {}})
    async with installed(env, keys=("cloud.yaml",)):
        told = await examined(env)

    assert (told.troubles, told.code) == ([], 0)
    assert f"ok    deployment: kube-system/{NAME}, image {IMAGE}: 2 of 2 replicas ready" in (
        told.lines
    )
    assert "ok    secrets: cloud-config of kube-system has what the Pods need" in told.lines
    (line,) = [line for line in told.lines if line.startswith("ok    lease: ")]
    held = f"kube-system/{NAME} is held by node-1_abc: Pod ccm-1 ({IMAGE}, --cloud-provider=sim)"
    assert line.startswith(f"ok    lease: {held}, renewed ")


@pytest.mark.parametrize(
    ("waiting", "advice"),
    [
        ("ImagePullBackOff", "push the image, correct its name, or give the Pods imagePullSecrets"),
        ("CrashLoopBackOff", "see why it ends: kubectl -n kube-system logs ccm-1 --previous"),
        ("StartError", "see what it waits for: kubectl -n kube-system describe pod ccm-1"),
    ],
)
async def test_pods_that_do_not_start(env: Environment, waiting: str, advice: str) -> None:
    state = {"waiting": {"reason": waiting, "message": "no"}}
    await add_pod(env, "ccm-1", ready=False, state=state)
    first = f"deployment: kube-system/{NAME}, image {IMAGE}: {{}} of 2 replicas ready"
    async with installed(env, ready=0, keys=("cloud.yaml",)):
        told = await finds(env, f"fail  {first.format(0)}")
        await env.cluster.patch(f"{DEPLOYMENTS}/{NAME}/status", {"status": {"readyReplicas": 1}})
        half = await finds(env, f"warn  {first.format(1)}")

    assert f"      Pod ccm-1: {waiting}: no" in told.lines
    assert told.advice(told.troubles[0]) == [advice]
    assert half.advice(half.troubles[0]) == [advice]


async def test_a_secret_that_is_not_there_or_lacks_the_file(env: Environment) -> None:
    await led(env)
    async with installed(env):
        told = await finds(env, "fail  secrets: kube-system lacks the Secret cloud-config (for /")
    async with installed(env, keys=("clouds.yaml",)):
        await finds(
            env,
            "fail  secrets: kube-system lacks the key cloud.yaml in the Secret cloud-config (it "
            "has clouds.yaml)",
        )

    assert told.advice(told.troubles[0]) == [
        "kubectl -n kube-system create secret generic cloud-config --from-file=cloud.yaml=FILE"
    ]


async def test_replicas_that_are_ready_and_a_lease_that_nobody_holds(env: Environment) -> None:
    async with installed(env, keys=("cloud.yaml",)):
        await finds(
            env,
            f"warn  lease: kube-system/{NAME} does not exist yet; the first daemon makes it, and "
            f"so nobody works, though kube-system/{NAME} has 2 ready replicas",
        )


async def test_a_deployment_with_other_flags_than_those_given(env: Environment) -> None:
    await led(env)
    async with installed(env, provider="acme", keys=("cloud.yaml",)):
        told = await finds(env, f"warn  deployment: kube-system/{NAME}, image {IMAGE}: 2 of 2")

    assert "      it has --cloud-provider=acme" in told.lines
