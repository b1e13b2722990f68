"""Storage that outlives the daemon: configured at start, open while this replica leads.

This module is imported only with `--persistence-config` or `--journal`, and loads only the backends
that the file names. The file is validated at start. Storage is opened after the Lease is acquired,
because a former leader must not write. It is opened in the background, because no controller needs
it: a store that hangs, or belongs to another cluster, is reported and retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ccm.app.clients import ProviderClient
from ccm.app.provider import Misconfigured
from ccm.base import files, log
from ccm.base.tasks import NamedTaskGroup, cancel_and_join, spawn
from ccm.cloud.config import Context as Document
from ccm.cloud.settings import ConfigError, Fields
from ccm.kube.client import Client
from ccm.kube.errors import Forbidden
from ccm.model import names
from ccm.model.names import NORMAL, WARNING
from ccm.persistence import registry
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.errors import (
    BackendDead,
    BackendUnavailable,
    Fenced,
    PersistenceError,
)
from ccm.persistence.interface import METHODS, MachineId, new_machine_id, require
from ccm.persistence.secrets import SECRET_METHODS
from ccm.serving.health import PASSED, CheckResult, failed

FLAG = "--persistence-config"
CLUSTER_ID_PATH = "/api/v1/namespaces/kube-system"
"""Path of the namespace whose UID identifies the cluster; the UID never changes."""

RETRY_S = 30.0
"""Seconds between attempts to open storage or to rotate secrets, and between status checks."""

OPEN_S = 45.0
"""Deadline of an attempt to open storage in seconds: longer than that of an operation, 30 s."""

CLOSE_S = 2.0
"""Deadline of closing all storage in seconds; the Lease is released afterwards. Before, the journal
takes up to 5 s for its last write, and the daemon must end 8 s after the grace period."""

_LOST_WITH_CLUSTER = frozenset({"kubernetes", "memory"})
"""Backends whose data are lost with the cluster, or with the process."""

_ONE = "kube-ccm uses one storage; a bucket or database can be redundant in itself"
_REMOVED = {
    "write_policy": f"no longer exists, {_ONE}; remove the line",
    "repair_queue": f"no longer exists, {_ONE}; remove the line",
    "passphrase_files": "no longer exists; use key_files. Secrets sealed with a passphrase cannot "
    "be read: with the earlier version, put a key file first and wait for its rotation",
}
"""Settings of earlier versions -> error."""


class PersistenceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file that `--persistence-config` names."""

    instances: Annotated[
        tuple[dict[str, Any], ...],
        msgspec.Meta(description="The storage: a list with one map of backend name to settings."),
    ]
    when_unavailable: Annotated[
        Literal["degrade", "block"],
        msgspec.Meta(
            description="While storage is down: degrade creates resources without records, block "
            "creates none that need a record."
        ),
    ] = "degrade"
    secrets: Annotated[
        dict[str, Any] | None,
        msgspec.Meta(description="Secret store: `kubernetes` or `encrypted`."),
    ] = None


IN_CLUSTER = PersistenceConfig(instances=({"kubernetes": {}},))
"""Configuration without a file."""


class Backend:
    """A storage with one instance.

    Args:
        name: name of the backend.
        provider: its provider.
        methods: methods that the provider must have.

    Attributes:
        fault: error of the last attempt to open it; empty = none.
        tried: set after the first attempt to open it.
    """

    def __init__(self, name: str, provider: Any, methods: Sequence[str] = METHODS) -> None:
        require(name, provider, methods)
        self.provider = provider
        (self.instance,) = provider.instances()
        self.is_open = False
        self.fault = ""
        self.tried = asyncio.Event()

    async def latency(self) -> float | None:
        """Return the mean latency of writes in seconds; None if the instance is down."""
        status = await self.provider.instance_status(self.instance)
        return float(status.mean_persist_latency) if status.status else None


