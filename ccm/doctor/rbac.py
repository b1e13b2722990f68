"""The roles of the commands for machines, written from what their controllers declare.

`python -m ccm.doctor.rbac` writes them beside the manifests of each command: `control.yaml` for
the cluster that has Machines, `target.yaml` for the one that they join, and the component
`bootstrap-tokens` for what only some classes want there; in one cluster all are applied. The chart
has the same. A test compares the files with what is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ccm.app.clients import ACCOUNTS_NAMESPACE, OWN
from ccm.app.machines.commands import COMMANDS, Command
from ccm.doctor.rights import Need, needs
from ccm.kube.events import DEFAULT_NAMESPACE
from ccm.machines.flags import CONTROL, TARGET
from ccm.model.names import LABEL_APP, LABEL_INSTANCE

FOLDER = Path(__file__).parents[2] / "manifests"

TOKENS = "bootstrap-tokens"
"""The component of the rights that only some classes make necessary."""

_PLACEHOLDER = "NAMESPACE"
"""Stands for the namespace of Machines, which is a value of the chart."""

_GROUP = "rbac.authorization.k8s.io"
_VERBS = ("list", "watch", "get", "create", "update", "patch", "delete")
_ABOUT = {
    CONTROL: "the cluster that has Machines and its Lease; the\n"
    "# namespace is that of the flag --namespace.",
    TARGET: "the cluster that machines join.",
    TOKENS: "the cluster that machines join, where\n"
    "# classes want bootstrap tokens. Never without the policy of this component.",
}

Object = dict[str, Any]


def needed(command: Command, *given: str) -> dict[str, list[Need]]:
    """What a command needs with these flags, by what the cluster is to it."""
    # Two clusters, so that each right is seen to belong to one.
    words = [*given, *(f"--{role}-kubeconfig={role}" for role in (CONTROL, TARGET))]
    options = command.read([*words, *(["--cloud-provider=any"] if command.has_cloud else [])])
    assert not isinstance(options, str)
    found = needs(options)
    return {
        CONTROL: [need for need in found if need.cluster == OWN],
        TARGET: [need for need in found if need.cluster == TARGET and not need.optional],
        TOKENS: [need for need in found if need.cluster == TARGET and need.optional],
    }


def files(command: Command) -> dict[Path, str]:
    """The files of a command, by their paths; none for one that has no controllers."""
    if not command.controllers:
        return {}
    found = _texts(command)
    chart = FOLDER / "chart" / "templates" / f"{command.name}-rbac.yaml"
    folder = FOLDER / command.name
    return {
        **{_file(folder, role): text for role, text in found.items()},
        chart: _in_the_chart(command.name, _texts(command, _PLACEHOLDER)),
    }


def _file(folder: Path, role: str) -> Path:
    return folder / TOKENS / "rbac.yaml" if role == TOKENS else folder / f"{role}.yaml"


def _texts(command: Command, home: str = DEFAULT_NAMESPACE) -> dict[str, str]:
    return {
        role: _written(command.name, role, each, home)
        for role, each in needed(command, f"--namespace={home}").items()
        if each
    }


def objects(
    name: str, role: str, found: Iterable[Need], home: str = DEFAULT_NAMESPACE
) -> Iterator[Object]:
    """Roles and bindings of an account.

    Args:
        name: of the account, and in the names of its roles.
        role: what the cluster is to it.
        found: what it needs there.
        home: the namespace of Machines. Several may be in one cluster, each with an account of its
            own, so that the names of roles elsewhere in that cluster end with it.
    """
    by_place: dict[str, list[Need]] = {}
    for need in found:
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


def _rules(found: Iterable[Need]) -> Iterator[Object]:
    verbs: dict[tuple[str, str, str], set[str]] = {}
    for need in found:
        verbs.setdefault((need.group, need.resource, need.name), set()).add(need.verb)
    for (group, resource, name), of in sorted(verbs.items()):
        rule: Object = {"apiGroups": [group], "resources": [resource]}
        if name:
            rule["resourceNames"] = [name]
        yield {**rule, "verbs": sorted(of, key=_VERBS.index)}


def _written(name: str, role: str, found: Iterable[Need], home: str) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Without the short forms for what stands twice."""

        def ignore_aliases(self, _data: Any) -> bool:
            """Never one."""
            return True

    made = list(objects(name, role, found, home))
    text = yaml.dump_all(made, Dumper=Plain, sort_keys=False, default_flow_style=None, width=100)
    return (
        f"# What {name} asks of {_ABOUT[role]}\n"
        f"# Written by `python -m ccm.doctor.rbac` from what its controllers declare.\n{text}"
    )


def _in_the_chart(name: str, found: Mapping[str, str]) -> str:
    """The same as a template, whose namespaces are values; a cluster elsewhere is not granted."""
    first, *others = name.split("-")
    values = f".Values.{first}{''.join(map(str.capitalize, others))}"
    account = f"name: {name}, namespace: "
    parts = {
        role: _events_apart(text, values)
        .replace(_PLACEHOLDER, f"{{{{ {values}.namespace }}}}")
        .replace(f"{account}{ACCOUNTS_NAMESPACE}}}", f"{account}{{{{ .Release.Namespace }}}}}}")
        .strip()
        for role, text in found.items()
    }
    tokens = ""
    if TOKENS in parts:
        tokens = f"{{{{- if {values}.bootstrapTokens }}}}\n---\n{parts[TOKENS]}\n{{{{- end }}}}\n"
    return (
        f"{{{{- if {values}.enabled }}}}\n{parts[CONTROL]}\n"
        f"{{{{- if not {values}.targetKubeconfigSecret }}}}\n---\n{parts[TARGET]}\n"
        f"{tokens}{{{{- end }}}}\n{{{{- end }}}}\n"
    )


def _events_apart(text: str, values: str) -> str:
    """The roles in the namespace of events about CRDs, unless Machines are in that one, too."""
    head, *others = text.split("---\n")
    apart = [one for one in others if f"  namespace: {DEFAULT_NAMESPACE}\n" in one]
    found = "---\n".join([head, *(one for one in others if one not in apart)])
    if not apart:
        return found
    condition = f'{{{{- if ne {values}.namespace "{DEFAULT_NAMESPACE}" }}}}'
    return "---\n".join([f"{found}{condition}\n", *apart]) + "{{- end }}\n"


if __name__ == "__main__":
    for one in COMMANDS.values():
        for path, text in files(one).items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
