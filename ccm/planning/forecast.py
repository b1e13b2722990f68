"""Forecast: runs the daemon's controllers over a copy of the cluster, and collects their changes.

The copy is in a fake API server, where the controllers may write, without a connection to the real
API server. The copied objects have only the fields of the daemon's types. Of an object that cannot
be decoded, only the key is known, as in the daemon. The fake API server does not validate, since
the real API server has accepted the objects.
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
from ccm.app.controllers import ControllerRunner
from ccm.app.election import load_migration
from ccm.app.health import DaemonState
from ccm.app.machineapis import APIS, MachineApi, title_of
from ccm.app.options import Options, controllers
from ccm.base import clock, redact
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import Cloud
from ccm.kube import errors
from ccm.kube.client import Client, Page
from ccm.kube.resources import CONFIG_MAPS, CRDS, NAMESPACES, NODES, SECRETS, SERVICES, ResourceKind
from ccm.machines import crdguard, discovery
from ccm.machines.caches import SYSTEM_NAMESPACE
from ccm.machines.classes import driver_faults, resolve
from ccm.machines.reasons import REASON_SPEC_INVALID
from ccm.model import CustomResourceDefinition, ObjectMeta, ObjectReference
from ccm.model.machines import Machine, document_of
from ccm.model.meta import KubeObject
from ccm.model.names import REASON_DELETION_HELD, WARNING
from ccm.planning import changes
from ccm.planning.changes import ChangedObject, ChangeKind, Forecast, PlannedChange, RecordedEvent
from ccm.planning.cloud_client import Ledger, PendingQueries, RecordingCloudClient
from ccm.planning.timeloop import real_time, skipping_waits
from ccm.runtime import deletions
from ccm.testing.apiserver import kinds, schema, store
from ccm.testing.apiserver.transport import MemoryTransport

T = TypeVar("T")
K = TypeVar("K", bound=KubeObject)

_HISTORY_SIZE = 10_000_000

MIN_HORIZON_S = 90.0
"""Minimum length of a forecast in seconds: enough for the deletion of a node and its consequences
for routes and load balancers, which follow slowly."""

MARGIN_S = 30.0
"""Seconds for the consequences of a change after the daemon's longest wait."""

ANSWER_TIMEOUT_S = 30.0
"""Time limit in seconds for one request to the API server, including retries that the API server
asks for."""

SECOND_ANSWER_S = 0.5
"""Seconds for the second answer about a node and the controller's reaction to it."""

MAX_LISTED = 5
"""Limit of objects in a message about failed queries of one method."""

