"""Caches that the machine controllers of one daemon share.

Controllers start only once the marker of the cluster's VMs is known and the API server serves the
machine objects.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec import structs

from ccm.base import clock, log
from ccm.base.backoff import ExponentialBackoff
from ccm.base.log import Outage
from ccm.cloud.errors import InvalidArgument, Unavailable
from ccm.kube.client import Client
from ccm.kube.errors import KubeError
from ccm.kube.informer import Informer, SharedInformers
from ccm.kube.resources import CONFIG_MAPS, NAMESPACES, NODES, SECRETS, ResourceKind
from ccm.machines import classes, discovery
from ccm.machines.classes import ResolvedClass
from ccm.machines.codec import Codec
from ccm.machines.settings import MachineSettings
from ccm.model import ConfigMap, Namespace, Node, Secret
from ccm.model.machines import Machine, MachineClass, MachineDeployment, MachineSet
from ccm.model.meta import KubeObject
from ccm.model.owners import controller_key
from ccm.runtime.writer import ObjectWriter

SYSTEM_NAMESPACE = "kube-system"
"""Namespace in the target cluster. Its UID is the default marker of the cluster's VMs, because the
namespace exists as long as the cluster. The UID of the control cluster's `kube-system` is not used,
because machines of many target clusters may share a control cluster."""

T = TypeVar("T", bound=KubeObject)

_PAUSES = ExponentialBackoff(base_s=1.0, factor=2.0, cap_s=30.0)
"""Retry delays until the controllers are ready. Each delay is at most half a minute, because no
event reports that the missing CRDs were applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCluster:
    """The cluster that machines join, if it differs from the cluster with the machine objects."""

    informers: SharedInformers
    client: Client


class InitialMetadata:
    """Metadata that machines get when they are created, and nodes when they join.

    Initial metadata only saves a second write. If it is missing, for example after a restart or
    because the controllers run in separate daemons, the responsible controller writes it later.

    Attributes:
        claim: returns the initial metadata of a machine that is about to be created; set by the
            machine controller.
    """

    def __init__(self) -> None:
        self.claim: Callable[[Machine], Mapping[str, Any]] = lambda _: {}
        self._notes: dict[str, Mapping[str, str]] = {}
        self._sets: dict[str, Collection[str]] = {}

    def set_rollout_annotations(
        self, owner: str, sets: Collection[str], notes: Mapping[str, str]
    ) -> None:
        """Set the annotations for a deployment's nodes that join during its rollout.

        Args:
            owner: UID of the deployment.
            sets: UIDs of the deployment's sets; empty = there is no rollout.
            notes: the annotations.
        """
        for set_uid in self._sets.pop(owner, ()):
            self._notes.pop(set_uid, None)
        if sets and notes:
            self._sets[owner] = tuple(sets)
            self._notes |= dict.fromkeys(sets, notes)

    def annotations_for(self, owner: str) -> Mapping[str, str]:
        """Return the annotations of a node that joins now; `owner` = UID of its machine set."""
        return self._notes.get(owner, {})


