"""What a controller declares about itself: names, flags, rights, and how it is made.

A manifest is read before anything runs, by `--help` and on a standby. So it is light: the
controller itself is imported by `build` alone, and what only types need is not imported at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ccm.base.flags import Fault, Gate, Section

if TYPE_CHECKING:
    from ccm.cloud.calls.handle import Handle
    from ccm.cloud.interface import Cloud
    from ccm.cloud.lookup import SharedInventory
    from ccm.kube.client import Client
    from ccm.kube.informer import Informers
    from ccm.runtime.controller import Runnable
    from ccm.runtime.deletions import DeletionRecord
    from ccm.runtime.writer import Recorder

GENERIC = Section("generic")
MISC = Section("misc")
"""Sections of flags that controllers share with the daemon, as in the Go reference."""

_DELETIONS = Section("deletions", ours=True)

F = TypeVar("F")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MassDeletionFlags:
    """What all controllers that delete have in common."""

    allow_mass_deletion: bool = _DELETIONS.flag(
        False,
        "Delete nodes, load balancers and routes also where so many would go at once that "
        "something else is probably wrong: the cloud denies more than a third of the nodes, or "
        "more than a third of the Services or nodes are missing though nobody saw them deleted.",
    )


def _selector(value: str) -> str:
    from ccm.model.selectors import BadSelectorError, parse_labels

    try:
        parse_labels(value)
    except BadSelectorError:
        return "must be a label selector such as cloud=ours,!foreign"
    return ""


@dataclass(frozen=True, kw_only=True)
class OwnNodesFlags:
    """The flag that all controllers read that look after nodes."""

    own_nodes: str = Section("nodes", ours=True).flag(
        "",
        "Label selector of the nodes that are ours. About others the cloud is not asked, and "
        "nothing of them is changed, as is the rule for nodes whose provider ID names another "
        "cloud. Empty means that all may be ours.",
        check=lambda value: _selector(value) if value else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """Another cluster than our own.

    Attributes:
        client: the API client with this end of its user agent.
        recorder: the event recorder of a component, by the component's name.
        informers: the shared caches.
    """

    client: Callable[[str], Client]
    recorder: Callable[[str], Recorder]
    informers: Informers


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """What controllers are made of.

    Attributes:
        client: the API client of a service account, by the account's name.
        recorder: the event recorder of a component, by the component's name.
        informers: the shared caches.
        handle: the handle to the cloud.
        inventory: the shared listing of instances; None where the provider has none.
        gates: feature gates and whether each is on.
        deletions: what the brakes remember, and where what they hold back is shown.
        clusters: those that are not our own, by what they are to a controller.
        shared: see `once`.
    """

    client: Callable[[str], Client]
    recorder: Callable[[str], Recorder]
    informers: Informers
    handle: Handle
    inventory: SharedInventory | None
    gates: Mapping[str, bool]
    deletions: DeletionRecord
    clusters: Mapping[str, ClusterContext] = field(default_factory=dict)
    shared: dict[type, Any] = field(default_factory=dict)

    def once(self, kind: type[T], make: Callable[[], T]) -> T:
        """What several controllers stand on: made by the first that asks, the same for all."""
        if kind not in self.shared:
            self.shared[kind] = make()
        return cast("T", self.shared[kind])

    def at(self, role: str) -> ClusterContext:
        """The cluster that is so to a controller; our own if no other one is."""
        own = ClusterContext(client=self.client, recorder=self.recorder, informers=self.informers)
        return self.clusters.get(role, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Generic[F]):
    """A controller as people, the API server and dashboards know it, and how it is made.

    The four names are promises: none is ever changed or removed. `F` is the class of the
    controller's flags. The functions that end in a sentence say nothing when all is well.

    Attributes:
        name: canonical; in flags, logs and health checks.
        alias: the short name that `--controllers` accepts too.
        client: user-agent suffix and service account; two controllers may share one.
        metric: label value of `running_managed_controllers`.
        former: a name from before it had the canonical one, or empty; accepted too.
        follows: resources it lists and watches, through the shared caches.
        acts: (verb, resource) it does beyond that, under its own account if it has one.
        named: (verb, resource, name) it does to single objects that have no namespace.
        local: (verb, resource, namespace) it does in one namespace only; `list` and `watch` are
            those of the shared caches.
        optional: (verb, resource, namespace) that only some objects make necessary.
        groups: API groups of resources that are not of the core, by the plural.
        roles: in which clusters it needs a (resource, namespace), by what they are to it; see
            `ControllerContext.at`. Without it our own.
        off_by_default: `*` does not turn it on; a name does.
        gates: feature gates that only this controller reads.
        faults: settings that make no sense together.
        turned_off: which flag turns the controller off.
        lacks: what the provider lacks for it.
        wrong: which setting keeps it from starting. The others can do their work.
        build: makes the controller, once nothing of the above speaks against it.
        code: module of the controller, to be imported early; empty = `controller` beside `build`.
        meters: module of its metrics; empty = `metrics` beside `build`.
    """

    name: str
    alias: str
    client: str
    metric: str
    former: str = ""
    follows: tuple[str, ...] = ("nodes",)
    acts: tuple[tuple[str, str], ...]
    named: tuple[tuple[str, str, str], ...] = ()
    local: Callable[[F], Iterable[tuple[str, str, str]]] = lambda _flags: ()
    optional: tuple[tuple[str, str, str], ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    roles: Callable[[F, str, str], Collection[str]] = lambda _flags, _resource, _namespace: ("",)
    off_by_default: bool = False
    gates: tuple[Gate, ...] = ()
    faults: Callable[[F], Iterable[Fault]] = lambda _flags: ()
    turned_off: Callable[[F], str] = lambda _flags: ""
    lacks: Callable[[Cloud], str]
    wrong: Callable[[F], str] = lambda _flags: ""
    build: Callable[[ControllerContext, F], Runnable]
    code: str = ""
    meters: str = ""

    @property
    def modules(self) -> tuple[str, str]:
        """Modules of the controller and of its metrics."""
        folder = self.build.__module__.rpartition(".")[0]
        return self.code or f"{folder}.controller", self.meters or f"{folder}.metrics"


def lacks_instances(cloud: Cloud) -> str:
    """`Manifest.lacks` of a controller that asks about instances."""
    found = cloud.instances is not None or cloud.instances_v1 is not None
    return "" if found else "the provider offers no instances"
