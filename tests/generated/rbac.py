"""RBAC roles of the machine commands, generated from the declarations of their controllers.

They are in the folder with the manifests of each command, and in the Helm chart. `control.yaml` is
for the cluster with the Machines, `target.yaml` for the cluster that the machines join. The
Kustomize component `bootstrap-tokens` has the permissions in the target cluster that only some
MachineClasses need. If both clusters are one, all three apply to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ccm.app.clients import ACCOUNTS_NAMESPACE, OWN_CLUSTER
from ccm.app.machines.commands import COMMANDS, MachineCommand
from ccm.doctor.permissions import Permission, needed_permissions
from ccm.kube.events import DEFAULT_NAMESPACE
from ccm.machines.flags import CONTROL, TARGET
from ccm.model.names import LABEL_APP, LABEL_INSTANCE
from tests.generated import GENERATED, ROOT

FOLDER = ROOT / "manifests"

TOKENS = "bootstrap-tokens"
"""Kustomize component with the permissions that only some MachineClasses need."""

_PLACEHOLDER = "NAMESPACE"
"""Placeholder for the namespace of Machines, which is a value of the chart."""

_LEASE = "lease-placeholder"
"""Placeholder for name and namespace of the Lease, which extraArgs of the chart may set."""

_GROUP = "rbac.authorization.k8s.io"
_VERBS = ("list", "watch", "get", "create", "update", "patch", "delete")
_ABOUT = {
    CONTROL: "the cluster of its Machines and Lease, in the\n# namespace of the flag --namespace.",
    TARGET: "the cluster that machines join.",
    TOKENS: "the cluster that machines join, for\n"
    "# classes with bootstrap tokens. Never apply it without the policy of this component.",
}

Object = dict[str, Any]


def needed(command: MachineCommand, *flags: str) -> dict[str, list[Permission]]:
    """Return the permissions of a command with these flags, by role of the cluster."""
    # With two different kubeconfigs, each permission belongs to one of the clusters.
    words = [*flags, *(f"--{role}-kubeconfig={role}" for role in (CONTROL, TARGET))]
    options = command.read([*words, *(["--cloud-provider=any"] if command.has_cloud else [])])
    assert not isinstance(options, str)
    all_needs = needed_permissions(options)
    return {
        CONTROL: [need for need in all_needs if need.cluster == OWN_CLUSTER],
        TARGET: [need for need in all_needs if need.cluster == TARGET and not need.optional],
        TOKENS: [need for need in all_needs if need.cluster == TARGET and need.optional],
    }


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of each file."""
    for command in COMMANDS.values():
        if command.controllers:
            for role, text in _texts(command).items():
                yield _file(FOLDER / command.name, role), text
            chart = FOLDER / "chart" / "templates" / f"{command.name}-rbac.yaml"
            yield chart, _in_the_chart(command)
    yield FOLDER / "chart" / "templates" / "kubermatic.yaml", _kubermatic_chart()


def _file(folder: Path, role: str) -> Path:
    return folder / TOKENS / "rbac.yaml" if role == TOKENS else folder / f"{role}.yaml"


def _texts(command: MachineCommand, *flags: str, home: str = DEFAULT_NAMESPACE) -> dict[str, str]:
    return {
        role: _written(command.name, role, role_needs, home)
        for role, role_needs in needed(command, f"--namespace={home}", *flags).items()
        if role_needs
    }


def objects(
    name: str, role: str, permissions: Iterable[Permission], home: str = DEFAULT_NAMESPACE
) -> Iterator[Object]:
    """Yield the roles and role bindings of a service account.

    Args:
        name: name of the service account; part of the names of its roles.
        role: role of the cluster, or `TOKENS`.
        permissions: permissions in that cluster.
        home: namespace of Machines. Several namespaces of a control cluster can have Machines, so
            the name of each role outside `home` ends with `:` and `home`.
    """
    by_place: dict[str, list[Permission]] = {}
    for need in permissions:
        by_place.setdefault(need.namespace, []).append(need)
    for namespace, there in sorted(by_place.items()):
        kind = "Role" if namespace else "ClusterRole"
        suffix = f":{home}" if role == CONTROL and namespace != home else ""
        metadata: Object = {"name": f"system:{name}:{role}{suffix}"}
        if namespace:
            metadata["namespace"] = namespace
        metadata["labels"] = {LABEL_APP: name, LABEL_INSTANCE: name}
        head = {"apiVersion": f"{_GROUP}/v1"}
        yield {**head, "kind": kind, "metadata": metadata, "rules": list(_rules(there))}
        yield {
            **head,
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": ACCOUNTS_NAMESPACE}],
        }


def _rules(permissions: Iterable[Permission]) -> Iterator[Object]:
    verbs: dict[tuple[str, str, str], set[str]] = {}
    for need in permissions:
        verbs.setdefault((need.group, need.resource, need.name), set()).add(need.verb)
    for (group, resource, name), of in sorted(verbs.items()):
        rule: Object = {"apiGroups": [group], "resources": [resource]}
        if name:
            rule["resourceNames"] = [name]
        yield {**rule, "verbs": sorted(of, key=_VERBS.index)}