class Caches:
    """Caches of all objects, and values derived from them.

    Args:
        codec: codec of the machines' API group.
        informers: informers of the control cluster, which stores the machines.
        client: client of the control cluster.
        namespace: namespace of the machine objects.
        settings: settings from flags. An empty `cluster` is replaced by the UID of the namespace
            `kube-system` of the target cluster or, if `settings.has_target` is False, by the UID of
            the namespace `namespace`.
        providers: returns the values of `provider` that the driver accepts.
        variables: see `classes.Variables`.
        target: the cluster that machines join; None = machines join the control cluster.

    Attributes:
        client: client of the control cluster.
        target: the cluster that machines join.
        ages: ages of the machines.
        initial_metadata: initial metadata that the controllers prepare for each other.
    """

    def __init__(
        self,
        *,
        codec: Codec,
        informers: SharedInformers,
        client: Client,
        namespace: str,
        settings: MachineSettings,
        providers: Callable[[], Collection[str]],
        variables: classes.Variables = lambda _spec, _credentials: {},
        target: TargetCluster | None = None,
    ) -> None:
        self.codec = codec
        self.namespace = namespace
        self.ages = Ages(client.server_time)
        self.initial_metadata = InitialMetadata()
        self._informers = informers
        self.client = client
        self._settings = settings
        self._providers = providers
        self._variables = variables
        self._is_ready = False
        self.target = target or TargetCluster(informers=informers, client=client)
        self._no_nodes: Informer[Node] = Informer.empty(NODES)
        self._no_classes: Informer[Any] = Informer.empty(SECRETS)
        self._no_user_data: Informer[Secret] = Informer.empty(SECRETS)
        self._no_config_maps: Informer[ConfigMap] = Informer.empty(CONFIG_MAPS)
        self._opening = asyncio.Lock()
        """Held until the API server serves the objects: the first controller that calls `ready`
        polls the API server, and all others wait for the lock."""
        self._usable: dict[str, ResolvedClass] = {}

    @property
    def settings(self) -> MachineSettings:
        """Names and settings; not available before `ready`."""
        assert self._is_ready
        return self._settings

    @property
    def is_ready(self) -> bool:
        """Whether `ready` has returned once."""
        return self._is_ready

    @property
    def machines(self) -> Informer[Machine]:
        """Informer of all machines."""
        return self._informers.informer_for(self.codec.machines, namespace=self.namespace)

    @property
    def classes(self) -> Informer[MachineClass]:
        """Informer of all classes; always empty if the API group has no class objects."""
        kind = self.codec.machine_classes
        if kind is None:
            return self._no_classes
        return self._informers.informer_for(kind, namespace=self.namespace)

    @property
    def machine_sets(self) -> Informer[MachineSet]:
        """Informer of all machine sets."""
        return self._informers.informer_for(self.codec.machine_sets, namespace=self.namespace)

    @property
    def machine_deployments(self) -> Informer[MachineDeployment]:
        """Informer of all machine deployments."""
        return self._informers.informer_for(
            self.codec.machine_deployments, namespace=self.namespace
        )

    @property
    def secrets(self) -> Informer[Secret]:
        """Informer of the Secrets in the machines' namespace."""
        return self._informers.informer_for(SECRETS, namespace=self.namespace)

    @property
    def config_maps(self) -> Informer[ConfigMap]:
        """Informer of the machines' ConfigMaps; always empty if the API group has class objects."""
        if self.codec.machine_classes is not None:
            return self._no_config_maps
        return self._informers.informer_for(CONFIG_MAPS, namespace=self.namespace)

    @property
    def user_data(self) -> Informer[Secret]:
        """Informer of the Secrets with user data; empty if user data is part of the classes."""
        namespace = self.codec.user_data_namespace
        if not namespace:
            return self._no_user_data
        return self._informers.informer_for(SECRETS, namespace=namespace)

    @property
    def nodes(self) -> Informer[Node]:
        """Informer of all Nodes of the cluster that machines join; empty without such a cluster."""
        return (
            self.target.informers.informer_for(NODES)
            if self._settings.has_target
            else self._no_nodes
        )

    def writer(self, kind: ResourceKind[T], rng: random.Random | None = None) -> ObjectWriter[T]:
        """Return a writer for objects of one kind of the machine API group."""
        cache = self._informers.informer_for(kind, namespace=self.namespace).store
        return ObjectWriter(self.client.resource(kind), cache=cache, strategic=False, rng=rng)

    def now(self) -> datetime:
        """Return the time of the control cluster's API server, on which all ages are based."""
        return self.client.server_time()

    def now_since(self, uid: str, moment: datetime | None) -> datetime:
        """Return the current time for comparisons with a timestamp on a machine.

        A jump of a clock never makes the returned time too late, so that no timeout ends early.

        Args:
            uid: UID of the machine.
            moment: the timestamp; None = not set yet: return `now()`.
        """
        return self.now() if moment is None else self.ages.now(uid, moment)

    async def ready(self, *kinds: ResourceKind[Any]) -> None:
        """Wait until the API server serves machines and classes, and the VMs' marker is known.

        Args:
            kinds: further kinds that have to be served.
        """
        async with self._opening:
            if not self._is_ready:
                await self._until(self._open)
        if kinds:
            await self._until(lambda: self._check_served(*kinds))

    async def _until(self, step: Callable[[], Awaitable[None]]) -> None:
        outage = Outage(
            log.logger("machines"),
            start_message="machine controllers not ready, retrying",
            end_message="machine controllers ready",
        )
        attempt = 0
        while True:
            try:
                await step()
            except KubeError as error:
                outage.record_failure(error=str(error))
                await asyncio.sleep(_PAUSES.delay_without_jitter(attempt))
                attempt += 1
            else:
                outage.record_success()
                return

    async def _open(self) -> None:
        classes = self.codec.machine_classes
        await self._check_served(self.codec.machines, *([classes] if classes is not None else []))
        cluster = self._settings.cluster
        if not cluster:
            target = self.target.client if self._settings.has_target else None
            cluster = await marker(self.client, target, self.namespace)
        self._settings, self._is_ready = replace(self._settings, cluster=cluster), True

    async def _check_served(self, *kinds: ResourceKind[Any]) -> None:
        """Raise `ResourcesNotServed` if the API server does not serve these kinds yet."""
        group = self.codec.machines.api_version
        known = await discovery.fetch_plurals(self.client, group)
        missing = [kind for kind in kinds if kind.plural not in known]
        if missing:
            plurals = " and ".join(missing_kind.plural for missing_kind in missing)
            raise ResourcesNotServed(f"{group} has no {plurals}; apply {self.codec.manifest}")

    def machine_of_node(self, node: Node) -> Machine | None:
        """Return the machine that a node's label or annotation names; None = unknown."""
        names = self._settings.names
        key = node.annotations.get(names.key_annotation) if names.key_annotation else None
        if key is None:
            key = f"{self.namespace}/{node.labels.get(names.machine_label, '')}"
        return self.machines.store.get(key)

    # --- classes ------------------------------------------------------------------------------

    def class_of(self, machine: Machine) -> ResolvedClass:
        """Return the machine's class; if it is missing, a substitute with a fault."""
        if machine.own_class is not None:
            return self.resolve(machine.own_class)
        return self.class_named(machine.class_name, machine.namespace)

    def class_named(self, name: str, namespace: str) -> ResolvedClass:
        """Return the class of a name; if it is missing, a substitute with a fault."""
        machine_class = self.classes.store.get(f"{namespace}/{name}") if name else None
        if machine_class is None:
            return classes.missing_class(name, namespace)
        resolved = self.resolve(machine_class)
        if not resolved.access_faults:
            self._usable[machine_class.key] = resolved
        return resolved

    def class_to_delete_with(self, machine: Machine) -> ResolvedClass:
        """Return the class for a machine's deletion.

        If the class or its Secret is missing, return the last usable version of the class.
        """
        present = self.class_of(machine)
        key = f"{machine.namespace}/{machine.class_name}"
        return self._usable.get(key, present) if present.access_faults else present

    def classes_with_secret(self, name: str) -> Sequence[MachineClass]:
        """Return the classes that refer to a Secret."""
        return [
            machine_class
            for machine_class in self.classes.store.list()
            if any(secret == name for _, secret in machine_class.secrets)
        ]

    def machines_with(self, kind: str, name: str) -> Sequence[Machine]:
        """Return the machines whose own class refers to a Secret or ConfigMap."""
        if self.codec.machine_classes is not None:
            return ()  # machines have no classes of their own
        return [
            machine
            for machine in self.machines.store.list()
            if machine.own_class is not None
            and any((ref.kind, ref.name) == (kind, name) for ref in machine.own_class.references)
        ]

    def user_data_of(self, machine: Machine) -> bytes | None:
        """Return the user data of a machine's VM, in an API group without class objects.

        None = the user data do not exist yet.

        Raises:
            CloudError: see `Codec.user_data`.
        """
        return self._user_data(machine, lambda _key: None)

    def awaited_user_data(self, machine: Machine) -> str:
        """Return the key of the Secret with user data that a machine waits for; empty = none.

        If the Secret is of another revision of the template, "of the current revision" follows.
        """
        if machine.provider_id or machine.is_deleting or not self.codec.user_data_namespace:
            return ""
        if self.class_of(machine).faults:
            return ""  # the faults of the class come first
        asked = [""]
        try:
            found = self._user_data(machine, asked.append)
        except InvalidArgument:
            return ""  # the status of the machine has the error
        except Unavailable:
            return f"{asked[-1]} of the current revision"
        return asked[-1] if found is None else ""

    def _user_data(self, machine: Machine, on_read: Callable[[str], None]) -> bytes | None:
        owner = self.machine_sets.store.get(controller_key(machine, self.codec.machine_sets.kind))

        def secret(name: str) -> Secret | None:
            key = f"{self.codec.user_data_namespace}/{name}"
            on_read(key)
            return self.user_data.store.get(key)

        return self.codec.user_data(machine, owner, secret)

    def resolve(self, machine_class: MachineClass) -> ResolvedClass:
        """Return a class with the current contents of its Secrets."""
        return classes.resolve(
            machine_class,
            lambda namespace, name: self.secrets.store.get(f"{namespace}/{name}"),
            config_map=lambda namespace, name: self.config_maps.store.get(f"{namespace}/{name}"),
            variables=self._variables,
            providers=self._providers(),
        )

    def forget(self, uid: str) -> None:
        """Forget a deleted machine, and the credentials of deleted classes that no machine uses."""
        self.ages.forget(uid)
        gone = [key for key in self._usable if self.classes.store.get(key) is None]
        if gone:
            # Credentials of a deleted class are kept only while machines need them for deletion.
            machines = self.machines.store.list()
            wanted = {f"{machine.namespace}/{machine.class_name}" for machine in machines}
            for key in set(gone) - wanted:
                del self._usable[key]


