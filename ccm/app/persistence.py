"""Storage that outlives the daemon: configured at start, open while this replica leads.

This module is imported only with `--persistence-config`, and loads only the backends that the
file names. The file is validated at start. Storage is opened after the Lease is acquired, because
only one process may use a storage folder, and a former leader must not write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ccm.app.clients import ProviderClient
from ccm.app.provider import Misconfigured
from ccm.base import files, log
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.config import Context as Document
from ccm.cloud.settings import ConfigError, Fields
from ccm.kube.client import Client
from ccm.model import names
from ccm.model.names import NORMAL, WARNING
from ccm.persistence import registry
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.errors import (
    BackendDead,
    BackendUnavailable,
    NoInstanceReachable,
    PersistenceError,
)
from ccm.persistence.interface import MachineId, new_machine_id
from ccm.persistence.replication import Backend, ReplicationManager
from ccm.persistence.secrets import SECRET_METHODS
from ccm.serving.health import PASSED, CheckResult, failed

FLAG = "--persistence-config"
CLIENT = "persistence"
"""Name of the API client that reads the cluster's UID, and reads and writes Secrets."""

CLUSTER_ID_PATH = "/api/v1/namespaces/kube-system"
"""Path of the namespace whose UID identifies the cluster; the UID never changes."""

RETRY_S = 30.0
"""Seconds between attempts to open the secret store, and between attempts to rotate its secrets."""


class PersistenceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file that `--persistence-config` names."""

    instances: Annotated[
        tuple[dict[str, Any], ...],
        msgspec.Meta(description="Storage instances, each as a map of backend name to settings."),
    ]
    write_policy: Annotated[
        Literal["any", "majority", "all"],
        msgspec.Meta(description="Number of instances that must acknowledge a write."),
    ] = "any"
    when_unavailable: Annotated[
        Literal["degrade", "block"],
        msgspec.Meta(
            description="While no instance is up: degrade creates resources without records, block "
            "creates none that need a record."
        ),
    ] = "degrade"
    repair_queue: Annotated[
        int, msgspec.Meta(description="Maximum missed writes queued for one instance.", ge=1)
    ] = 10_000
    secrets: Annotated[
        dict[str, Any] | None,
        msgspec.Meta(description="Secret store: `kubernetes` or `encrypted`."),
    ] = None


class PersistenceStores:
    """All persistence backends that one file configures.

    Args:
        file: value of `--persistence-config`.
        client: client of the API server.
        namespace: namespace of the daemon's Lease; Secrets are stored there unless the file
            names another one.
        record_event: called with (type, reason, message), to record an event about the daemon.

    Raises:
        Misconfigured: the file is invalid.
    """

    def __init__(
        self,
        file: str,
        client: Client,
        *,
        namespace: str,
        record_event: Callable[[str, str, str], None] = lambda *_: None,
    ) -> None:
        self._file = file
        self._record_event = record_event
        self._client = client
        self._writer = WriterIdentity()
        self._is_open = False
        self._context = registry.BackendContext(
            writer=lambda: self._writer,
            requests=ProviderClient(client),
            namespace=namespace,
            read=_settings,
        )
        with _named(file):
            config = _read(file)
            self.manager = ReplicationManager(
                list(self._backends(config)),
                policy=config.write_policy,
                when_down=config.when_unavailable,
                writer=lambda: self._writer,
                limit=config.repair_queue,
                on_change=partial(self._record_availability, config.when_unavailable),
            )
            self._secrets = self._secret_store(config)

    @property
    def secrets(self) -> Any:
        """Provider of the secret store; None without a `secrets` section."""
        return None if self._secrets is None else self._secrets.provider

    @asynccontextmanager
    async def opened(
        self, name: str, identity: str, epoch: int, *, rotates: bool = True
    ) -> AsyncIterator[None]:
        """Open storage for the block; flush and close it at the end.

        Args:
            name: name of the cluster.
            identity: identity of the leader.
            epoch: `leaseTransitions` of the Lease.
            rotates: whether to seal secrets again that are sealed with an old key.

        Raises:
            Misconfigured: the storage belongs to another cluster, or other users can read it.
            KubeError: the UID of the cluster cannot be read.
        """
        self._writer = WriterIdentity(identity=identity, epoch=epoch)
        machine = await self._cluster_id(name)
        keeping = None
        try:
            with _named(self._file):
                await self.manager.initialize(machine)
                if self._secrets is not None:
                    await self._secrets.open(machine)
                    keep = self._rotate_secrets(self._secrets, machine, rotates=rotates)
                    keeping = spawn(keep, name="persistence-secrets")
            self._is_open = True
            log.logger("persistence").info("persistence opened", count=len(self.manager.replicas))
            yield
        finally:
            self._is_open = False
            await cancel_and_join(keeping)
            await self.manager.close()
            if self._secrets is not None:
                await self._secrets.close()
            log.logger("persistence").info("persistence closed")

    async def health(self) -> CheckResult:
        """Return the health of storage.

        The result is a failure only if no instance is available and creations need one.
        """
        if not self._is_open:
            return CheckResult(detail="closed, standing by")
        down = [member.name for member in self.manager.replicas if not await member.is_up()]
        down += [
            name for name, latency in (await self.secret_latencies()).items() if latency is None
        ]
        if not await self.manager.may_create():
            return failed("no storage instance is available, creations are blocked")
        return CheckResult(detail=f"down: {', '.join(down)}") if down else PASSED

    async def secret_latencies(self) -> Mapping[str, float | None]:
        """Return the mean seconds per write of a secret, by instance.

        None instead of a number means that the instance is unavailable.
        """
        latencies: dict[str, float | None] = {}
        for name in self.secrets.instances() if self.secrets else ():
            status = await self.secrets.instance_status(name)
            latencies[name] = status.mean_persist_latency if status.status else None
        return latencies

    def _record_availability(self, when_down: str, is_up: bool) -> None:
        if is_up:
            self._record_event(NORMAL, names.REASON_PERSISTENCE_UP, "storage is available again")
            return
        consequence = (
            "creations are not recorded" if when_down == "degrade" else "creations are blocked"
        )
        self._record_event(
            WARNING,
            names.REASON_PERSISTENCE_DOWN,
            f"no storage instance is available, {consequence}",
        )

    async def _cluster_id(self, name: str) -> MachineId:
        namespace = msgspec.json.decode(await self._client.raw("GET", CLUSTER_ID_PATH))
        return new_machine_id(namespace["metadata"]["uid"], name)

    async def _rotate_secrets(self, store: Backend, machine: MachineId, *, rotates: bool) -> None:
        """Open the secret store, with retries; then seal the secrets of all instances again.

        Secrets are sealed with the first key; without `rotates` or old keys, they stay unchanged.
        Unavailable instances are retried. A permanent failure is logged.
        """
        logger = log.logger("persistence")
        try:
            while not store.is_open:
                await asyncio.sleep(RETRY_S)
                await store.open(machine)
            if not rotates or not getattr(store.provider, "has_old_keys", False):
                return
            pending = list(store.provider.instances())
            while pending:
                pending = [
                    instance for instance in pending if not await self._is_rotated(store, instance)
                ]
                if pending:
                    await asyncio.sleep(RETRY_S)
        except PersistenceError as error:
            logger.error("secret store failed", error=str(error))

    async def _is_rotated(self, store: Backend, name: str) -> bool:
        """Seal all secrets of an instance with the first key.

        Returns:
            True once done; False if the instance is unavailable now, and the caller should retry.

        Raises:
            PersistenceError: a permanent failure.
        """
        logger = log.logger("persistence")
        try:
            rotation = await store.provider.rotate(name)
        except (NoInstanceReachable, BackendUnavailable) as error:
            logger.warning(
                "secret rotation failed, retrying", instance=name, error=str(error), after_s=RETRY_S
            )
            return False
        logger.info(
            "secrets rotated to the first key",
            instance=name,
            rewritten=rotation.rewritten,
            current=rotation.current,
            left=rotation.failed,
        )
        return True

    def _backends(self, config: PersistenceConfig) -> Iterator[Backend]:
        """Yield one backend for each backend name, with all instances of that name.

        Raises:
            BackendDead: there are no instances, or two of them use the same storage.
            ConfigError: an instance has invalid settings.
        """
        by_name: dict[str, list[dict[str, Any]]] = {}
        for at, instance in enumerate(config.instances):
            name, settings = _single_entry(instance, f"instances[{at}]")
            by_name.setdefault(name, []).append(settings)
        if not by_name:
            raise BackendDead("instances is empty; add an instance or omit the flag")
        for name, raw_settings in by_name.items():
            declared, make = registry.load_backend(name)
            parsed = [_settings(declared, raw, name) for raw in raw_settings]
            backend = Backend(name, partial(make, parsed, self._context))
            if len(backend.instances) < len(parsed):
                raise BackendDead(f"{name}: two instances use the same storage; remove one")
            yield backend

    def _secret_store(self, config: PersistenceConfig) -> Backend | None:
        if config.secrets is None:
            return None
        name, settings = _single_entry(config.secrets, "secrets")
        declared, make = registry.load_backend(name, registry.SECRETS)
        parsed = [_settings(declared, settings, f"secrets.{name}")]
        return Backend(name, partial(make, parsed, self._context), SECRET_METHODS)


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
    return Document(config=body, source="the file").settings(PersistenceConfig)


def _single_entry(given: Mapping[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    """Return the only key of a mapping (a backend name), and its value (the settings).

    Raises:
        ConfigError: the mapping has another number of keys, or the value is no mapping.
    """
    if len(given) != 1:
        raise ConfigError(
            f"{place} must name one backend with its settings, such as "
            "`file: {root: /var/lib/kube-ccm/store}`"
        )
    ((name, settings),) = given.items()
    if not isinstance(settings, dict | None):
        raise ConfigError(f"{place}.{name} must be a mapping of settings to values")
    return name, settings or {}


def _settings(declared: type[msgspec.Struct], given: dict[str, Any], where: str) -> Any:
    return Fields(given, where=where).read(declared)