def _written(name: str, role: str, permissions: Iterable[Permission], home: str) -> str:
    class Plain(yaml.SafeDumper):
        """YAML dumper that writes no anchors and aliases."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    documents = list(objects(name, role, permissions, home))
    text = yaml.dump_all(
        documents, Dumper=Plain, sort_keys=False, default_flow_style=None, width=100
    )
    return f"# Permissions of {name} in {_ABOUT[role]}\n# {GENERATED} of its controllers.\n{text}"


def _in_the_chart(command: MachineCommand) -> str:
    """Return the chart's template.

    Namespaces and the Lease are chart values. The chart omits the roles for the target cluster if
    the target cluster has its own kubeconfig.
    """
    name = command.name
    first, *others = name.split("-")
    values = f".Values.{first}{''.join(map(str.capitalize, others))}"
    account = f"name: {name}, namespace: "
    lease_flag = f"--leader-elect-resource-name={_LEASE}"
    documents = _texts(command, lease_flag, home=_PLACEHOLDER)
    documents[CONTROL] = _events_apart(documents[CONTROL], values) + _lease_apart(command, values)
    parts = {
        role: text.replace(_PLACEHOLDER, f"{{{{ {values}.namespace }}}}")
        .replace(f"namespace: {_LEASE}", f"namespace: {{{{ {_lease_namespace(values)} }}}}")
        .replace(
            f"[{_LEASE}]",
            f'[{{{{ index {values}.extraArgs "leader-elect-resource-name" | default "{name}" }}}}]',
        )
        .replace(f"{account}{ACCOUNTS_NAMESPACE}}}", f"{account}{{{{ .Release.Namespace }}}}}}")
        .strip()
        for role, text in documents.items()
    }
    tokens = ""
    if TOKENS in parts:
        tokens = f"{{{{- if {values}.bootstrapTokens }}}}\n---\n{parts[TOKENS]}\n{{{{- end }}}}\n"
    return (
        f"{{{{- if {values}.enabled }}}}\n{parts[CONTROL]}\n"
        f"{{{{- if not {values}.targetKubeconfigSecret }}}}\n---\n{parts[TARGET]}\n"
        f"{tokens}{{{{- end }}}}\n{{{{- end }}}}\n"
    )


def _lease_apart(command: MachineCommand, values: str) -> str:
    """Return the role of a Lease that is not in the namespace of the Machines."""
    flags = (f"--leader-elect-resource-{part}={_LEASE}" for part in ("name", "namespace"))
    text = _texts(command, *flags, home=_PLACEHOLDER)[CONTROL]
    apart = [part for part in text.split("---\n") if f"  namespace: {_LEASE}\n" in part]
    # Events have a role of that name in the namespace `default`, which may have the Lease too.
    roles = "---\n".join(apart).replace(f":{CONTROL}:", ":lease:")
    condition = f"{{{{- if ne ({_lease_namespace(values)}) {values}.namespace }}}}"
    return f"{condition}\n---\n{roles}{{{{- end }}}}\n"


def _lease_namespace(values: str) -> str:
    return f'include "kube-ccm.machineLeaseNamespace" {values}'


def _events_apart(text: str, values: str) -> str:
    """Make the chart omit roles in the namespace `default` if Machines are in that namespace.

    These roles permit events about CRDs, as the role of the Machines' namespace does.
    """
    head, *others = text.split("---\n")
    apart = [part for part in others if f"  namespace: {DEFAULT_NAMESPACE}\n" in part]
    result = "---\n".join([head, *(part for part in others if part not in apart)])
    if not apart:
        return result
    condition = f'{{{{- if ne {values}.namespace "{DEFAULT_NAMESPACE}" }}}}'
    return "---\n".join([f"{result}{condition}\n", *apart]) + "{{- end }}\n"


_COMPONENT = FOLDER / "components" / "kubermatic" / "rbac.yaml"
_KUBERMATIC = {
    "  labels:\n"
    f"    {LABEL_APP}: cloud-controller-manager\n"
    f"    {LABEL_INSTANCE}: cloud-controller-manager\n": (
        '  labels: {{- include "kube-ccm.labels" . | nindent 4 }}\n'
    ),
    "subjects:\n"
    "  - kind: ServiceAccount\n"
    "    name: cloud-controller-manager\n"
    f"    namespace: {ACCOUNTS_NAMESPACE}\n": (
        'subjects: {{- include "kube-ccm.subject" . | nindent 2 }}\n'
    ),
    "system:cloud-controller-manager:": "system:{{ .Values.name }}:",
}
"""Texts of the component, and those of the chart in their place."""

_CREATE = """\
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create]
"""


def _kubermatic_chart() -> str:
    """Return the chart's copy of the roles of the component `kubermatic`."""
    text = re.sub(r"^ *#.*\n", "", _COMPONENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for old, new in _KUBERMATIC.items():
        text = text.replace(old, new)
    parts = []
    for part in text.split("---\n"):
        of_lease = ":kubermatic-lease\n" in part
        value = "leaseNamespace" if of_lease else "namespace"
        edited = part.replace(
            f"  namespace: {ACCOUNTS_NAMESPACE}\n",
            f"  namespace: {{{{ .Values.kubermatic.{value} }}}}\n",
        )
        if of_lease:
            edited = edited.replace("rules:\n", _CREATE)
        elif "subjects:" in edited:
            # Informers use the daemon's account, and all else the account of the controllers.
            edited += '  {{- include "kube-ccm.machineAccount" . | nindent 2 }}\n'
        parts.append(edited)
    head = f"{{{{- if .Values.kubermatic.enabled }}}}\n# {GENERATED} in {_COMPONENT.parent.name}.\n"
    return head + "---\n".join(parts) + "{{- end }}\n"