WATCHED_KINDS: tuple[ResourceKind[Any], ...] = (
    NODES,
    SERVICES,
    *(kind for api in APIS for kind in api.kinds),
    SECRETS,
)
"""Kinds that are copied if an enabled controller watches them. ConfigMaps are copied likewise, and
the deletion record always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSnapshot(Generic[K]):
    """All objects of one kind in the copy.

    Attributes:
        before: key -> object as read from the cluster.
        current: key -> object as changed by the controllers.
        malformed: keys of objects that cannot be decoded.
        touched: key of each changed object -> monotonic time of its deletion, or of its first
            write.
        last: key -> last state of each changed object.
    """

    before: Mapping[str, K]
    current: Mapping[str, K]
    malformed: Collection[str]
    touched: Mapping[str, float]
    last: Mapping[str, K]


@dataclass(slots=True)
class _History:
    touched: dict[str, float] = field(default_factory=dict)
    last: dict[str, bytes] = field(default_factory=dict)


class FakeTracker:
    """Copy of the cluster in a fake API server; creates clients like `ClientFactory`.

    Attributes:
        served: API group of machines -> plurals of the resources that the cluster serves. A group
            that no controller watches is missing.
    """

    def __init__(self) -> None:
        self.served: dict[str, Collection[str]] = {}
        self._histories: dict[str, _History] = defaultdict(_History)
        self._loaded: dict[ResourceKind[Any], tuple[Mapping[str, Any], Collection[str]]] = {}
        self._store = store.ObjectStore(history=_HISTORY_SIZE, observe=self._note)
        self._transport = MemoryTransport(self._store, is_strict=False)

    def serve(self, api: MachineApi, plurals: Collection[str]) -> None:
        """Let the fake API server serve those resources of an API group whose plurals are given."""
        self.served[api.group] = plurals
        for definition in api.definitions:
            kind = kinds.kind_of_definition(dict(definition.to_manifest()))
            if kind.plural in plurals:
                self._store.kinds.replace(kind.group, kind.plural, kind)

    def load(
        self, kind: ResourceKind[K], objects: Mapping[str, K], *, malformed: Collection[str] = ()
    ) -> None:
        """Store all objects of a kind in the copy.

        Args:
            kind: kind of the objects.
            objects: key -> object.
            malformed: keys of objects that cannot be decoded.
        """
        self._loaded[kind] = objects, malformed
        served = self._served(kind)
        assert served is not None, kind.plural
        for key, obj in objects.items():
            body = msgspec.to_builtins(document_of(obj))
            # A malformed time or number that the real API server accepted is copied unchanged.
            with suppress(schema.WrongTypeError):
                body = served.clean(body)
            self._store.restore(served, key, body)
        for key in malformed:
            namespace, _, name = key.rpartition("/")
            # The type of `finalizers` is wrong, so decoding fails.
            stub = {"name": name, "namespace": namespace, "finalizers": 0}
            self._store.restore(served, key, {"metadata": stub})

    def objects(self, kind: ResourceKind[K]) -> KindSnapshot[K]:
        """Return the objects of a kind; empty if the kind was not loaded."""
        served = self._served(kind)
        before, malformed = self._loaded.get(kind, ({}, ()))
        history = self._histories[f"{kind.plural}.{kind.group}"]
        stored = () if served is None else tuple(self._store.collection(served))
        return KindSnapshot(
            before=before,
            current={
                entry.key: kind.decode(entry.raw) for entry in stored if entry.key not in malformed
            },
            malformed=malformed,
            touched=history.touched,
            last={key: kind.decode(raw) for key, raw in history.last.items()},
        )

    def named(self, name: str) -> Client:
        """Return a client with this name; all clients use the copy."""
        return self._transport.client(name)

    def _served(self, kind: ResourceKind[Any]) -> kinds.ServedKind | None:
        version = kind.api_version.rpartition("/")[2]
        return self._store.kinds.get(kind.group, version, kind.plural)

    def _note(self, kind: kinds.ServedKind, change: store.StoredChange) -> None:
        history, key = self._histories[f"{kind.plural}.{kind.group}"], change.entry.key
        if change.type == "DELETED" or key not in history.touched:
            history.touched[key] = clock.monotonic()
        history.last[key] = change.entry.raw


class _EventCollector:
    """Event recorder that collects warnings."""

    def __init__(self) -> None:
        self.warnings: dict[tuple[ChangedObject, str], str] = {}

    def recorder(self, component: str) -> _EventCollector:
        """Return this recorder, which all components share."""
        del component
        return self

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Keep the last message of each object and reason."""
        if kind == WARNING:
            title = title_of(reference.api_version, reference.kind)
            subject = ChangedObject(title, reference.namespace, reference.name)
            self.warnings[subject, reason] = message

    def events(self) -> Iterator[RecordedEvent]:
        """Yield the collected warnings, sorted."""
        for (subject, reason), message in sorted(self.warnings.items()):
            yield RecordedEvent(subject=subject, reason=reason, message=message)


