"""Runs the daemon's controllers over a copy of the cluster, and gathers what they would do.

The copy lies in the in-memory API server, which the controllers may write. It holds what the
daemon's types hold; objects that cannot be decoded are known by their keys, as they are to a
daemon. The copy has no way to the API server it was read from, and checks nothing, since that
server has accepted its objects.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, Generic, TypeVar

import msgspec

from ccm.app import provider
from ccm.app.controllers import Controllers
from ccm.app.election import migration_plan
from ccm.app.health import Vitals
from ccm.app.options import Options, names
from ccm.base import clock, redact
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Cloud
from ccm.gardener import crds
from ccm.gardener.codec import MACHINE_CLASSES, MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES
from ccm.kube import errors
from ccm.kube.client import Client, Page
from ccm.kube.resources import CONFIG_MAPS, CRDS, NAMESPACES, NODES, SECRETS, SERVICES, Kind
from ccm.machines import crdguard, served
from ccm.machines.caches import SYSTEM_NAMESPACE
from ccm.machines.classes import refusals, resolve
from ccm.machines.reasons import REASON_SPEC_INVALID
from ccm.model import CustomResourceDefinition, ObjectMeta, ObjectReference
from ccm.model.machines import document_of
from ccm.model.meta import KubeObject
from ccm.model.names import REASON_DELETION_HELD, WARNING
from ccm.planning import changes
from ccm.planning.changes import Action, Change, Forecast, Subject, Told
from ccm.planning.cloud import AskingHandle, Ledger, Pending
from ccm.planning.timeloop import held, hurrying
from ccm.runtime import deletions
from ccm.testing.apiserver import kinds, schema, store
from ccm.testing.apiserver.transport import MemoryTransport

T = TypeVar("T")
K = TypeVar("K", bound=KubeObject)

_EVERY_CHANGE = 10_000_000

LEAST_S = 90.0
"""Shortest time that is looked ahead: a deletion, and what follows from it at the slow pace of
routes and load balancers."""

MARGIN_S = 30.0
"""Time for what follows from the last thing that the daemon waits for."""

ANSWER_S = 30.0
"""Longest time for one answer of the API server, however often it asks to be asked again."""

SPARE_S = 0.5
"""Time for a second answer to come, and for what is done about it."""

SHOWN = 5
"""Most objects that are named of those about which the cloud gave no answer."""

_OF_MACHINES = (MACHINES, MACHINE_CLASSES, MACHINE_SETS, MACHINE_DEPLOYMENTS)
_GUARDED = (MACHINES, MACHINE_SETS, MACHINE_DEPLOYMENTS)

FOLLOWED: tuple[Kind[Any], ...] = (NODES, SERVICES, *_OF_MACHINES, SECRETS)
"""Kinds that controllers follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Generic[K]):
    """All objects of one kind.

    Attributes:
        before: by key, as they were read.
        now: by key, as they are by now.
        malformed: keys of those that cannot be decoded.
        touched: key -> when it was first written, or went, by the monotonic clock.
        last: key -> the last state of each that was touched.
    """

    before: Mapping[str, K]
    now: Mapping[str, K]
    malformed: Collection[str]
    touched: Mapping[str, float]
    last: Mapping[str, K]


@dataclass(slots=True)
class _History:
    touched: dict[str, float] = field(default_factory=dict)
    last: dict[str, bytes] = field(default_factory=dict)