async def marker(control: Client, target: Client | None, namespace: str) -> str:
    """Return the default marker of a cluster's VMs: the UID of a namespace.

    Args:
        control: client of the control cluster, which stores the machines.
        target: client of the target cluster, which machines join; None = no target cluster.
        namespace: namespace of the machines.

    Raises:
        KubeError: the namespace could not be read.
    """
    client, where = (target, SYSTEM_NAMESPACE) if target is not None else (control, namespace)
    system: Namespace = await client.resource(NAMESPACES).get(where)
    return system.uid


class ResourcesNotServed(KubeError):
    """The API server does not serve the objects, because their CRDs are missing."""


# --- ages -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """First query for a timestamp: the monotonic time, and the timestamp's age at that time."""

    at: float
    age_s: float


class Ages:
    """Ages of machines, and of other timestamps on machines.

    Timestamps are set by the API server, so they are compared with its clock. From the first query
    for a timestamp on, its age is also measured with a monotonic clock. The lower age is used, so
    that no jump of a clock causes a timeout: too low an age costs minutes, too high an age costs
    the VM.

    Args:
        server_time: returns the time of the API server.
    """

    def __init__(self, server_time: Callable[[], datetime]) -> None:
        self._server_time = server_time
        self._seen: dict[str, dict[datetime, _Sight]] = {}

    def of(self, machine: Machine) -> float:
        """Return the seconds since the creation of the machine's object."""
        return max(0.0, self.since(machine.uid, machine.created))

    def since(self, uid: str, moment: datetime) -> float:
        """Return the seconds since a timestamp on a machine; negative = it is in the future."""
        now, server_age_s = clock.monotonic(), (self._server_time() - moment).total_seconds()
        known = self._seen.setdefault(uid, {})
        sight = known.setdefault(moment, _Sight(at=now, age_s=server_age_s))
        return min(server_age_s, sight.age_s + now - sight.at)

    def now(self, uid: str, moment: datetime) -> datetime:
        """Return the current time for comparisons with a timestamp on a machine.

        The returned time is the timestamp plus the seconds that `since` returns.
        """
        return moment + timedelta(seconds=self.since(uid, moment))

    def with_local_creation(self, now: datetime, machine: Machine) -> Machine:
        """Return the machine with its creation time converted to a clock that shows `now`."""
        return structs.replace(machine, created=now - timedelta(seconds=self.of(machine)))

    def forget(self, uid: str) -> None:
        """Forget a deleted machine."""
        self._seen.pop(uid, None)