async def forecast(
    options: Options, client: Client, cloud: Cloud, *, wait: bool = False
) -> Forecast:
    """Run the controllers with these flags, and return the changes they would make.

    Args:
        options: the daemon's flags.
        client: reads the API server.
        cloud: the open provider.
        wait: whether to query the cloud a second time about a missing instance, after a wait in
            real time; else the first answer is reused.

    Raises:
        KubeError: the cluster cannot be read.
    """
    cluster = await copy_cluster(options, client)
    ledger, events, vitals = Ledger(caches_answers=not wait), _EventCollector(), DaemonState()
    handle = provider.make_handle(options, cloud, make=partial(RecordingCloudClient, ledger=ledger))
    running = ControllerRunner(options, cluster, events, vitals, load_migration(options))
    work = spawn(running.run(handle, election=None), name="controllers")
    try:
        if wait:
            with real_time():
                await _wait_idle(
                    work, ledger.first_queries, _between_denials_s(options) + SECOND_ANSWER_S
                )
        ledger.caches_answers, began = True, clock.monotonic()
        with skipping_waits():
            await _wait_idle(work, ledger.queries, horizon_s(options))
        # Collect the results before the controllers stop: their clean-up is not part of the
        # forecast.
        left_out = {
            name: health.detail for name, health in vitals.controllers.items() if health.detail
        }
        unusable = _unusable_classes(cluster, cloud)
        differences = collect_changes(cluster, ledger, lambda at: max(0, int(at - began)))
        result = Forecast(
            changes=[*_add_conditions(_drop_impossible(differences, cluster, unusable), cluster)],
            left_out={**left_out, **_waiting_controllers(options, cluster)},
            failures=_failures(options, handle, ledger, left_out),
        )
        events.warnings |= {
            (subject, REASON_SPEC_INVALID): text
            for subject, text in {**unusable, **_refused_creations(cluster, ledger)}.items()
        }
        result = replace(result, warnings=[*_undecodable_events(cluster)])
        return _split_events(result, events, _blocked_deletions(options, cluster))
    finally:
        await cancel_and_join(work)


def horizon_s(options: Options) -> float:
    """Return the length of the forecast in seconds."""
    waits = (_between_denials_s(options), options.route_grace_period.total_seconds())
    return max(MIN_HORIZON_S, MARGIN_S + max(waits))


def collect_changes(
    cluster: FakeTracker, ledger: Ledger, after_s: changes.DelayFunction
) -> Sequence[PlannedChange]:
    """Return the changes of the copy and the changes by the recorded calls to the cloud.

    Args:
        cluster: the copy of the cluster.
        ledger: the recorded calls.
        after_s: see `changes.DelayFunction`.
    """
    differences: list[PlannedChange] = []
    for kind in WATCHED_KINDS:
        copy = cluster.objects(kind)
        for key, moment in copy.touched.items():
            before, now = copy.before.get(key), copy.current.get(key)
            if before is None and (now is None or kind is SECRETS):
                continue  # transient, like the bootstrap token of a new VM
            if before is not None and before.is_deleting:
                now = copy.last[key]  # the deletion is not the daemon's change
            title = title_of(kind.api_version, kind.kind)
            differences += changes.object_changes(title, before, now, after_s=after_s(moment))
    machines, transient = dict[str, tuple[ChangedObject, str]](), set[ChangedObject]()
    for api in APIS:
        snapshot = cluster.objects(api.codec.machines)
        owner = "class" if api.codec.machine_classes is not None else "set"
        for states in (snapshot.before, snapshot.current, snapshot.last):
            machines |= {obj.uid: (_subject(api, obj), owner) for obj in states.values()}
        lasting = snapshot.before.keys() | snapshot.current.keys()
        transient |= {
            _subject(api, machine) for key, machine in snapshot.last.items() if key not in lasting
        }
    calls = [
        changes.call_change(call, after_s=after_s(call.at_s), machines=machines)
        for call in ledger.changes
    ]
    # The VM of a transient Machine is transient too.
    differences += [call for call in calls if call.subject not in transient]
    return changes.merge_changes(differences)