class ClusterCopy:
    """The copy; it makes clients as `ccm.app.clients.Clients` does.

    Attributes:
        served: plurals of the machine objects that the cluster serves; None: not known.
    """

    def __init__(self) -> None:
        self.served: Collection[str] | None = None
        self._histories: dict[str, _History] = defaultdict(_History)
        self._loaded: dict[Kind[Any], tuple[Mapping[str, Any], Collection[str]]] = {}
        self._store = store.Store(history=_EVERY_CHANGE, observe=self._note)
        self._transport = MemoryTransport(self._store, is_strict=False)

    def serve(self, plurals: Collection[str]) -> None:
        """Serve the machine objects of these plurals, as the cluster does."""
        self.served = plurals
        for definition in crds.DEFINITIONS:
            kind = kinds.custom(dict(crds.manifest(definition)))
            if kind.plural in plurals:
                self._store.kinds.replace(kind.group, kind.plural, kind)

    def load(
        self, kind: Kind[K], objects: Mapping[str, K], *, malformed: Collection[str] = ()
    ) -> None:
        """These are all the objects of a kind."""
        self._loaded[kind] = objects, malformed
        served = self._served(kind)
        assert served is not None, kind.plural
        for key, obj in objects.items():
            body = msgspec.to_builtins(document_of(obj))
            # An odd time or number, which that server let pass, stays as it is.
            with suppress(schema.WrongTypeError):
                body = served.clean(body)
            self._store.restore(served, key, body)
        for key in malformed:
            namespace, _, name = key.rpartition("/")
            # No decoder takes such finalizers.
            stub = {"name": name, "namespace": namespace, "finalizers": 0}
            self._store.restore(served, key, {"metadata": stub})

    def of(self, kind: Kind[K]) -> Copy[K]:
        """Return the objects of a kind; none if it was not loaded."""
        served = self._served(kind)
        before, malformed = self._loaded.get(kind, ({}, ()))
        history = self._histories[f"{kind.plural}.{kind.group}"]
        stored = () if served is None else tuple(self._store.collection(served))
        return Copy(
            before=before,
            now={one.key: kind.decode(one.raw) for one in stored if one.key not in malformed},
            malformed=malformed,
            touched=history.touched,
            last={key: kind.decode(raw) for key, raw in history.last.items()},
        )

    def named(self, name: str) -> Client:
        """Return a client; all write the same copy."""
        return self._transport.client(name)

    def _served(self, kind: Kind[Any]) -> kinds.Kind | None:
        version = kind.api_version.rpartition("/")[2]
        return self._store.kinds.get(kind.group, version, kind.plural)

    def _note(self, kind: kinds.Kind, change: store.Change) -> None:
        history, key = self._histories[f"{kind.plural}.{kind.group}"], change.entry.key
        if change.type == "DELETED" or key not in history.touched:
            history.touched[key] = clock.monotonic()
        history.last[key] = change.entry.raw


class _Events:
    """Gathers what people would be told, in place of an event recorder."""

    def __init__(self) -> None:
        self.warnings: dict[tuple[Subject, str], str] = {}

    def recorder(self, component: str) -> _Events:
        """All components tell the same."""
        del component
        return self

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """The last that was told of each reason counts."""
        if kind == WARNING:
            subject = Subject(reference.kind, reference.namespace, reference.name)
            self.warnings[subject, reason] = message

    def told(self) -> Iterator[Told]:
        """All of it."""
        for (subject, reason), message in sorted(self.warnings.items()):
            yield Told(subject=subject, reason=reason, message=message)


