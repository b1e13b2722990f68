"""The kinds this server serves, as one table: names, scope, verbs and sub-resources."""

from __future__ import annotations

import dataclasses

from ccm.sandbox.apiserver import errors

ALL_VERBS = (
    "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
)  # fmt: skip
STATUS_VERBS = ("get", "patch", "update")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind: how it is called, where it lives, and what may be done to it.

    `selectable` lists the fields that a field selector may name beside `metadata.name`
    and `metadata.namespace`, each with the paths it is read from (the first that is
    not empty) and its value when it is absent.
    """

    kind: str
    plural: str
    singular: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    status: bool = False
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    selectable: tuple[tuple[str, tuple[str, ...], str], ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        """The kind of a list of these."""
        return f"{self.kind}List"

    @property
    def prefix(self) -> str:
        """Where the group's paths begin, such as `/api/v1`."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def resource(self) -> errors.Resource:
        """How errors name this kind."""
        return errors.Resource(group=self.group, plural=self.plural, kind=self.kind)


def _same(*paths: str) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    return tuple((path, (path,), "") for path in paths)


NODES = Kind(
    kind="Node",
    plural="nodes",
    singular="node",
    namespaced=False,
    status=True,
    short_names=("no",),
    selectable=(("spec.unschedulable", ("spec.unschedulable",), "false"),),
)
NAMESPACES = Kind(
    kind="Namespace",
    plural="namespaces",
    singular="namespace",
    namespaced=False,
    status=True,
    short_names=("ns",),
    selectable=(*_same("status.phase"), ("name", ("metadata.name",), "")),
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)
EVENTS = Kind(
    kind="Event",
    plural="events",
    singular="event",
    short_names=("ev",),
    selectable=(
        *_same(
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "type",
        ),
        ("source", ("source.component", "reportingComponent"), ""),
    ),
)
CONFIG_MAPS = Kind(kind="ConfigMap", plural="configmaps", singular="configmap", short_names=("cm",))
SECRETS = Kind(kind="Secret", plural="secrets", singular="secret", selectable=_same("type"))
SERVICE_ACCOUNTS = Kind(
    kind="ServiceAccount",
    plural="serviceaccounts",
    singular="serviceaccount",
    short_names=("sa",),
)
PODS = Kind(
    kind="Pod",
    plural="pods",
    singular="pod",
    status=True,
    short_names=("po",),
    categories=("all",),
    selectable=(
        *_same(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        ("spec.hostNetwork", ("spec.hostNetwork",), "false"),
    ),
)
SERVICES = Kind(
    kind="Service",
    plural="services",
    singular="service",
    status=True,
    short_names=("svc",),
    categories=("all",),
    selectable=_same("spec.clusterIP", "spec.type"),
)
DEPLOYMENTS = Kind(
    kind="Deployment",
    plural="deployments",
    singular="deployment",
    group="apps",
    status=True,
    short_names=("deploy",),
    categories=("all",),
)
"""Stored only: nobody makes pods of it. `kubectl expose` reads its labels and ports."""

LEASES = Kind(kind="Lease", plural="leases", singular="lease", group="coordination.k8s.io")

REVIEWS = Kind(
    kind="SelfSubjectAccessReview",
    plural="selfsubjectaccessreviews",
    singular="selfsubjectaccessreview",
    group="authorization.k8s.io",
    namespaced=False,
    verbs=("create",),
)
"""Asked by `kubectl auth can-i`; everything is allowed, and nothing is stored."""

KINDS = (
    CONFIG_MAPS, EVENTS, NAMESPACES, NODES, PODS, SECRETS, SERVICE_ACCOUNTS, SERVICES,
    DEPLOYMENTS, REVIEWS, LEASES,
)  # fmt: skip

BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
"""Every kind by group, version and plural, as a request path names it."""
