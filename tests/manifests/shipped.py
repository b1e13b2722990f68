"""The manifests as they are shipped: parsed, rendered, and the rights that they grant."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests import servers
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
CHART = MANIFESTS / "chart"
SEPARATE_ACCOUNTS = MANIFESTS / "components" / "service-account-credentials"
MACHINES = MANIFESTS / "components" / "machines"
TOKENS = MANIFESTS / "components" / "bootstrap-tokens"
FLOW_CONTROL = MANIFESTS / "components" / "flow-control"
KUBERMATIC = MANIFESTS / "components" / "kubermatic"
KUBERMATIC_WEBHOOK = MANIFESTS / "components" / "kubermatic-webhook"
TOKENS_POLICY = TOKENS / "policy" / "policy.yaml"
MACHINE_RIGHTS = (MACHINES / "rbac.yaml", TOKENS_POLICY, TOKENS / "rbac.yaml")
"""Rights of the daemon for Machines, and the policy that limits them."""

NAMESPACE = "kube-system"
NAME = "cloud-controller-manager"
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}"

IMAGE = "registry.example/kube-ccm:0.1.0"
PROVIDER = "acme"
"""Values that base and chart leave to the user."""

Object = dict[str, Any]

POLICY = "ValidatingAdmissionPolicy"

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_PLURALS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": f"/apis/{_RBAC}/v1/namespaces/{{namespace}}/roles",
    "RoleBinding": f"/apis/{_RBAC}/v1/namespaces/{{namespace}}/rolebindings",
    "ClusterRole": f"/apis/{_RBAC}/v1/clusterroles",
    "ClusterRoleBinding": f"/apis/{_RBAC}/v1/clusterrolebindings",
    POLICY: f"{_ADMISSION}/validatingadmissionpolicies",
    f"{POLICY}Binding": f"{_ADMISSION}/validatingadmissionpolicybindings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource, as one role grants it.

    Attributes:
        role: kind and name of the role.
        group: API group; empty is the core.
        resource: plural, with a subresource after a slash.
        verb: what is allowed.
        names: of objects; empty means all.
        namespace: of objects; empty means all.
    """

    role: str
    group: str
    resource: str
    verb: str
    names: tuple[str, ...] = ()
    namespace: str = ""

    def covers(self, entry: Mapping[str, Any]) -> bool:
        """Whether a request of the audit log needs it."""
        about = entry.get("objectRef", {})
        resource = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
        return (
            (about.get("apiGroup", ""), resource, entry["verb"])
            == (self.group, self.resource, self.verb)
            and (not self.names or about.get("name") in self.names)
            and self.namespace in ("", about.get("namespace"))
        )


def files(folder: Path = MANIFESTS) -> Sequence[Path]:
    """The manifests outside of the chart, without those for kustomize only."""
    return sorted(
        path
        for path in folder.rglob("*.yaml")
        if CHART not in path.parents and path.name != "kustomization.yaml"
    )


def parsed(text: str) -> list[Object]:
    """The objects of a YAML stream."""
    return [each for each in yaml.safe_load_all(text) if each]


def objects(*paths: Path) -> list[Object]:
    """All objects of some files."""
    return [each for path in paths for each in parsed(path.read_text())]


def by_name(found: Iterable[Object]) -> dict[tuple[str, str, str], Object]:
    """Objects by kind, namespace and name."""
    keyed = {}
    for each in found:
        meta = each["metadata"]
        key = (each["kind"], meta.get("namespace", ""), meta["name"])
        assert key not in keyed, f"{key} is there twice"
        keyed[key] = each
    return keyed


def only(found: Iterable[Object], kind: str) -> Object:
    """The one object of a kind."""
    (one,) = [each for each in found if each["kind"] == kind]
    return one


def deployment() -> Object:
    """The spec of the Deployment outside of the chart."""
    return dict(only(objects(MANIFESTS / "deployment.yaml"), "Deployment")["spec"])


def rights(found: Iterable[Object]) -> Iterator[Right]:
    """Every verb of every rule of all roles."""
    for role in found:
        if role["kind"] not in ("Role", "ClusterRole"):
            continue
        for rule in role["rules"]:
            for group in rule.get("apiGroups", ()):
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield Right(
                            role=f"{role['kind']} {role['metadata']['name']}",
                            group=group,
                            resource=resource,
                            verb=verb,
                            names=tuple(rule.get("resourceNames", ())),
                            namespace=role["metadata"].get("namespace", ""),
                        )


def bindings(found: Iterable[Object]) -> list[Object]:
    """All bindings, of both kinds."""
    return [each for each in found if each["kind"].endswith("RoleBinding")]


def identity_files(*, separate_accounts: bool = False) -> list[Path]:
    """Files with the service accounts and rights of the daemon."""
    base = [MANIFESTS / "serviceaccount.yaml", MANIFESTS / "rbac.yaml"]
    return [*base, SEPARATE_ACCOUNTS / "rbac.yaml"] if separate_accounts else base