async def forecast(
    options: Options, client: Client, cloud: Cloud, *, wait: bool = False
) -> Forecast:
    """Find out what the daemon would do with these flags, from its start on.

    Args:
        options: the daemon's flags.
        client: reads the API server.
        cloud: the open provider.
        wait: whether to wait the time between two denials and to ask again; else what the cloud
            says now is taken for what it goes on saying.

    Raises:
        KubeError: the cluster cannot be read.
    """
    cluster = await copied(options, client)
    ledger, events, vitals = Ledger(remembers=not wait), _Events(), Vitals()
    handle = provider.handle(options, cloud, make=partial(AskingHandle, ledger=ledger))
    running = Controllers(options, cluster, events, vitals, migration_plan(options))
    work = spawn(running.run(handle, election=None), name="controllers")
    try:
        if wait:
            with held():
                await _rested(work, ledger.new, _between_denials_s(options) + SPARE_S)
        ledger.remembers, began = True, clock.monotonic()
        with hurrying():
            await _rested(work, ledger.questions, horizon_s(options))
        # What they clear away when they end is not what they would do.
        left_out = {name: one.detail for name, one in vitals.controllers.items() if one.detail}
        unusable = _unusable_classes(cluster, cloud)
        every = gathered(
            cluster, ledger, lambda at: max(0, int(at - began)), namespace=options.namespace
        )
        found = Forecast(
            changes=[*_conditional(_possible(every, cluster, unusable), cluster)],
            left_out={**left_out, **_waiting(options, cluster)},
            failures=_failures(options, handle, ledger, left_out),
        )
        events.warnings |= {
            (Subject(MACHINE_CLASSES.kind, *key.split("/")), REASON_SPEC_INVALID): text
            for key, text in unusable.items()
        }
        found = replace(found, warnings=[*_left_alone(cluster)])
        return _with_events(found, events, _held(options, cluster))
    finally:
        await cancel_and_join(work)


def horizon_s(options: Options) -> float:
    """How far it is looked ahead, in seconds."""
    waits = (_between_denials_s(options), options.route_grace_period.total_seconds())
    return max(LEAST_S, MARGIN_S + max(waits))


def gathered(
    cluster: ClusterCopy, ledger: Ledger, after_s: changes.When, *, namespace: str = ""
) -> Sequence[Change]:
    """What differs in a copy of a cluster, and was called for in its cloud.

    Args:
        cluster: the copy.
        ledger: the calls.
        after_s: see `changes.When`.
        namespace: of Machines.
    """
    found: list[Change] = []
    for kind in FOLLOWED:
        copy = cluster.of(kind)
        for key, moment in copy.touched.items():
            before, now = copy.before.get(key), copy.now.get(key)
            if before is None and (now is None or kind is SECRETS):
                continue  # it comes and goes again, as a bootstrap token does with its VM
            if before is not None and before.is_deleting:
                now = copy.last[key]  # another client deleted it
            found += changes.of_object(kind.kind, before, now, after_s=after_s(moment))
    calls = [
        changes.of_call(one, after_s=after_s(one.at_s), namespace=namespace)
        for one in ledger.changes
    ]
    machines = cluster.of(MACHINES)
    transient = {
        Subject(MACHINES.kind, *key.split("/"))
        for key in machines.touched.keys() - machines.before.keys() - machines.now.keys()
    }
    # The VM of a Machine that comes and goes again does so too.
    found += [one for one in calls if one.subject not in transient]
    return changes.tidied(found)


async def copied(options: Options, client: Client) -> ClusterCopy:
    """What the daemon would follow, and what its brakes remember.

    Raises:
        KubeError: it cannot be read.
    """
    cluster = ClusterCopy()
    for kind, where in (await _followed(options, client, cluster)).items():
        objects, malformed = dict[str, Any](), list[str]()
        async for page in _pages(client, kind, where):
            objects |= {obj.key: obj for obj in page.items}
            malformed += page.malformed_keys
        cluster.load(kind, objects, malformed=malformed)
    namespace = options.leader_elect_resource_namespace
    try:
        record = await _answered(
            client.resource(CONFIG_MAPS).get(deletions.NAME, namespace=namespace), deletions.NAME
        )
    except errors.NotFound:
        return cluster
    cluster.load(CONFIG_MAPS, {record.key: record})
    return cluster


