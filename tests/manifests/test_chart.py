"""Rendered objects of the chart, compared with the kustomize base, and refused values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.app import options
from ccm.app.options import ALIASES, FLAGS, NO_EFFECT, controllers, gates
from tests.manifests import shipped
from tests.manifests.shipped import (
    CERTIFICATE,
    CHART,
    EVERYTHING,
    MANIFESTS,
    VARIANTS,
    Object,
    Values,
)

pytestmark = pytest.mark.envtest

HOOK: Values = {"enabled": True, "tlsSecret": "t", "caCertificate": CERTIFICATE}


COMMANDS: Values = {
    "machineController": {"enabled": True},
    "machineControllerManager": {"enabled": True},
}


def render(home: Path, values: Values | None = None) -> list[Object]:
    return shipped.parsed(shipped.rendered(home, values))


def container(objects: list[Object]) -> dict[str, Any]:
    pod = shipped.only(objects, "Deployment")["spec"]["template"]["spec"]
    (found,) = pod["containers"]
    return dict(found)


def deployments_by_name(objects: list[Object]) -> Mapping[str, Object]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == "Deployment"}


def test_helm_lint_passes_without_warnings(tmp_path: Path) -> None:
    for values in VARIANTS.values():
        given = shipped.value_files(tmp_path, values)

        status, output = shipped.run("helm", "lint", "--strict", CHART, *given, home=tmp_path)

        assert status == 0, output
        assert "[WARNING]" not in output


def test_the_chart_renders_the_objects_of_the_kustomize_base(tmp_path: Path) -> None:
    base = shipped.kustomized(tmp_path, shipped.overlay(tmp_path))

    assert by_name(render(tmp_path)) == by_name(shipped.parsed(base))


def test_the_chart_with_separate_accounts_matches_the_component(tmp_path: Path) -> None:
    overlay = shipped.overlay(tmp_path, components=[shipped.SEPARATE_ACCOUNTS])
    chart = render(tmp_path, {"serviceAccountCredentials": True})

    assert by_name(chart) == by_name(shipped.parsed(shipped.kustomized(tmp_path, overlay)))


def test_the_chart_with_a_network_policy_matches_the_component(tmp_path: Path) -> None:
    component = MANIFESTS / "components" / "network-policy"
    overlay = shipped.overlay(tmp_path, components=[component])
    off = {"hostNetwork": False, "networkPolicy": {"enabled": True}}
    chart = render(tmp_path, off)

    assert by_name(chart) == by_name(shipped.parsed(shipped.kustomized(tmp_path, overlay)))
    policy = shipped.only(chart, "NetworkPolicy")["spec"]
    labels = shipped.only(chart, "Deployment")["spec"]["template"]["metadata"]["labels"]
    (wanted,) = policy["podSelector"]["matchExpressions"]
    assert labels[wanted["key"]] in wanted["values"]
    # An empty list of rules refuses all callers; a rule without `from` would admit all.
    assert policy["ingress"] == []
    allowed = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    named = render(tmp_path, {**off, "networkPolicy": {"enabled": True, "from": allowed}})
    assert shipped.only(named, "NetworkPolicy")["spec"]["ingress"] == [{"from": allowed}]


def test_the_chart_with_flow_control_matches_the_component(tmp_path: Path) -> None:
    overlay = shipped.overlay(tmp_path, components=[shipped.FLOW_CONTROL])
    values: Values = {"flowControl": {"enabled": True}}
    chart = render(tmp_path, values)

    assert by_name(chart) == by_name(shipped.parsed(shipped.kustomized(tmp_path, overlay)))
    machines = render(tmp_path, {**values, **COMMANDS})
    accounts = {
        (one["metadata"]["namespace"], one["metadata"]["name"])
        for one in machines
        if one["kind"] == "ServiceAccount"
    }
    assert len(accounts) == 3
    (rule,) = shipped.only(machines, "FlowSchema")["spec"]["rules"]
    named = [subject["serviceAccount"] for subject in rule["subjects"]]
    assert {(one["namespace"], one["name"]) for one in named} == accounts


def test_lease_requests_in_any_namespace_have_the_level_of_leader_elections(tmp_path: Path) -> None:
    values: Values = {"flowControl": {"enabled": True}}
    text = shipped.rendered(tmp_path, values, namespace="clouds")

    name = "cloud-controller-manager-leases"
    (schema,) = [one for one in shipped.parsed(text) if one["metadata"]["name"] == name]
    assert schema["spec"]["priorityLevelConfiguration"] == {"name": "leader-election"}
    (rule,) = schema["spec"]["rules"]
    account = {"name": shipped.NAME, "namespace": "clouds"}
    assert [one["serviceAccount"] for one in rule["subjects"]] == [account]


@pytest.mark.row("kubermatic-chart-01")
def test_the_chart_with_kubermatic_matches_the_component(tmp_path: Path) -> None:
    """It also has the CRDs, and may create the Lease in another namespace."""
    components = [shipped.SEPARATE_ACCOUNTS, shipped.KUBERMATIC, shipped.MACHINES / "accounts"]
    overlay = shipped.overlay(tmp_path, components=components)
    values = {"serviceAccountCredentials": True, "kubermatic": {"enabled": True}}
    chart = by_name(render(tmp_path, values))
    lease = chart["Role", shipped.NAMESPACE, f"system:{shipped.NAME}:kubermatic-lease"]
    (created,) = (rule for rule in lease["rules"] if rule["verbs"] == ["create"])
    lease["rules"].remove(created)

    crds = {key for key in chart if key[0] == "CustomResourceDefinition"}
    assert {name for _, _, name in crds} == {
        f"{plural}.cluster.k8s.io" for plural in ("machines", "machinesets", "machinedeployments")
    }
    rest = {key: chart[key] for key in chart.keys() - crds}
    assert rest == by_name(shipped.parsed(shipped.kustomized(tmp_path, overlay)))


def test_values_of_kubermatic_become_flags_and_namespaces(tmp_path: Path) -> None:
    objects = render(tmp_path, EVERYTHING)
    chosen = options.parse(container(objects)["args"])
    found = {
        right.namespace: right.resource
        for right in shipped.rights(objects)
        if "kubermatic" in right.role
    }

    assert (
        chosen.kubermatic_namespace,
        chosen.kubermatic_name,
        chosen.kubermatic_leader_election_namespace,
    ) == ("kube-public", "blue", "kube-node-lease")
    assert found.keys() == {"", "kube-public", "cloud-init-settings", "kube-node-lease"}
    running = {manifest.alias for manifest in controllers.enabled(chosen.controllers)}
    kubermatic = ("machine", "machineset", "machinedeployment")
    assert running >= {"machine", "service", "nodecsrapprover"}
    assert running >= {f"kubermatic{kind}" for kind in kubermatic}


def by_name(objects: list[Object]) -> Mapping[tuple[str, str, str], Object]:
    """Objects by their names, with the flags in an order of their own: a patch comes last."""
    found = shipped.by_name(objects)
    container(list(found.values()))["args"].sort()
    return found


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_rendered_flags_are_valid_flags_of_the_daemon(tmp_path: Path, values: Values) -> None:
    args = container(render(tmp_path, values))["args"]
    found = {arg.removeprefix("--").partition("=")[0] for arg in args}

    assert found <= FLAGS.keys()
    assert len(found) == len(args)
    assert options.parse(args).cloud_provider


@pytest.mark.parametrize(
    ("address", "host"), [("127.0.0.1", "127.0.0.1"), ("$(HOST_IP)", None), ("0.0.0.0", None)]
)
def test_probes_connect_to_the_bind_address(tmp_path: Path, address: str, host: str | None) -> None:
    found = container(render(tmp_path, {"extraArgs": {"bind-address": address}}))

    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert {found[probe]["httpGet"].get("host") for probe in probes} == {host}


def test_two_releases_share_no_objects_selectors_or_leases(tmp_path: Path) -> None:
    """With a shared Lease, one of two clouds would never be served."""
    ours = shipped.by_name(render(tmp_path))
    theirs = shipped.by_name(render(tmp_path, {"name": "blue"}))

    assert ours.keys().isdisjoint(theirs.keys())
    assert "--leader-elect-resource-name=blue" in container(list(theirs.values()))["args"]
    (lease,) = [
        right
        for right in shipped.rights(theirs.values())
        if (right.resource, right.verb) == ("leases", "update")
    ]
    assert lease.names[0] == "blue"
    labels = shipped.only(theirs.values(), "Deployment")["spec"]["selector"]["matchLabels"]
    assert labels != shipped.only(ours.values(), "Deployment")["spec"]["selector"]["matchLabels"]


def test_pods_restart_for_new_credentials_but_not_for_a_new_cloud_config(tmp_path: Path) -> None:
    def templates(**values: Any) -> Mapping[str, Object]:
        return {
            name: one["spec"]["template"]["metadata"]
            for name, one in deployments_by_name(render(tmp_path, {**COMMANDS, **values})).items()
        }

    def config(text: str) -> Object:
        return {"config": {"content": text}}

    first, second = (templates(credentials={"data": {"A": value}}) for value in "12")
    # The other command does not use the cloud.
    restarted = {name for name in first if first[name] != second[name]}
    assert restarted == {shipped.NAME, "machine-controller"}
    assert templates(cloud=config("a: 1")) == templates(cloud=config("a: 2"))


def test_extra_variables_and_volumes_are_in_all_pods(tmp_path: Path) -> None:
    names = ("extraEnv", "extraVolumes", "extraVolumeMounts")
    values: Values = {name: EVERYTHING[name] for name in names}
    found = deployments_by_name(render(tmp_path, {**COMMANDS, **values}))

    assert len(found) == 3
    for deployment in found.values():
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        present = (container["env"], pod["volumes"], container["volumeMounts"])
        for name, items in zip(names, present, strict=True):
            assert items[-1] in EVERYTHING[name]


def test_kubermatic_and_a_machine_controller_with_another_lease_share_a_namespace(
    tmp_path: Path,
) -> None:
    command: Values = {
        "enabled": True,
        "namespace": "kube-system",
        "extraArgs": {"leader-elect-resource-name": "gardener"},
    }
    objects = render(tmp_path, {"kubermatic": {"enabled": True}, "machineController": command})

    names = {
        right.names
        for right in shipped.rights(objects)
        if (right.resource, right.verb, right.namespace) == ("leases", "update", "kube-system")
    }
    assert names >= {("machine-controller",), ("gardener",)}


def test_the_webhook_configuration_reaches_the_webhook_port_of_the_daemon(tmp_path: Path) -> None:
    objects = render(tmp_path, EVERYTHING)
    hooks = shipped.only(objects, "ValidatingWebhookConfiguration")["webhooks"]
    (service,) = [one for one in objects if one["metadata"]["name"] == "blue-webhook"]
    (port,) = service["spec"]["ports"]
    ports = {one["name"]: one["containerPort"] for one in container(objects)["ports"]}
    args = container(objects)["args"]

    assert [hook["clientConfig"]["service"]["path"] for hook in hooks] == [
        f"/{name}" for name in controllers.WEBHOOKS if name != controllers.KUBERMATIC_MACHINES
    ]
    assert {hook["failurePolicy"] for hook in hooks} == {"Ignore"}
    plain = yaml.safe_load_all((MANIFESTS / "webhook.yaml").read_text())
    (same,) = [one for one in plain if one["kind"] == "ValidatingWebhookConfiguration"]
    assert [hook["matchConditions"] for hook in hooks] == [
        one["matchConditions"] for one in same["webhooks"]
    ]
    assert {hook["clientConfig"]["service"]["name"] for hook in hooks} == {"blue-webhook"}
    assert f"--webhook-secure-port={ports[port['targetPort']]}" in args
    assert f"--feature-gates={gates.WEBHOOK}=true" in args


@pytest.mark.parametrize("given", [False, True])
def test_webhook_client_certificates_are_required_when_configured(
    tmp_path: Path, given: bool
) -> None:
    hook = {**HOOK, "clientCaConfigMap": "callers"} if given else HOOK
    objects = render(tmp_path, {"webhook": hook})
    pod = shipped.only(objects, "Deployment")["spec"]["template"]["spec"]
    sources = {
        volume["name"]: volume["configMap"]["name"]
        for volume in pod["volumes"]
        if "configMap" in volume
    }
    mounted = {
        sources[mount["name"]]: f"{mount['mountPath']}/ca.crt"
        for mount in container(objects)["volumeMounts"]
        if mount["name"] in sources
    }

    file = options.parse(container(objects)["args"]).get("webhook-client-ca-file")
    assert (mounted, file) == (({"callers": file}, mounted["callers"]) if given else ({}, ""))


def test_a_service_monitor_selects_the_pods_of_each_deployment(tmp_path: Path) -> None:
    objects = render(tmp_path, {**EVERYTHING, "machines": {}, "kubermatic": {}, **COMMANDS})
    monitors = [one for one in objects if one["kind"] == "ServiceMonitor"]
    deployments = [one for one in objects if one["kind"] == "Deployment"]
    scraped = {}

    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (endpoint,) = monitor["spec"]["endpoints"]
        (service,) = [
            one
            for one in objects
            if one["kind"] == "Service" and wanted <= one["metadata"]["labels"].items()
        ]
        (target,) = [
            one["targetPort"] for one in service["spec"]["ports"] if one["name"] == endpoint["port"]
        ]
        (pod,) = [
            one["spec"]["template"]
            for one in deployments
            if service["spec"]["selector"].items()
            <= one["spec"]["template"]["metadata"]["labels"].items()
        ]
        (container,) = pod["spec"]["containers"]
        assert target in [port["name"] for port in container["ports"]]
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        scraped[service["metadata"]["name"]] = (endpoint["scheme"], "bearerTokenFile" in endpoint)

    assert scraped == {
        "blue-metrics": ("https", True),
        "machine-controller-metrics": ("http", False),
        "machine-controller-manager-metrics": ("http", False),
    }
    assert len(deployments) == len(scraped)
    rules = shipped.only(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]
    jobs = {job for rule in rules for job in re.findall(r'job=[~"]*([^"]*)"', rule["expr"])}
    assert [{*job.split("|")} for job in jobs] == [{*scraped}]


REFUSED: Mapping[str, tuple[Values, str]] = {
    "a text for a number": ({"replicas": "two"}, "/replicas"),
    "a name that is not there": ({"replica": 2}, "replica"),
    "a name further down": ({"cloud": {"config": {"contents": ""}}}, "contents"),
    "a port too high": ({"securePort": 70000}, "/securePort"),
    "no provider": ({"cloud": {"provider": ""}}, "--set cloud.provider=NAME"),
    "a provider that is none": ({"cloud": {"provider": "a b"}}, "/cloud/provider"),
    "the simulated cloud": ({"cloud": {"provider": "sim"}}, "cloud.provider: sim is a simulated"),
    "no image": ({"image": {"repository": ""}}, "--set image.repository=REGISTRY/kube-ccm"),
    "an image nobody has": (
        {"image": {"repository": "kube-ccm"}},
        "image.repository: kube-ccm has no registry",
    ),
    "dashes before a flag": ({"extraArgs": {"--v": 4}}, "/extraArgs"),
    "a flag that is none": (
        {"extraArgs": {"cluster-nam": "x"}},
        "at '/extraArgs': additional properties 'cluster-nam' not allowed",
    ),
    "a flag that ends the daemon": ({"extraArgs": {"help": True}}, "'help' not allowed"),
    "a list for a flag": ({"extraArgs": {"controllers": ["*"]}}, "/extraArgs/controllers"),
    "a flag with a value of its own": (
        {"extraArgs": {"cloud-provider": "x"}},
        "extraArgs.cloud-provider: the chart sets this flag; use its value",
    ),
    "a unit that is none": ({"resources": {"limits": {"memory": "1 GB"}}}, "/resources/limits"),
    "a policy that is none": ({"image": {"pullPolicy": "No"}}, "pullPolicy"),
    "a digest that is none": ({"image": {"digest": "sha256:12"}}, "digest"),
    "an upper-case name": ({"name": "CCM"}, "/name"),
    "a variable with a dash": ({"credentials": {"data": {"A-B": "x"}}}, "/credentials/data"),
    "an unknown webhook": ({"webhook": {**HOOK, "names": ["services"]}}, "/webhook/names"),
    "a webhook without a certificate": ({"webhook": {"enabled": True}}, "webhook.tlsSecret"),
    "a webhook nobody trusts": (
        {"webhook": {"enabled": True, "tlsSecret": "t"}},
        "webhook.caCertificate",
    ),
    "two servers on one port": ({"webhook": {**HOOK, "port": 10258}}, "webhook.port"),
    "feature gates twice": (
        {"webhook": HOOK, "extraArgs": {"feature-gates": "A=true"}},
        "extraArgs.feature-gates",
    ),
    "authorities of callers twice": (
        {
            "webhook": {**HOOK, "clientCaConfigMap": "x"},
            "extraArgs": {"webhook-client-ca-file": "/x"},
        },
        "extraArgs.webhook-client-ca-file",
    ),
    "a NetworkPolicy on the host's network": (
        {"networkPolicy": {"enabled": True}},
        "networkPolicy.enabled: network plugins ignore Pods on the host network",
    ),
    "machines twice": (
        {"machines": {"enabled": True}, "machineController": {"enabled": True}},
        "machineController.enabled: machines.enabled runs the same controllers",
    ),
    "a Lease twice": (
        {
            "kubermatic": {"enabled": True},
            "machineController": {"enabled": True, "namespace": "kube-system"},
        },
        "kubermatic.leaseNamespace: machineController has the Lease machine-controller",
    ),
    "a flag of Kubermatic's with a value of its own": (
        {"extraArgs": {"kubermatic-namespace": "x"}},
        "extraArgs.kubermatic-namespace: the chart sets this flag; use its value",
    ),
    "a namespace that is none": ({"kubermatic": {"namespace": "A"}}, "/kubermatic/namespace"),
    "no share": ({"flowControl": {"nominalConcurrencyShares": 0}}, "/nominalConcurrencyShares"),
    "an interval that is none": ({"serviceMonitor": {"interval": "often"}}, "/interval"),
}


@pytest.mark.parametrize(("values", "told"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_value_is_refused_with_its_name(
    tmp_path: Path, values: Values, told: str
) -> None:
    status, output = shipped.helm_template(tmp_path, values)

    assert status != 0
    assert told in output


@pytest.mark.parametrize(
    ("mode", "granted"), [("off", False), (False, False), ("report", True), ("delete", True)]
)
def test_the_journal_gets_its_permissions_without_a_file(
    tmp_path: Path, mode: str | bool, granted: bool
) -> None:
    """Without `persistence.config` the journal is in ConfigMaps of the Lease's namespace."""
    objects = list(yaml.safe_load_all(shipped.rendered(tmp_path, {"extraArgs": {"journal": mode}})))
    named = {(obj["kind"], obj["metadata"]["name"]) for obj in objects if obj}
    name = "system:cloud-controller-manager:persistence"

    assert (("Role", f"{name}-objects") in named) is granted
    assert (("ClusterRole", name) in named) is granted
    assert ("ConfigMap", "cloud-controller-manager-persistence") not in named


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"instances": [{"memory": {}}]}, set()),
        ({"instances": [{"kubernetes": None}]}, {"kube-system"}),
        (
            {
                "instances": [{"memory": {}}],
                "secrets": {"encrypted": {"storage": {"kubernetes": {"namespace": "a"}}}},
            },
            {"a"},
        ),
        (
            {
                "instances": [{"kubernetes": {"namespace": "a"}}],
                "secrets": {"encrypted": {"storage": {"kubernetes": {}}}},
            },
            {"a", "kube-system"},
        ),
        (
            {
                "instances": [{"kubernetes": {}}],
                "secrets": {"encrypted": {"storage": {"kubernetes": {}}}},
            },
            {"kube-system"},
        ),
    ],
)
def test_config_maps_of_all_storage_get_their_permissions(
    tmp_path: Path, config: dict[str, object], expected: set[str]
) -> None:
    """Those of the encrypted secret store, too; one Role for each namespace."""
    values = {"persistence": {"config": config}}
    objects = list(yaml.safe_load_all(shipped.rendered(tmp_path, values)))
    granted = [
        obj["metadata"]["namespace"]
        for obj in objects
        if obj and obj["kind"] == "Role" and obj["metadata"]["name"].endswith("persistence-objects")
    ]

    assert sorted(granted) == sorted(expected)


def test_the_values_schema_lists_all_flags() -> None:
    """Except for flags with which the daemon only prints something and exits."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    patterns = schema["properties"]["extraArgs"]["patternProperties"]

    listed = [name for pattern in patterns for name in pattern[2:-2].split("|")]
    printing = {"help", "help-all", "version", "write-config-to"}
    assert listed == sorted({*FLAGS, *NO_EFFECT, *ALIASES} - printing)


def test_values_and_schema_have_the_same_keys() -> None:
    """The schema also allows nothing without a default."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    # Charts that contain this one may hand down `global`.
    assert values.keys() == schema["properties"].keys() - {"global"}
    for name, part in schema["properties"].items():
        if part.get("properties"):
            assert values[name].keys() == part["properties"].keys(), name
