"""What `kube-ccm doctor` says about the rights of an account; only a real API server knows."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from ccm.cli import doctor
from ccm.doctor.rights import Need, needs
from ccm.sandbox import realserver
from tests import servers
from tests.scenario.examination import (
    add_node,
    examined,
    finds,
)
from tests.scenario.harness import Environment

RBAC = "/apis/rbac.authorization.k8s.io/v1"


ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"


@contextlib.asynccontextmanager
async def account(env: Environment, granted: list[Need]) -> AsyncIterator[Path]:
    """The kubeconfig of a service account that may do this and nothing else."""
    name = "doctor-test"
    made = [
        f"{ACCOUNTS}/{name}",
        f"{RBAC}/clusterroles/{name}",
        f"{RBAC}/clusterrolebindings/{name}",
    ]
    role = {
        "metadata": {"name": name},
        "rules": [
            {
                "apiGroups": [need.group],
                "resources": [need.resource],
                "resourceNames": [need.name] if need.name else [],
                "verbs": [need.verb],
            }
            for need in granted
        ],
    }
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    await env.cluster.create(ACCOUNTS, {"metadata": {"name": name}})
    await env.cluster.create(f"{RBAC}/clusterroles", role)
    await env.cluster.create(f"{RBAC}/clusterrolebindings", binding)
    asked = await env.cluster.create(
        f"{ACCOUNTS}/{name}/token", {"spec": {"expirationSeconds": 3600}}
    )
    kubeconfig = env.folder / "account.kubeconfig"
    realserver.write_kubeconfig(
        kubeconfig,
        url=env.server.url,
        token=asked["status"]["token"],
        ca_file=env.server.ca_file,
    )
    try:
        yield kubeconfig
    finally:
        for path in made:
            await env.cluster.delete(path)


@servers.only_real
async def test_the_rights_that_are_needed_are_enough(env: Environment) -> None:
    """With exactly what the table says, all is well for the account itself."""
    wanted = needs(doctor.read(["--cloud-provider=sim"]).options)
    async with account(env, wanted) as kubeconfig:
        await add_node(env)

        told = await examined(env, f"--kubeconfig={kubeconfig}")
        about_others = await examined(env, f"--kubeconfig={kubeconfig}", "--as=somebody")

    user = "system:serviceaccount:kube-system:doctor-test"
    assert told.troubles == []
    assert f"ok    permissions: all {len(wanted)} that the daemon needs are granted to {user}" in (
        told.lines
    )
    (skipped,) = (line for line in told.lines if line.startswith("skip"))
    hidden = "not looked at: deployment, secrets, webhooks"
    assert skipped == f"skip  rights: {user} may not look at everything; {hidden}"
    assert about_others.troubles == [
        "warn  permissions: we may not ask about the permissions of others"
    ]


@servers.only_real
async def test_a_missing_verb(env: Environment) -> None:
    wanted = needs(doctor.read(["--cloud-provider=sim"]).options)
    (lacking,) = (
        need for need in wanted if (need.verb, need.resource) == ("patch", "nodes/status")
    )
    lackings = (
        "patch nodes/status",
        "create tokenreviews",
        "create subjectaccessreviews",
        "get configmaps/extension-apiserver-authentication in kube-system",
    )
    first = f"fail  permissions: 1 of {len(wanted)} is missing: patch nodes/status"
    granted = [need for need in wanted if need is not lacking]
    async with account(env, granted) as kubeconfig:
        told = await finds(env, first, f"--kubeconfig={kubeconfig}")
        asked = await examined(env, "--as=system:serviceaccount:kube-system:doctor-test")
        without = await examined(
            env, f"--kubeconfig={kubeconfig}", "--controllers=service,cloud-node-lifecycle"
        )

    assert f"      {lacking}: for cloud-node-controller and node-route-controller" in told.lines
    # Such an account is a Pod's, where the daemon asks about its callers too.
    assert asked.troubles == [
        f"fail  permissions: 4 of {len(wanted) + 3} are missing: {', '.join(lackings)}"
    ]
    assert without.troubles == []


@servers.only_real
async def test_no_rights_at_all(env: Environment) -> None:
    """The permissions say it all; nothing else fails for the same cause."""
    async with account(env, []) as kubeconfig:
        told = await examined(env, f"--kubeconfig={kubeconfig}")

    fails = [line for line in told.lines if line.startswith("fail")]
    assert [line[6:].partition(":")[0] for line in fails] == ["permissions"]