def collection(kind: str, namespace: str) -> str:
    """The path that objects of a kind are posted to."""
    return _PLURALS[kind].format(namespace=namespace)


def run(program: str, *words: str | Path, home: Path) -> tuple[int, str]:
    """Run one of the real programs; its exit status and output (both streams)."""
    done = subprocess.run(
        [servers.require_assets() / program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "HOME": str(home)},
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout


def overlay(home: Path, *, components: Sequence[Path] = (), base: Path = MANIFESTS) -> Path:
    """Write an overlay with an image and a provider, as users do."""
    folder = home / "overlay"
    folder.mkdir()
    # kustomize wants paths without a way back to itself.
    up = Path("../" * len(folder.resolve().parts))
    below, *others = (str(up / path.relative_to("/")) for path in (base, *components))
    at = "/spec/template/spec/containers/0"
    patch = [
        {"op": "add", "path": f"{at}/image", "value": IMAGE},
        {"op": "add", "path": f"{at}/args/-", "value": f"--cloud-provider={PROVIDER}"},
    ]
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [below],
        "components": others,
        "patches": [{"target": {"kind": "Deployment"}, "patch": json.dumps(patch)}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return folder


def rendered(
    home: Path, values: Mapping[str, Any] | None = None, *, namespace: str = NAMESPACE
) -> str:
    """Render the chart with helm, with an image, a provider and these values."""
    status, output = helm_template(home, values, namespace=namespace)
    assert status == 0, output
    return output


def helm_template(
    home: Path, values: Mapping[str, Any] | None = None, *, namespace: str = NAMESPACE
) -> tuple[int, str]:
    """The exit status of `helm template` too."""
    words = ("template", "release", CHART, "--namespace", namespace)
    return run("helm", *words, *value_files(home, values or {}), home=home)


def value_files(home: Path, values: Mapping[str, Any]) -> Sequence[str | Path]:
    """Return the arguments of helm for an image, a provider and these values."""
    needed = {"image": {"repository": IMAGE.partition(":")[0]}, "cloud": {"provider": PROVIDER}}
    found: list[str | Path] = []
    for name, content in (("needed", needed), ("values", values)):
        file = home / f"{name}.yaml"
        file.write_text(json.dumps(content))
        found += ["--values", file]
    return found


def kustomized(home: Path, folder: Path) -> str:
    """Build a folder with kustomize."""
    status, output = run("kubectl", "kustomize", folder, home=home)
    assert status == 0, output
    return output


CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


Values = Mapping[str, Any]


EVERYTHING: Values = {
    "name": "blue",
    "image": {"repository": "registry.example/kube-ccm", "digest": f"sha256:{'0' * 64}"},
    "imagePullSecrets": ["pull"],
    "replicas": 3,
    "cloud": {"provider": "acme", "config": {"content": "url: http://cloud\ntoken: secret\n"}},
    "credentials": {"data": {"CLOUD_TOKEN": "secret"}},
    "extraArgs": {"cluster-name": "blue", "v": 4, "allow-untagged-cloud": True},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "cloud-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/cloud-ca"}],
    "serviceAccountCredentials": True,
    "extraLeases": ["shared"],
    "serviceAccount": {"annotations": {"example.com/role": "ccm"}},
    "securePort": 20258,
    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"example.com/team": "cloud"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "extraTolerations": [{"key": "example.com/dedicated", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "webhook": {
        "enabled": True,
        "tlsSecret": "webhook-tls",
        "caCertificate": CERTIFICATE,
        "clientCaConfigMap": "api-server-ca",
    },
    "machines": {"enabled": True, "namespace": "kube-public"},
    "kubermatic": {
        "enabled": True,
        "namespace": "kube-public",
        "name": "blue",
        "leaseNamespace": "kube-node-lease",
    },
    "flowControl": {"enabled": True, "nominalConcurrencyShares": 10},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
    "persistence": {
        "config": {
            "instances": [{"kubernetes": None}],
            "secrets": {"kubernetes": None},
        },
        "existingClaim": "store",
        "existingSecret": "store-keys",
    },
}


VARIANTS: Mapping[str, Values] = {
    "defaults": {},
    "everything": EVERYTHING,
    "pod-network": {
        "hostNetwork": False,
        "replicas": 1,
        "priorityClassName": "",
        "networkPolicy": {"enabled": True, "from": [{"ipBlock": {"cidr": "10.0.0.0/24"}}]},
        "machines": {"enabled": True, "bootstrapTokens": True},
    },
    "no-cloud-config": {"cloud": {"provider": "env", "config": {"existingSecret": ""}}},
    "given-secrets": {
        "cloud": {"provider": "env", "config": {"existingSecret": "mine", "key": "cloud.conf"}},
        "credentials": {"existingSecret": "token"},
    },
    "webhook-with-an-injector": {
        "webhook": {
            "enabled": True,
            "tlsSecret": "webhook-tls",
            "annotations": {"cert-manager.io/inject-ca-from": "kube-system/webhook"},
        }
    },
    "kubermatic": {"kubermatic": {"enabled": True}},
    "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}