async def copy_cluster(options: Options, client: Client) -> FakeTracker:
    """Copy the objects that the daemon would watch, and the deletion record.

    Raises:
        KubeError: the cluster cannot be read.
    """
    cluster = FakeTracker()
    copied: dict[ResourceKind[Any], dict[str, Any]] = defaultdict(dict)
    malformed: dict[ResourceKind[Any], list[str]] = defaultdict(list)
    for kind, namespaces in (await _watched_kinds(options, client, cluster)).items():
        for where in [""] if "" in namespaces else sorted(namespaces):
            async for page in _pages(client, kind, where):
                copied[kind] |= {obj.key: obj for obj in page.items}
                malformed[kind] += page.malformed_keys
    namespace = options.leader_elect_resource_namespace
    with suppress(errors.NotFound):
        record = await _await_answer(
            client.resource(CONFIG_MAPS).get(deletions.CONFIG_MAP_NAME, namespace=namespace),
            deletions.CONFIG_MAP_NAME,
        )
        copied[CONFIG_MAPS][record.key] = record
    for kind, objects in copied.items():
        cluster.load(kind, objects, malformed=malformed[kind])
    return cluster


async def _watched_kinds(
    options: Options, client: Client, cluster: FakeTracker
) -> Mapping[ResourceKind[Any], Collection[str]]:
    """Return the kinds to copy, with their namespaces (an empty name = all namespaces).

    If controllers watch Machines, also load into `cluster` the Namespace `kube-system` and the CRDs
    that these controllers read.
    """
    places: dict[ResourceKind[Any], set[str]] = defaultdict(set)
    known_kinds = {(kind.group, kind.plural): kind for kind in (*WATCHED_KINDS, CONFIG_MAPS)}
    for manifest in controllers.enabled(options.controllers):
        local = [
            (resource, where)
            for verb, resource, where in manifest.namespaced_permissions(options)
            if verb == "list"
        ]
        for plural, where in (*((resource, "") for resource in manifest.watched), *local):
            kind = known_kinds.get((manifest.groups.get(plural, ""), plural))
            if kind is not None:
                places[kind].add(where)
    crds: list[CustomResourceDefinition] = []
    for api in (api for api in APIS if api.codec.machines in places):
        group = api.codec.machines.api_version
        answered = await _await_answer(
            discovery.fetch_discovery(client, group), discovery.discovery_path(group)
        )
        served = discovery.plurals_of(answered)
        cluster.serve(api, served)
        for kind in api.kinds:
            if kind is not api.codec.machine_classes:
                crds.append(await _crd(client, kind))
            if kind.plural not in served:
                places.pop(kind, None)
    if cluster.served:
        system = await _await_answer(
            client.resource(NAMESPACES).get(SYSTEM_NAMESPACE), SYSTEM_NAMESPACE
        )
        cluster.load(NAMESPACES, {system.key: system})
        cluster.load(CRDS, {crd.key: crd for crd in crds})
    return places


async def _crd(client: Client, kind: ResourceKind[Any]) -> CustomResourceDefinition:
    """Return the CRD of a kind.

    If the CRD is missing or the daemon may not read it, return a CRD that is not being deleted, so
    that no deletion is blocked because of the CRD.

    Raises:
        KubeError: the CRD cannot be read for another reason.
    """
    name = crdguard.crd_name(kind)
    try:
        return await _await_answer(client.resource(CRDS).get(name), name)
    except (errors.Forbidden, errors.NotFound):
        return CustomResourceDefinition(metadata=ObjectMeta(name=name))


async def _pages(
    client: Client, kind: ResourceKind[Any], namespace: str
) -> AsyncIterator[Page[Any]]:
    pages = client.resource(kind).pages(namespace=namespace)
    with suppress(StopAsyncIteration):
        while True:
            yield await _await_answer(anext(pages), kind.plural)


async def _await_answer(question: Awaitable[T], what: str) -> T:
    """Await a response of the API server for at most `ANSWER_TIMEOUT_S`.

    Raises:
        KubeError: the request failed, or there was no response in time.
    """
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await question
    except TimeoutError as error:
        text = f"GET {what}: no response from the API server within {ANSWER_TIMEOUT_S:g} s"
        raise errors.Unreachable(text, kind="timeout") from error