class PersistenceStores:
    """The storage of objects, and the secret store, that one file configures.

    Args:
        file: value of `--persistence-config`; empty = ConfigMaps of the cluster.
        client: client of the API server.
        namespace: namespace of the daemon's Lease; objects of the cluster are stored there unless
            the file names another one.
        lease: name of the daemon's Lease, which distinguishes daemons of one namespace.
        record_event: called with (type, reason, message), to record an event about the daemon.
        next_epoch: called if storage was written under a higher epoch than this leader's, for
            example after the Lease was deleted or restored. Returns the epoch to use; None = this
            process does not lead.
        cluster_uid: UID of the cluster that owns the data; storage without its data is refused.
            Empty = the cluster of `client`, whose storage is created if it is absent.
        is_outside: whether to use only storage that outlives the cluster. A secret store in the
            cluster is then ignored.

    Attributes:
        on_open: called with provider and instance once storage is open; retried after an error.
        on_fault: called with each new error of an attempt to open the storage of objects; logs it
            by default.
        when_unavailable: the setting of that name.

    Raises:
        Misconfigured: the file is invalid, or names storage in the cluster although `is_outside`.
    """

    def __init__(
        self,
        file: str,
        client: Client,
        *,
        namespace: str,
        lease: str = "cloud-controller-manager",
        record_event: Callable[[str, str, str], None] = lambda *_: None,
        next_epoch: Callable[[int], Awaitable[int | None]] | None = None,
        cluster_uid: str = "",
        is_outside: bool = False,
    ) -> None:
        self._record_event = record_event
        self._client = client
        self._cluster_uid = cluster_uid
        self._next_epoch = next_epoch
        self._lease = f"{namespace}/{lease}"
        self._writer = WriterIdentity()
        self._is_leading = False
        self._log = log.logger("persistence")
        self.on_open: Callable[[Any, str], Awaitable[None]] | None = None
        self.on_fault: Callable[[str], None] = self._log_fault
        context: registry.BackendContext = registry.BackendContext(
            writer=self.writer,
            requests=ProviderClient(client),
            namespace=namespace,
            lease=lease,
            build=lambda entry, place: _backend(entry, place, context).provider,
        )
        with _named(file):
            config = _read(file) if file else IN_CLUSTER
            self.when_unavailable = config.when_unavailable
            if len(config.instances) != 1:
                raise ConfigError(
                    f"instances has {len(config.instances)} entries; name exactly one: {_ONE}"
                )
            self.objects = _backend(config.instances[0], "instances[0]", context)
            self.secrets: Backend | None = None
            if config.secrets is not None:
                self.secrets = _backend(config.secrets, "secrets", context, registry.SECRETS)
                if is_outside and _is_lost_with_cluster(config.secrets):
                    self.secrets = None
            if is_outside and _is_lost_with_cluster(config.instances[0]):
                raise ConfigError(
                    "the storage would be lost with the cluster; `instances` must have s3, "
                    "postgres, or sqlite on a volume outside of the cluster"
                )

    def writer(self) -> WriterIdentity:
        """Return the identity under which this process writes."""
        return self._writer

    @asynccontextmanager
    async def opened(
        self, name: str, identity: str, epoch: int, *, is_daemon: bool = True
    ) -> AsyncIterator[None]:
        """Open storage in the background of the block; flush and close it at the end.

        Args:
            name: name of the cluster.
            identity: identity of the leader.
            epoch: `leaseTransitions` of the Lease.
            is_daemon: False = a command: storage of any daemon of the cluster is opened, and
                secrets that are sealed with an old key are not sealed again.
        """
        lease = self._lease if is_daemon else ""
        self._writer = WriterIdentity(identity=identity, epoch=epoch, lease=lease)
        self._is_leading = True
        tasks = [spawn(self._keep_objects(name), name="persistence-objects")]
        if self.secrets is not None:
            keep = self._keep_secrets(self.secrets, name, rotates=is_daemon)
            tasks.append(spawn(keep, name="persistence-secrets"))
        try:
            yield
        finally:
            self._is_leading = False
            async with NamedTaskGroup() as group:
                for backend in self.backends():
                    name = f"persistence-close-{backend.instance}"
                    group.start(self._close(backend, tasks), name=name)
            self._log.info("persistence closed")

    def backends(self) -> Sequence[Backend]:
        """Return the storage of objects, and then the secret store if there is one."""
        return (self.objects,) if self.secrets is None else (self.objects, self.secrets)

    async def wait_open(self) -> None:
        """Wait until storage is open; call this inside the block of `opened`.

        Raises:
            BackendDead: the first attempt to open it failed.
        """
        for backend in self.backends():
            await backend.tried.wait()
            if backend.fault:
                raise BackendDead(backend.fault)

    async def health(self) -> CheckResult:
        """Return the health of storage.

        The result is a failure only if storage is down and creations need it.
        """
        if not self._is_leading:
            return CheckResult(detail="closed, standing by")
        down = [backend.instance for backend in self.backends() if await backend.latency() is None]
        if self.objects.instance in down and self.when_unavailable == "block":
            return failed("storage is down, creations are blocked")
        return CheckResult(detail=f"down: {', '.join(down)}") if down else PASSED

    async def _close(self, backend: Backend, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Stop the tasks that open storage, and close a storage."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await cancel_and_join(*tasks)
                await backend.provider.close()
        except TimeoutError:
            self._log.warning("persistence hangs, not closed", instance=backend.instance)

    async def _keep_objects(self, name: str) -> None:
        """Open the storage of objects with retries, and report changes of its availability."""
        was_up, on_open = True, self.on_open
        while True:
            if await self._try_open(self.objects, name) and on_open is not None:
                try:
                    await on_open(self.objects.provider, self.objects.instance)
                    on_open = None
                except Exception as error:  # noqa: BLE001 - as in `_try_open`
                    self._log.error("stored objects cannot be read, retrying", error=str(error))
            is_up = await self.objects.latency() is not None
            if is_up is not was_up:
                self._record_availability(is_up=is_up)
            was_up = is_up
            await asyncio.sleep(RETRY_S)

    async def _try_open(self, backend: Backend, name: str) -> bool:
        """Return whether a storage is open; if not, try once to open it, and log a new error."""
        if backend.is_open:
            return True
        try:
            async with asyncio.timeout(OPEN_S):
                await self._open(backend, await self._cluster_id(name))
        except Exception as error:  # noqa: BLE001 - no fault of storage may end the daemon
            fault = str(error) or f"no answer within {OPEN_S:g} s"
            is_new, backend.fault = fault != backend.fault, fault
            if is_new:
                (self.on_fault if backend is self.objects else self._log_fault)(fault)
            return False
        finally:
            backend.tried.set()
        backend.is_open, backend.fault = True, ""
        self._log.info("persistence opened", instance=backend.instance)
        return True

    def _log_fault(self, fault: str) -> None:
        self._log.error("persistence cannot be opened, retrying", error=fault)

    async def _open(self, backend: Backend, machine: MachineId) -> None:
        if self._cluster_uid:
            await _check_cluster(backend, self._cluster_uid)
        try:
            await backend.provider.initialize(machine)
        except BackendDead as error:
            fenced = error.__cause__
            if not isinstance(fenced, Fenced) or self._next_epoch is None:
                raise
            # `leaseTransitions` is lower than before if the Lease was deleted or etcd restored.
            epoch = await self._next_epoch(fenced.stored_epoch)
            if epoch is None:
                raise
            # The other storage may have needed a higher epoch meanwhile.
            self._writer = replace(self._writer, epoch=max(epoch, self._writer.epoch))
            await backend.provider.initialize(machine)

    def _record_availability(self, *, is_up: bool) -> None:
        if is_up:
            self._record_event(NORMAL, names.REASON_PERSISTENCE_UP, "storage is available again")
            return
        is_blocked = self.when_unavailable == "block"
        consequence = "creations are blocked" if is_blocked else "creations are not recorded"
        cause = f": {self.objects.fault}" if self.objects.fault else ""
        message = f"storage is not available, {consequence}{cause}"
        self._record_event(WARNING, names.REASON_PERSISTENCE_DOWN, message)

    async def _cluster_id(self, name: str) -> MachineId:
        if self._cluster_uid:
            return new_machine_id(self._cluster_uid, name)
        try:
            namespace = msgspec.json.decode(await self._client.raw("GET", CLUSTER_ID_PATH))
        except Forbidden as error:
            raise BackendUnavailable(
                "the role of the daemon lacks the verb get of the namespace kube-system; apply "
                "rbac.yaml or the chart of this version"
            ) from error
        return new_machine_id(namespace["metadata"]["uid"], name)

    async def _keep_secrets(self, store: Backend, name: str, *, rotates: bool) -> None:
        """Open the secret store with retries; then seal its secrets again with the first key.

        Without `rotates` or old keys, the secrets stay unchanged. A permanent failure is logged.
        """
        if self._cluster_uid:
            # The secret store may be empty, so only the storage of objects can prove that the
            # cluster is known.
            await self.objects.tried.wait()
            if not self.objects.is_open:
                return
        while True:
            if await self._try_open(store, name):
                if not rotates or not getattr(store.provider, "has_old_keys", False):
                    return
                try:
                    rotation = await store.provider.rotate(store.instance)
                except BackendUnavailable as error:
                    self._log.warning("secret rotation failed, retrying", error=str(error))
                except PersistenceError as error:
                    self._log.error("secret store failed", error=str(error))
                    return
                else:
                    self._log.info(
                        "secrets rotated to the first key",
                        instance=store.instance,
                        rewritten=rotation.rewritten,
                        current=rotation.current,
                        left=rotation.failed,
                    )
                    return
            await asyncio.sleep(RETRY_S)


def _backend(
    entry: Mapping[str, Any],
    place: str,
    context: registry.BackendContext,
    group: str = registry.OBJECTS,
) -> Backend:
    """Build the backend that an entry of the file names.

    Raises:
        BackendDead: the backend is unknown or unusable.
        ConfigError: its settings are invalid.
    """
    name, settings = _single_entry(entry, place)
    declared, make = registry.load_backend(name, group)
    parsed = [_settings(declared, settings, f"{place}.{name}")]
    methods = METHODS if group == registry.OBJECTS else SECRET_METHODS
    return Backend(name, make(parsed, context), methods)


async def _check_cluster(backend: Backend, uid: str) -> None:
    """Raise BackendDead if the backend can tell that it has no data of a cluster."""
    clusters = getattr(backend.provider, "clusters", None)
    known = await clusters(backend.instance, uid) if clusters is not None else None
    if known is not None and uid not in known:
        raise BackendDead(
            f"the storage has no data of the cluster {uid}, only of: {', '.join(known) or 'none'}. "
            "--from-cluster-id is the UID that the namespace kube-system of the lost cluster had"
        )


def _is_lost_with_cluster(entry: Mapping[str, Any]) -> bool:
    inner = (entry.get("encrypted") or {}).get("storage", {})
    return not _LOST_WITH_CLUSTER.isdisjoint((*entry, *inner))


def stored_in_cluster(file: str, namespace: str) -> set[tuple[str, str]]:
    """Return resource and namespace of the objects that a file stores in the cluster.

    The result is empty for an invalid file, with which the daemon does not start.

    Args:
        file: value of `--persistence-config`; empty = ConfigMaps of the cluster.
        namespace: namespace of the daemon's Lease.
    """
    try:
        config = _read(file) if file else IN_CLUSTER
        stored = [("configmaps", _single_entry(entry, "instances")) for entry in config.instances]
        if config.secrets is not None:
            name, settings = _single_entry(config.secrets, "secrets")
            stored.append(("secrets", (name, settings)))
            if name == "encrypted" and isinstance(inner := settings.get("storage"), dict):
                stored.append(("configmaps", _single_entry(inner, "secrets.encrypted.storage")))
    except ConfigError:
        return set()
    return {
        (resource, settings.get("namespace") or namespace)
        for resource, (name, settings) in stored
        if name == "kubernetes"
    }


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Raise Misconfigured, with the file's name, for BackendDead and ConfigError in the block."""
    try:
        yield
    except (BackendDead, ConfigError) as error:
        raise Misconfigured(f"{FLAG}={file}: {error}") from error


def _read(file: str) -> PersistenceConfig:
    try:
        body = Path(file).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {files.describe_error(error)}") from error
    try:
        return Document(config=body, source="the file").settings(PersistenceConfig)
    except ConfigError as error:
        raise ConfigError(*map(_explain_removed, error.faults)) from error


def _explain_removed(fault: str) -> str:
    path = fault.partition(" ")[0]
    name = path.rpartition(".")[2]
    return f"{path} {_REMOVED[name]}" if name in _REMOVED else fault


def _single_entry(entry: Mapping[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    """Return the only key of a mapping (a backend name), and its value (the settings).

    Raises:
        ConfigError: the mapping has another number of keys, or the value is no mapping.
    """
    if len(entry) != 1:
        raise ConfigError(
            f"{place} must name one backend with its settings, such as "
            "`sqlite: {path: /var/lib/kube-ccm/store/ccm.db}`"
        )
    ((name, settings),) = entry.items()
    if not isinstance(settings, dict | None):
        raise ConfigError(f"{place}.{name} must be a mapping of settings to values")
    return name, settings or {}


def _settings(declared: type[msgspec.Struct], given: dict[str, Any], where: str) -> Any:
    try:
        return Fields(given, where=where).read(declared)
    except ConfigError as error:
        raise ConfigError(*map(_explain_removed, error.faults)) from error