async def _followed(
    options: Options, client: Client, cluster: ClusterCopy
) -> Mapping[Kind[Any], str]:
    """What is followed -> in which namespace; and what else is asked before that is told."""
    found: dict[Kind[Any], str] = {}
    by_plural = {kind.plural: kind for kind in FOLLOWED}
    for one in names.enabled(options.controllers):
        local = [
            (resource, where) for verb, resource, where in one.local(options) if verb == "list"
        ]
        for plural, where in (*((each, "") for each in one.follows), *local):
            if plural in by_plural:
                found[by_plural[plural]] = where
    if MACHINES not in found:
        return found
    group = MACHINES.api_version
    answered = await _answered(served.answer(client, group), served.path_of(group))
    known = served.plurals(answered)
    cluster.serve(known)
    system = await _answered(client.resource(NAMESPACES).get(SYSTEM_NAMESPACE), SYSTEM_NAMESPACE)
    cluster.load(NAMESPACES, {system.key: system})
    cluster.load(CRDS, {one.key: one for one in [await _crd(client, kind) for kind in _GUARDED]})
    return {
        kind: where
        for kind, where in found.items()
        if kind not in _OF_MACHINES or kind.plural in known
    }


async def _crd(client: Client, kind: Kind[Any]) -> CustomResourceDefinition:
    """The CRD of a kind; where it may not be read, one that stays: the daemon blocks nothing then.

    Raises:
        KubeError: it cannot be read.
    """
    name = crdguard.name_of(kind)
    try:
        return await _answered(client.resource(CRDS).get(name), name)
    except (errors.Forbidden, errors.NotFound):
        return CustomResourceDefinition(metadata=ObjectMeta(name=name))


async def _pages(client: Client, kind: Kind[Any], namespace: str) -> AsyncIterator[Page[Any]]:
    pages = client.resource(kind).pages(namespace=namespace)
    with suppress(StopAsyncIteration):
        while True:
            yield await _answered(anext(pages), kind.plural)