def _waiting_controllers(options: Options, cluster: FakeTracker) -> Mapping[str, str]:
    """Return the names of the controllers that would wait for missing CRDs -> reason."""
    return {
        manifest.name: f"waiting: the CRDs of Machines are missing; apply {api.codec.manifest}"
        for api in APIS
        for manifest in controllers.enabled(options.controllers)
        if manifest.groups.get(api.codec.machines.plural) == api.group
        and api.codec.machines.plural not in cluster.served[api.group]
    }


def _between_denials_s(options: Options) -> float:
    """Return the maximum seconds, with jitter, between the two queries about a missing instance."""
    return 1.2 * options.node_monitor_period.total_seconds()


async def _wait_idle(work: asyncio.Task[None], questions: PendingQueries, seconds: float) -> None:
    """Let the controllers run until no query was pending for `seconds`; raise if they fail."""
    began = clock.monotonic()
    while (left_s := seconds - min(questions.idle_s, clock.monotonic() - began)) > 0:
        await asyncio.wait({work}, timeout=left_s)
        if work.done():
            work.result()


def _refused_creations(cluster: FakeTracker, ledger: Ledger) -> Mapping[ChangedObject, str]:
    """Return the driver's error for each Machine whose VM the driver would refuse to create."""
    return {
        _subject(api, machine): redact.mask_text(str(ledger.refused[machine.uid]))
        for api in APIS
        for machine in cluster.objects(api.codec.machines).current.values()
        if machine.uid in ledger.refused
    }


def _unusable_classes(cluster: FakeTracker, cloud: Cloud) -> dict[ChangedObject, str]:
    """Return the MachineClasses with which no VM can be created -> faults.

    `doctor` reports the same faults.
    """
    secrets = cluster.objects(SECRETS).current
    unusable = dict[ChangedObject, str]()
    for api in APIS:
        kind = api.codec.machine_classes
        for machine_class in cluster.objects(kind).current.values() if kind is not None else ():
            view = resolve(
                machine_class,
                lambda namespace, name: secrets.get(f"{namespace}/{name}"),
                providers=api.view(cloud).machine_providers,
            )
            if faults := view.faults or driver_faults(machine_class):
                subject = ChangedObject("MachineClass", machine_class.namespace, machine_class.name)
                unusable[subject] = redact.mask_text("; ".join(faults))
    return unusable


def _subject(api: MachineApi, machine: Machine) -> ChangedObject:
    return ChangedObject(api.title(api.codec.machines), machine.namespace, machine.name)


def _drop_impossible(
    differences: Sequence[PlannedChange], cluster: FakeTracker, unusable: Collection[ChangedObject]
) -> Sequence[PlannedChange]:
    """Drop the creations of VMs whose MachineClass is in `unusable`."""
    barred = {
        _subject(api, machine)
        for api in APIS
        if api.codec.machine_classes is not None
        for machine in cluster.objects(api.codec.machines).current.values()
        if ChangedObject("MachineClass", machine.namespace, machine.class_name) in unusable
    }
    return [
        change
        for change in differences
        if change.subject not in barred
        or (change.what, change.action) != (changes.VM, ChangeKind.CREATE)
    ]


