"""The Deployments and roles agree with flags, names and times of the daemon and the commands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ccm.app import options, shutdown
from ccm.app.http import enabled_webhooks
from ccm.app.machines.commands import (
    MACHINE_CONTROLLER,
    MACHINE_CONTROLLER_MANAGER,
    MachineCommand,
)
from ccm.app.options import FLAGS, Options, controllers, migration
from ccm.kubermatic import codec, names
from ccm.machines.flags import ACCOUNT
from ccm.model.names import TAINT_UNINITIALIZED
from tests.manifests import shipped
from tests.manifests.shipped import MANIFESTS, Object

SPEC = shipped.deployment()
POD: dict[str, Any] = SPEC["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]


def test_arguments_are_valid_and_the_cloud_config_is_mounted() -> None:
    """Arguments of the base; the user adds image and provider."""
    given = options.parse([*CONTAINER["args"], "--cloud-provider=acme"])

    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    volumes = {volume["name"] for volume in POD["volumes"]}
    assert str(Path(given.cloud_config).parent) in mounts
    assert set(mounts.values()) == volumes
    assert given.leader_elect
    assert "image" not in CONTAINER


def test_probes_use_paths_that_need_no_authorization() -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    allowed = FLAGS["authorization-always-allow-paths"].default

    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = CONTAINER[name]["httpGet"]
        assert asked["path"] in allowed
        assert asked["scheme"] == "HTTPS"
        assert ports[asked["port"]] == FLAGS["secure-port"].default


def test_termination_grace_period_exceeds_the_shutdown_grace_period() -> None:
    grace: timedelta = FLAGS["shutdown-grace-period"].default

    assert POD["terminationGracePeriodSeconds"] > grace.total_seconds() + shutdown.MARGIN_S


def test_pods_tolerate_uninitialized_nodes_without_network() -> None:
    tolerated = {one["key"]: one for one in POD["tolerations"]}

    assert tolerated[TAINT_UNINITIALIZED]["effect"] == "NoSchedule"
    assert tolerated[TAINT_UNINITIALIZED]["value"] == "true"
    assert "node.kubernetes.io/network-unavailable" in tolerated
    assert POD["hostNetwork"] is True
    assert POD["priorityClassName"] == "system-cluster-critical"


def test_the_security_context_is_restricted() -> None:
    context = CONTAINER["securityContext"]

    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_replicas_have_anti_affinity_a_budget_and_no_surge() -> None:
    budget = shipped.only(shipped.objects(MANIFESTS / "pdb.yaml"), "PodDisruptionBudget")["spec"]
    (apart,) = POD["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = SPEC["template"]["metadata"]["labels"]

    assert SPEC["replicas"] == 2
    assert budget["selector"] == SPEC["selector"] == {"matchLabels": labels}
    assert apart["podAffinityTerm"]["labelSelector"] == {"matchLabels": labels}
    # With the host's network, a further replica finds the port taken.
    assert SPEC["strategy"]["rollingUpdate"]["maxSurge"] == 0


def test_rbac_names_the_leases_of_the_flags() -> None:
    (right,) = [
        right
        for right in shipped.rights(shipped.objects(MANIFESTS / "rbac.yaml"))
        if (right.resource, right.verb) == ("leases", "update")
    ]

    lease = FLAGS["leader-elect-resource-name"].default
    assert right.names == (lease, migration.DEFAULT.leader_name)
    assert right.namespace == FLAGS["leader-elect-resource-namespace"].default


def test_rbac_names_the_service_accounts_of_the_controllers() -> None:
    (right,) = [
        right
        for right in shipped.rights(shipped.objects(shipped.SEPARATE_ACCOUNTS / "rbac.yaml"))
        if right.resource == "serviceaccounts/token"
    ]

    assert set(right.names) == {one.client for one in controllers.MANIFESTS}


@pytest.mark.row("kubermatic-webhook-19")
def test_kubermatic_webhook_is_registered_as_the_daemon_serves_it(tmp_path: Path) -> None:
    components = (shipped.KUBERMATIC, shipped.KUBERMATIC_WEBHOOK)
    folder = shipped.overlay(tmp_path, components=components)
    objects = shipped.parsed(shipped.kustomized(tmp_path, folder))
    pod = shipped.only(objects, "Deployment")["spec"]["template"]["spec"]
    given = options.parse(pod["containers"][0]["args"])
    (hook,) = shipped.only(objects, "MutatingWebhookConfiguration")["webhooks"]
    place = hook["clientConfig"]["service"]
    (service,) = [one for one in objects if one["metadata"]["name"] == place["name"]]
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}

    assert enabled_webhooks(given) == (controllers.KUBERMATIC_MACHINES,)
    assert place["path"] == f"/{controllers.KUBERMATIC_MACHINES}"
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [given.webhook_secure_port]
    assert service["spec"]["selector"] == SPEC["selector"]["matchLabels"]
    for file in (given.webhook_tls_cert_file, given.webhook_tls_private_key_file):
        assert "secret" in volumes[mounts[str(Path(file).parent)]]


@pytest.mark.row("kubermatic-webhook-19")
def test_kubermatic_webhook_is_not_asked_about_writes_of_the_daemon() -> None:
    registered = shipped.objects(shipped.KUBERMATIC_WEBHOOK / "webhook.yaml")
    (hook,) = shipped.only(registered, "MutatingWebhookConfiguration")["webhooks"]
    (rule,) = hook["rules"]
    texts = {one["name"]: one["expression"] for one in hook["matchConditions"]}
    account = f"system:serviceaccount:{shipped.NAMESPACE}:{ACCOUNT}"

    assert re.findall(r'"(.*?)"', texts["not-by-the-daemon"]) == [shipped.USER, account]
    assert f'?"{names.ANNOTATION_BYPASS}"' in texts["spec-changed"]
    kinds = (codec.MACHINES, codec.MACHINE_DEPLOYMENTS)
    assert rule["resources"] == [kind.plural for kind in kinds]
    assert (rule["apiGroups"], rule["apiVersions"]) == ([names.GROUP], [names.VERSION])
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert (hook["failurePolicy"], hook["sideEffects"]) == ("Fail", "None")
    assert hook["admissionReviewVersions"] == ["v1"]
    (namespace,) = hook["namespaceSelector"]["matchLabels"].values()
    assert namespace == FLAGS["kubermatic-namespace"].default


@pytest.mark.row("kubermatic-rbac-01")
def test_kubermatic_controllers_read_secrets_in_two_namespaces_only() -> None:
    rights = [
        right
        for right in shipped.rights(shipped.objects(shipped.KUBERMATIC / "rbac.yaml"))
        if right.resource in ("secrets", "configmaps")
    ]
    own = FLAGS["kubermatic-namespace"].default

    assert {(right.resource, right.namespace) for right in rights} == {
        ("secrets", own),
        ("secrets", names.BOOTSTRAP_NAMESPACE),
        ("configmaps", own),
    }
    assert {right.verb for right in rights} == {"list", "watch"}


FOLDER = MANIFESTS / "machine-controller"


_COMMAND = shipped.only(shipped.objects(FOLDER / "deployment.yaml"), "Deployment")
POD_OF_COMMAND: dict[str, Any] = _COMMAND["spec"]["template"]["spec"]
CONTAINER_OF_COMMAND: dict[str, Any] = POD_OF_COMMAND["containers"][0]


ALONE: Mapping[str, Any] = {
    "cloud": {"provider": shipped.PROVIDER, "config": {"existingSecret": ""}},
}


ON: Mapping[str, Any] = {**ALONE, "machineController": {"enabled": True}}


def read(words: Iterable[str]) -> Options:
    found = MACHINE_CONTROLLER.read(list(words))
    assert isinstance(found, Options)
    return found


def test_arguments_of_the_machine_controller_and_its_command_are_valid() -> None:
    options = read([*CONTAINER_OF_COMMAND["args"], "--cloud-provider=acme"])

    assert options.namespace == "default"
    scripts = tomllib.loads((shipped.ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    (command,) = CONTAINER_OF_COMMAND["command"]
    assert command == f"/opt/ccm/bin/{MACHINE_CONTROLLER.name}"
    assert MACHINE_CONTROLLER.name in scripts
    assert "image" not in CONTAINER_OF_COMMAND


def test_machine_controller_probes_and_grace_period_match_its_flags() -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER_OF_COMMAND["ports"]}
    asked = [CONTAINER_OF_COMMAND[name]["httpGet"] for name in ("startupProbe", "livenessProbe")]

    assert {ports[one["port"]] for one in asked} == {MACHINE_CONTROLLER.flags["port"].default}
    assert {one.get("scheme", "HTTP") for one in asked} == {"HTTP"}
    grace = MACHINE_CONTROLLER.flags["shutdown-grace-period"].default.total_seconds()
    assert POD_OF_COMMAND["terminationGracePeriodSeconds"] > grace + shutdown.MARGIN_S


def theirs(
    objects: Iterable[Object], name: str = MACHINE_CONTROLLER.name
) -> dict[tuple[str, str, str], Object]:
    """Those of the command, by their names; flags in an order of their own."""
    label = "app.kubernetes.io/name"
    found = [one for one in objects if one["metadata"]["labels"][label] == name]
    for one in found:
        if one["kind"] == "Deployment":
            one["spec"]["template"]["spec"]["containers"][0]["args"].sort()
    return shipped.by_name(found)


@pytest.mark.envtest
def test_the_chart_matches_the_machine_controller_folder(tmp_path: Path) -> None:
    tokens = [FOLDER / "bootstrap-tokens"]
    overlay = shipped.overlay(tmp_path, base=FOLDER, components=tokens)
    base = shipped.kustomized(tmp_path, overlay)
    command = {"enabled": True, "bootstrapTokens": True}
    chart = shipped.parsed(shipped.rendered(tmp_path, {**ALONE, "machineController": command}))
    without = shipped.parsed(shipped.rendered(tmp_path, ON))

    wanted = theirs(shipped.parsed(base))
    assert len(wanted) == 10
    assert theirs(chart) == wanted
    granted = {key for key in wanted if key[2].endswith(":bootstrap-tokens")}
    assert wanted.keys() - theirs(without).keys() == granted
    assert len(granted) == 2
    assert theirs(shipped.parsed(shipped.rendered(tmp_path, ALONE))) == {}


@pytest.mark.envtest
def test_a_target_kubeconfig_replaces_rights_for_nodes_in_this_cluster(tmp_path: Path) -> None:
    values = {
        "enabled": True,
        "namespace": "shoot",
        "targetKubeconfigSecret": "shoot-kubeconfig",
        "extraArgs": {"concurrent-syncs": 5},
    }
    found = theirs(shipped.parsed(shipped.rendered(tmp_path, {"machineController": values})))

    pod = found["Deployment", shipped.NAMESPACE, "machine-controller"]["spec"]["template"]["spec"]
    options = read(pod["containers"][0]["args"])
    mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one.get("secret", {}).get("secretName") for one in pod["volumes"]}
    assert volumes[mounts[str(Path(options.target_kubeconfig).parent)]] == "shoot-kubeconfig"
    assert options.machine_concurrent_syncs == 5
    rights = list(shipped.rights(found.values()))
    assert {right.resource for right in rights} >= {"machines", "leases"}
    # About the CRD of Machines, which has no namespace, and events about it.
    elsewhere = {(one.namespace, one.resource) for one in rights if one.namespace != "shoot"}
    assert elsewhere == {("", "customresourcedefinitions"), ("default", "events")}
    roles = {each["metadata"]["name"] for each in found.values() if "Role" in each["kind"]}
    assert roles == {"system:machine-controller:control", "system:machine-controller:control:shoot"}


@pytest.mark.envtest
@pytest.mark.parametrize("command", [MACHINE_CONTROLLER, MACHINE_CONTROLLER_MANAGER])
@pytest.mark.parametrize("namespace", ["machines", "default", "kube-system"])
def test_a_machine_command_may_use_the_lease_of_its_flags(
    tmp_path: Path, command: MachineCommand, namespace: str
) -> None:
    flags = {"leader-elect-resource-name": "a", "leader-elect-resource-namespace": namespace}
    values = {"enabled": True, "namespace": "machines", "extraArgs": flags}
    first, *others = command.name.split("-")
    key = first + "".join(map(str.capitalize, others))
    objects = shipped.parsed(shipped.rendered(tmp_path, {**ALONE, key: values}))
    found = theirs(objects, command.name)

    pod = found["Deployment", shipped.NAMESPACE, command.name]["spec"]["template"]["spec"]
    options = command.read(pod["containers"][0]["args"])
    assert isinstance(options, Options)
    place = options.leader_elect_resource_namespace
    granted = {
        (right.resource, right.verb, right.names)
        for right in shipped.rights(found.values())
        if right.namespace == place and right.resource in ("leases", "events")
    }
    verbs = {verb for resource, verb, names in granted if (resource, names) == ("leases", ("a",))}
    assert (place, verbs) == (namespace, {"get", "watch", "update"})
    assert granted >= {("leases", "create", ()), ("events", "create", ()), ("events", "patch", ())}
    bound = {
        (each["roleRef"]["kind"], each["metadata"].get("namespace", ""), each["roleRef"]["name"])
        for each in shipped.bindings(found.values())
    }
    assert bound == {key for key in found if key[0] in ("Role", "ClusterRole")}


@pytest.mark.envtest
def test_the_chart_matches_the_machine_controller_manager_folder(tmp_path: Path) -> None:
    manager = MACHINE_CONTROLLER_MANAGER
    folder = MANIFESTS / manager.name
    base = shipped.kustomized(tmp_path, shipped.overlay(tmp_path, base=folder))
    values = {**ALONE, "machineControllerManager": {"enabled": True}}
    chart = theirs(shipped.parsed(shipped.rendered(tmp_path, values)), manager.name)

    wanted = theirs(shipped.parsed(base), manager.name)
    container = wanted["Deployment", shipped.NAMESPACE, manager.name]["spec"]["template"]["spec"][
        "containers"
    ][0]
    # The overlay of these tests names a provider for every Deployment; here nothing reads it.
    container["args"].remove(f"--cloud-provider={shipped.PROVIDER}")
    assert chart == wanted
    assert isinstance(manager.read(container["args"]), Options)
    assert container["ports"][0]["containerPort"] == manager.flags["port"].default


@pytest.mark.envtest
def test_separate_accounts_also_get_the_rights_on_machines(tmp_path: Path) -> None:
    machines = shipped.MACHINES
    accounts = [shipped.SEPARATE_ACCOUNTS, machines, shipped.TOKENS, machines / "accounts"]
    base = shipped.kustomized(tmp_path, shipped.overlay(tmp_path, components=accounts))
    wanted = {"enabled": True, "bootstrapTokens": True}
    values = {"serviceAccountCredentials": True, "machines": wanted}
    chart = shipped.parsed(shipped.rendered(tmp_path, values))

    for objects in (shipped.parsed(base), chart):
        told = [
            {one["name"] for one in each["subjects"]}
            for each in shipped.bindings(objects)
            if each["metadata"]["name"].endswith((":machines", ":bootstrap-tokens"))
        ]
        assert told == [{shipped.NAME, "machine-controller"}] * 3
    plain = shipped.parsed(shipped.rendered(tmp_path, {"machines": {"enabled": True}}))
    assert {one["name"] for each in shipped.bindings(plain) for one in each["subjects"]} == {
        shipped.NAME
    }