async def _answered(question: Awaitable[T], what: str) -> T:
    """An answer of the API server, in time.

    Raises:
        KubeError: it is another one, or there is none.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            return await question
    except TimeoutError as error:
        text = f"GET {what}: the API server gave no answer within {ANSWER_S:g} s"
        raise errors.Unreachable(text, kind="timeout") from error


def _waiting(options: Options, cluster: ClusterCopy) -> Mapping[str, str]:
    """Controllers that would wait, for the API server does not know their objects."""
    if cluster.served is None:
        return {}
    why = "waiting: the definitions of Machines are missing; apply manifests/crds.yaml"
    return {
        one.name: why
        for one in names.enabled(options.controllers)
        if MACHINES.plural in one.groups and MACHINES.plural not in cluster.served
    }


def _between_denials_s(options: Options) -> float:
    """The period between two questions about a node, its jitter counted in."""
    return 1.2 * options.node_monitor_period.total_seconds()


async def _rested(work: asyncio.Task[None], questions: Pending, seconds: float) -> None:
    """Let the controllers work until such questions have been answered for so long."""
    began = clock.monotonic()
    while (left_s := seconds - min(questions.rested_s, clock.monotonic() - began)) > 0:
        await asyncio.wait({work}, timeout=left_s)
        if work.done():
            work.result()


def _unusable_classes(cluster: ClusterCopy, cloud: Cloud) -> Mapping[str, str]:
    """Keys of the classes of which no VM can be created -> why, as `kube-ccm doctor` says too."""
    secrets = cluster.of(SECRETS).now
    found = dict[str, str]()
    for one in cluster.of(MACHINE_CLASSES).now.values():
        view = resolve(
            one,
            lambda namespace, name: secrets.get(f"{namespace}/{name}"),
            providers=cloud.machine_providers,
        )
        if told := view.faults or refusals(one):
            found[one.key] = redact.words("; ".join(told))
    return found


def _possible(
    found: Sequence[Change], cluster: ClusterCopy, unusable: Collection[str]
) -> Sequence[Change]:
    """All but the creation of VMs that their class makes impossible."""
    barred = {
        Subject(MACHINES.kind, one.namespace, one.name)
        for one in cluster.of(MACHINES).now.values()
        if f"{one.namespace}/{one.class_name}" in unusable
    }
    return [
        one
        for one in found
        if one.subject not in barred or (one.what, one.action) != (changes.VM, Action.CREATE)
    ]


def _conditional(found: Sequence[Change], cluster: ClusterCopy) -> Iterator[Change]:
    """What deletions wait for: a second answer of the cloud about a node, or a drain.

    No Pods are copied, and nobody knows how long they take to leave; so no time is told.
    """
    gone = {one.subject for one in found if one.what == changes.VM and one.action is Action.DELETE}
    machines, nodes = cluster.of(MACHINES).before, cluster.of(NODES).before
    by_node = {
        node: one.key
        for one in machines.values()
        if Subject(MACHINES.kind, one.namespace, one.name) in gone
        and (node := one.node_name) in nodes
    }
    by_machine = {key: node for node, key in by_node.items()}
    for one in found:
        key = f"{one.subject.namespace}/{one.subject.name}"
        if one.subject in gone and one.what == changes.VM and key in by_machine:
            yield replace(one, after_s=0, note=changes.DRAINED.format(by_machine[key]))
        elif one.what == NODES.kind and one.subject.name in by_node:
            machine = by_node[one.subject.name]
            yield replace(one, after_s=0, note=changes.WITH_ITS_MACHINE.format(machine))
        elif one.what == NODES.kind and one.after_s:
            yield replace(one, note=changes.UNLESS)
        else:
            yield one


def _failures(
    options: Options, handle: Handle, ledger: Ledger, left_out: Mapping[str, str]
) -> Sequence[str]:
    """What is not known, because somebody gave no answer or set something wrong."""
    wrong = [
        f"{one.name} cannot start: {fault}"
        for one in names.enabled(options.controllers)
        if one.name in left_out and not (one.turned_off(options) or one.lacks(handle.cloud))
        if (fault := one.wrong(options))
    ]
    found = list[str]()
    answered = sorted(ledger.failures.items(), key=lambda failure: failure[0])
    for verb, each in groupby(answered, lambda failure: failure[0][0]):
        (_, error), *others = answers = list(each)
        about = ", ".join(subject for (_, subject), _ in answers[:SHOWN] if subject)
        more = f" and {len(others) + 1 - SHOWN} more" if len(answers) > SHOWN else ""
        found.append(f"{verb}{' of ' if about else ''}{about}{more}: {error}")
    return wrong + found


def _left_alone(cluster: ClusterCopy) -> Iterator[Told]:
    """Objects of which nobody knows the newest state."""
    for kind in FOLLOWED:
        for key in cluster.of(kind).malformed:
            namespace, _, name = key.rpartition("/")
            yield Told(
                subject=Subject(kind.kind, namespace, name or "without a name"),
                reason="Undecodable",
                message="it cannot be decoded, and is left alone",
            )


def _held(options: Options, cluster: ClusterCopy) -> Mapping[str, deletions.HeldBack]:
    """What is held back in the end, by kind of object."""
    namespace, owner = options.leader_elect_resource_namespace, options.leader_elect_resource_name
    record = cluster.of(CONFIG_MAPS).now.get(f"{namespace}/{deletions.NAME}")
    return deletions.held_back(record, owner)


def _with_events(
    found: Forecast, events: _Events, on_record: Mapping[str, deletions.HeldBack]
) -> Forecast:
    """Those that hold are told apart from the other warnings, and from those that held once."""
    kept = {(one.namespace, one.name) for each in on_record.values() for one in each.objects}
    # The record names so many; of more it knows how many there are.
    is_short = any(each.count > len(each.objects) for each in on_record.values())
    told = list(events.told())
    holds = [one for one in told if one.reason == REASON_DELETION_HELD]
    return replace(
        found,
        held=[
            one
            for one in holds
            # What a deleted CRD holds, it holds to the end.
            if is_short
            or one.subject.kind == CRDS.kind
            or (one.subject.namespace, one.subject.name) in kept
        ],
        warnings=[
            *found.warnings,
            *(one for one in told if one.reason != REASON_DELETION_HELD),
        ],
    )