def _add_conditions(
    differences: Sequence[PlannedChange], cluster: FakeTracker
) -> Iterator[PlannedChange]:
    """Add a note with the condition to each deletion of a node or VM.

    A VM is deleted after the drain of its node, and the node with its Machine; the delay is set to
    0, because Pods are not copied and so the length of the drain is unknown. Any other node is
    deleted after a delay if its instance is still missing.
    """
    deleted_vms = {
        change.subject
        for change in differences
        if change.what == changes.VM and change.action is ChangeKind.DELETE
    }
    nodes = cluster.objects(NODES).before
    by_machine = {
        subject: (machine.node_name, machine.key)
        for api in APIS
        for machine in cluster.objects(api.codec.machines).before.values()
        if (subject := _subject(api, machine)) in deleted_vms and machine.node_name in nodes
    }
    by_node = dict(by_machine.values())
    for change in differences:
        if change.what == changes.VM and change.subject in by_machine:
            node = by_machine[change.subject][0]
            yield replace(change, after_s=0, note=changes.DRAINED.format(node))
        elif change.what == NODES.kind and change.subject.name in by_node:
            machine_key = by_node[change.subject.name]
            yield replace(change, after_s=0, note=changes.WITH_ITS_MACHINE.format(machine_key))
        elif change.what == NODES.kind and change.after_s:
            yield replace(change, note=changes.UNLESS)
        else:
            yield change


def _failures(
    options: Options, handle: CloudClient, ledger: Ledger, left_out: Mapping[str, str]
) -> Sequence[str]:
    """Return why the forecast is incomplete: faulty settings and failed queries."""
    wrong = [
        f"{manifest.name} cannot start: {fault}"
        for manifest in controllers.enabled(options.controllers)
        if manifest.name in left_out and not manifest.skip_reason(options, handle.cloud)
        if (fault := manifest.config_fault(options))
    ]
    messages = list[str]()
    answered = sorted(ledger.failures.items(), key=lambda failure: failure[0])
    for verb, group in groupby(answered, lambda failure: failure[0][0]):
        (_, error), *others = answers = list(group)
        about = ", ".join(subject for (_, subject), _ in answers[:MAX_LISTED] if subject)
        more = f" and {len(others) + 1 - MAX_LISTED} more" if len(answers) > MAX_LISTED else ""
        messages.append(f"{verb}{' of ' if about else ''}{about}{more}: {error}")
    return wrong + messages


def _undecodable_events(cluster: FakeTracker) -> Iterator[RecordedEvent]:
    """Yield a warning for each object that cannot be decoded."""
    for kind in WATCHED_KINDS:
        title = title_of(kind.api_version, kind.kind)
        for key in cluster.objects(kind).malformed:
            namespace, _, name = key.rpartition("/")
            yield RecordedEvent(
                subject=ChangedObject(title, namespace, name or "without a name"),
                reason="Undecodable",
                message="it cannot be decoded and is ignored",
            )


def _blocked_deletions(
    options: Options, cluster: FakeTracker
) -> Mapping[str, deletions.BlockedDeletions]:
    """Return the blocked deletions in the copy's deletion record, by kind of object."""
    namespace, owner = options.leader_elect_resource_namespace, options.leader_elect_resource_name
    record = cluster.objects(CONFIG_MAPS).current.get(f"{namespace}/{deletions.CONFIG_MAP_NAME}")
    return deletions.blocked_deletions(record, owner)


def _split_events(
    forecast: Forecast, events: _EventCollector, on_record: Mapping[str, deletions.BlockedDeletions]
) -> Forecast:
    """Return the forecast with the collected events as `blocked` or `warnings`.

    Events about deletions that are no longer blocked at the end are dropped.

    Args:
        forecast: the forecast without these events.
        events: collected events.
        on_record: blocked deletions in the deletion record, by kind.
    """
    kept = {
        (entry.namespace, entry.name) for blocked in on_record.values() for entry in blocked.objects
    }
    # The record may list only the first objects of a kind. If so, keep all events.
    is_short = any(blocked.count > len(blocked.objects) for blocked in on_record.values())
    notices = list(events.events())
    holds = [notice for notice in notices if notice.reason == REASON_DELETION_HELD]
    return replace(
        forecast,
        blocked=[
            notice
            for notice in holds
            # A CRD that is being deleted blocks deletions until the end.
            if is_short
            or notice.subject.kind == CRDS.kind
            or (notice.subject.namespace, notice.subject.name) in kept
        ],
        warnings=[
            *forecast.warnings,
            *(notice for notice in notices if notice.reason != REASON_DELETION_HELD),
        ],
    )
