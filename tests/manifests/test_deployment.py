"""The Deployment and the roles agree with the daemon's flags, names and times."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from ccm.app import options, stopping
from ccm.app.options import FLAGS, migration, names
from ccm.model.names import TAINT_UNINITIALIZED
from tests.manifests import shipped
from tests.manifests.shipped import MANIFESTS

SPEC = shipped.deployment()
POD: dict[str, Any] = SPEC["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]


def test_the_arguments_are_understood_and_the_file_they_name_is_mounted() -> None:
    """Those of the base; image and provider are for whoever installs it."""
    given = options.parse([*CONTAINER["args"], "--cloud-provider=acme"])

    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    volumes = {volume["name"] for volume in POD["volumes"]}
    assert str(Path(given.cloud_config).parent) in mounts
    assert set(mounts.values()) == volumes
    assert given.leader_elect
    assert "image" not in CONTAINER


def test_probes_ask_what_everybody_may_ask() -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    allowed = FLAGS["authorization-always-allow-paths"].default

    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = CONTAINER[name]["httpGet"]
        assert asked["path"] in allowed
        assert asked["scheme"] == "HTTPS"
        assert ports[asked["port"]] == FLAGS["secure-port"].default


def test_a_pod_is_not_killed_while_it_stops() -> None:
    grace: timedelta = FLAGS["shutdown-grace-period"].default

    assert POD["terminationGracePeriodSeconds"] > grace.total_seconds() + stopping.MARGIN_S


def test_it_starts_where_only_it_can_help() -> None:
    tolerated = {one["key"]: one for one in POD["tolerations"]}

    assert tolerated[TAINT_UNINITIALIZED]["effect"] == "NoSchedule"
    assert tolerated[TAINT_UNINITIALIZED]["value"] == "true"
    assert "node.kubernetes.io/network-unavailable" in tolerated
    assert POD["hostNetwork"] is True
    assert POD["priorityClassName"] == "system-cluster-critical"


def test_it_can_change_nothing_where_it_runs() -> None:
    context = CONTAINER["securityContext"]

    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_replicas_stand_apart_and_leave_one_by_one() -> None:
    budget = shipped.only(shipped.objects(MANIFESTS / "pdb.yaml"), "PodDisruptionBudget")["spec"]
    (apart,) = POD["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = SPEC["template"]["metadata"]["labels"]

    assert SPEC["replicas"] == 2
    assert budget["selector"] == SPEC["selector"] == {"matchLabels": labels}
    assert apart["podAffinityTerm"]["labelSelector"] == {"matchLabels": labels}
    # With the host's network, a further replica finds the port taken.
    assert SPEC["strategy"]["rollingUpdate"]["maxSurge"] == 0


def test_the_leases_are_those_of_the_flags() -> None:
    (right,) = [
        right
        for right in shipped.rights(shipped.objects(MANIFESTS / "rbac.yaml"))
        if (right.resource, right.verb) == ("leases", "update")
    ]

    lease = FLAGS["leader-elect-resource-name"].default
    assert right.names == (lease, migration.DEFAULT.leader_name)
    assert right.namespace == FLAGS["leader-elect-resource-namespace"].default


def test_the_separate_accounts_are_those_of_the_controllers() -> None:
    (right,) = [
        right
        for right in shipped.rights(shipped.objects(shipped.SEPARATE_ACCOUNTS / "rbac.yaml"))
        if right.resource == "serviceaccounts/token"
    ]

    assert set(right.names) == {one.client for one in names.MANIFESTS}
