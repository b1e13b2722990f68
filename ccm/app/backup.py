"""Snapshots of machine objects in storage that outlives the cluster, and their restore.

A snapshot is one stored object with compressed JSON, about 100 bytes per Machine. If the
configuration has an encrypted secret store, the snapshot is stored there, and contains the Secrets
to which the objects refer. Otherwise, credentials in the objects are masked.

A restored object has a new UID and no owner references: the garbage collector deletes an object
whose owner does not exist. The controllers adopt the objects by their selectors. A restored Machine
finds its VM by provider ID, name, class, namespace and marker of the cluster; in an API group with
`Names.former_uid`, by its former UID.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from ccm.app.journalchanges import BATCH
from ccm.app.machineapis import MachineApi, title_of
from ccm.app.persistence import PersistenceStores
from ccm.base import redact
from ccm.base.decoding import DECODE_ERRORS
from ccm.kube.client import Client
from ccm.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound
from ccm.kube.resources import SECRETS, ResourceKind
from ccm.machines.settings import Names
from ccm.model.names import ANNOTATION_LAST_APPLIED
from ccm.persistence.errors import CorruptObject, PersistenceError
from ccm.persistence.interface import GVK, ObjectKey
from ccm.persistence.journal import EntryState, Journal, JournalEntry
from ccm.persistence.objects import COMPRESSED, key_of, masked_paths, without_credentials

SNAPSHOTS = GVK(COMPRESSED, "v1", "MachineBackup")
"""Kind of stored snapshots."""

_ORDER = ("Secret", "MachineClass", "Machine", "MachineSet", "MachineDeployment")
"""Kinds in the order of their restore: owned objects before their owners."""

_OWNED = ("Machine", "MachineSet")
"""Kinds with owners that replace absent objects."""

_NAME_FORMAT = "%Y%m%d-%H%M%S-%f"
_FIELD = "snapshot"
_SEALED = "backup-"
"""Prefix of the names of snapshots in the secret store."""

_METADATA = ("name", "namespace", "uid", "labels", "finalizers", "deletionTimestamp")
_REFERENCES = ("secretRef", "credentialsSecretRef", "secretKeyRef")

Json = dict[str, Any]
StoredEntry = tuple[str, Json]
"""Name of an API group, and one of its objects or a Secret to which one of them refers."""


class BackupError(PersistenceError):
    """A snapshot cannot be written or read; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineObjects:
    """Machine objects of an API group that a cluster serves.

    Attributes:
        api: the API group.
        kinds: its kinds that the cluster serves.
        client: client of the cluster that stores the objects.
        namespace: namespace of the objects.
        marker: marker of the VMs in the cloud (`--cluster-id`).
    """

    api: MachineApi
    kinds: Sequence[ResourceKind[Any]]
    client: Client
    namespace: str
    marker: str

    async def items(self, kind: ResourceKind[Any]) -> AsyncIterator[Json]:
        """Yield the objects of a kind as they are stored.

        Raises:
            BackupError: an object cannot be decoded.
            KubeError: the objects could not be read.
        """
        undecoded = replace(kind, document=Json, convert=None)
        async for page in self.client.resource(undecoded).pages(namespace=self.namespace):
            if page.malformed_keys:
                # The snapshot would lack them.
                names = ", ".join(key or "of an unknown name" for key in page.malformed_keys)
                raise BackupError(f"{kind.kind} {names} cannot be decoded; correct or delete it")
            for item in page.items:
                yield _to_stored(kind, item)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Machine objects of a cluster at one time.

    Attributes:
        markers: markers of the VMs.
        entries: the objects.
    """

    markers: list[str]
    entries: list[StoredEntry]


class BackupStorage:
    """Storage of the snapshots of one cluster. The name of a snapshot is its time in UTC.

    Args:
        stores: open storage outside of the cluster.

    Attributes:
        is_encrypted: whether new snapshots are encrypted and contain Secrets.
    """

    def __init__(self, stores: PersistenceStores) -> None:
        self._objects, self._secrets = stores.objects, stores.secrets
        self.is_encrypted = stores.secrets is not None

    async def names(self) -> list[str]:
        """Return the names of all snapshots, newest first. Raises PersistenceError."""
        stored = await self._objects.provider.get_all_objects(self._objects.instance, SNAPSHOTS)
        names = [obj["metadata"]["name"] for obj in stored]
        if self._secrets is not None:
            sealed = await self._secrets.provider.list_secrets(self._secrets.instance)
            prefix = _sealed_key("")
            names += [key.removeprefix(prefix) for key in sealed if key.startswith(prefix)]
        return sorted(names, reverse=True)

    async def put(self, name: str, snapshot: Snapshot) -> None:
        """Store a snapshot. Raises PersistenceError."""
        body = zlib.compress(msgspec.json.encode(snapshot))
        if self._secrets is not None:
            provider, instance = self._secrets.provider, self._secrets.instance
            await provider.put_secret(instance, f"{_SEALED}{name}", {_FIELD: body})
        else:
            obj = {
                "apiVersion": SNAPSHOTS.api_version,
                "kind": SNAPSHOTS.kind,
                "metadata": {"name": name},
                _FIELD: base64.b64encode(body).decode(),
            }
            await self._objects.provider.put_object(self._objects.instance, obj)

    async def load(self, name: str = "") -> tuple[str, Snapshot]:
        """Return the snapshot of a name, and the name; without a name, the newest one.

        Raises:
            BackupError: the snapshot does not exist, or is damaged.
            PersistenceError: the storage failed.
        """
        names = await self.names()
        shown = ", ".join(names) or "none"
        if not names or name not in ("", *names):
            raise BackupError(
                f"the storage has no snapshot {name or 'of this cluster'}, only: {shown}. For "
                "encrypted ones, add `secrets: {encrypted: ...}` with their keys to the file; for "
                "another cluster, set --from-cluster-id to the UID of its namespace kube-system"
            )
        name = name or names[0]
        try:
            content = zlib.decompress(await self._read(name))
            return name, msgspec.json.decode(content, type=Snapshot)
        except (CorruptObject, KeyError, ValueError, zlib.error, *DECODE_ERRORS) as error:
            raise BackupError(
                f"snapshot {name} cannot be read: {error}; set --snapshot to another of: {shown}"
            ) from error

    async def prune(self, newest: str, keep: int) -> None:
        """Delete old snapshots, except `newest` and the `keep` newest ones."""
        for name in set((await self.names())[keep:]) - {newest}:
            provider, instance = self._objects.provider, self._objects.instance
            await provider.delete_object(instance, SNAPSHOTS, key_of("", name))
            if self._secrets is not None:
                provider, instance = self._secrets.provider, self._secrets.instance
                await provider.delete_secret(instance, _sealed_key(name))

    async def _read(self, name: str) -> bytes:
        provider, instance = self._objects.provider, self._objects.instance
        obj = await provider.get_object(instance, SNAPSHOTS, key_of("", name))
        if obj is not None:
            return base64.b64decode(obj[_FIELD])
        assert self._secrets is not None
        data = await self._secrets.provider.get_secret(self._secrets.instance, _sealed_key(name))
        if data is None:
            raise CorruptObject("it was deleted meanwhile")
        return bytes(data[_FIELD])


def _sealed_key(name: str) -> ObjectKey:
    return key_of("", f"{_SEALED}{name}")


# --- backup ---------------------------------------------------------------------------------------


async def back_up(
    groups: Sequence[MachineObjects],
    storage: BackupStorage,
    *,
    now: datetime,
    keep: int,
    dry_run: bool,
    report: Callable[[str], None],
) -> None:
    """Store a snapshot of all machine objects; then delete older snapshots.

    Args:
        groups: API groups.
        storage: storage of the snapshot.
        now: the time in UTC.
        keep: number of snapshots to keep.
        dry_run: whether nothing is stored or deleted.
        report: shows a line.

    Raises:
        BackupError: there are no machine objects.
        KubeError: the objects could not be read.
        PersistenceError: the storage failed.
    """
    entries: list[StoredEntry] = []
    for group in groups:
        # Machines first: if a set is scaled up meanwhile, the snapshot lacks a Machine. In the
        # other order, the stored set would have too few replicas, and delete a VM that is in use.
        objects = [obj for kind in group.kinds async for obj in group.items(kind)]
        wanted = {key for obj in objects for key in _references(obj, obj["metadata"])}
        if storage.is_encrypted:
            objects += [obj async for obj in _secrets(group.client, sorted(wanted), report)]
        else:
            objects = [without_credentials(obj) for obj in objects]
            omitted = [f"{_title(obj)}: {path}" for obj in objects for path in masked_paths(obj)]
            omitted += [f"Secret {namespace}/{name}" for namespace, name in sorted(wanted)]
            for text in omitted:
                report(f"{text} is a credential and is not stored without encrypted `secrets`")
        entries += [(group.api.group, obj) for obj in objects]
    if not entries:
        raise BackupError(
            "there are no machine objects, and an empty snapshot would displace the others; check "
            "--namespace and --kubermatic-namespace"
        )
    counts = Counter(title_of(obj["apiVersion"], obj["kind"]) for _, obj in entries)
    for title, count in counts.items():
        report(f"{title}: {count} {'would be ' * dry_run}stored")
    if not dry_run:
        name = now.strftime(_NAME_FORMAT)
        markers = sorted({group.marker for group in groups})
        await storage.put(name, Snapshot(markers=markers, entries=entries))
        report(f"snapshot {name} is complete")
        await storage.prune(name, keep)


async def _secrets(
    client: Client, keys: Iterable[tuple[str, str]], report: Callable[[str], None]
) -> AsyncIterator[Json]:
    for namespace, name in keys:
        try:
            body = await client.raw("GET", SECRETS.path(namespace=namespace, name=name))
        except (NotFound, Forbidden) as error:
            report(f"Secret {namespace}/{name} is not stored: {error}")
        else:
            yield _to_stored(SECRETS, msgspec.json.decode(body))


def _to_stored(kind: ResourceKind[Any], obj: Json) -> Json:
    """Return an object without its status and most of the metadata that the API server sets."""
    stored = obj["metadata"]
    metadata = {key: stored[key] for key in _METADATA if key in stored}
    # The last applied object may contain credentials that the present object lacks.
    metadata["annotations"] = {
        key: value
        for key, value in (stored.get("annotations") or {}).items()
        if key != ANNOTATION_LAST_APPLIED
    }
    content = {key: value for key, value in obj.items() if key != "status"}
    return {**content, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def _references(value: Any, metadata: Json) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of the Secrets to which an object with that metadata refers."""
    if isinstance(value, list):
        for inner in value:
            yield from _references(inner, metadata)
    elif isinstance(value, dict):
        for field, inner in value.items():
            if field in _REFERENCES and isinstance(inner, dict) and inner.get("name"):
                yield str(inner.get("namespace") or metadata["namespace"]), str(inner["name"])
            yield from _references(inner, metadata)


def _title(obj: Json) -> str:
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    return f"{title_of(obj['apiVersion'], obj['kind'])} {namespace}/{name}"


# --- restore --------------------------------------------------------------------------------------


async def restore(
    groups: Iterable[MachineObjects],
    entries: Iterable[StoredEntry],
    *,
    dry_run: bool,
    report: Callable[[str], None],
    before_kind: Callable[[], Awaitable[None]],
) -> bool:
    """Create the objects of a snapshot that are absent; existing objects are left unchanged.

    If a Machine or a MachineSet cannot be created, the kinds that own it are not created either:
    they would replace it. May be interrupted and repeated.

    Args:
        groups: API groups that the cluster serves.
        entries: content of the snapshot.
        dry_run: whether the API server only checks the requests.
        report: shows a line.
        before_kind: called before the objects of each kind are created; may raise.

    Returns:
        Whether all objects exist now; with `dry_run`, whether they would.

    Raises:
        BackupError: an API group is not served, or a webhook does not respond. No object was
            created.
        KubeError: the API server does not respond.
    """
    served = {group.api.group: group for group in groups}
    ordered = sorted(entries, key=lambda entry: _ORDER.index(entry[1]["kind"]))
    if missing := {name for name, _ in ordered} - served.keys():
        raise BackupError(
            f"the cluster does not serve {', '.join(sorted(missing))}; apply the CRDs, or set "
            "--control-kubeconfig"
        )
    for name, obj in {(name, obj["kind"]): (name, obj) for name, obj in ordered}.values():
        await _check_webhooks(served[name], obj)
    results: dict[str, Counter[str]] = {}
    incomplete: dict[str, str] = {}
    former_kind = ""
    for name, obj in ordered:
        kind, result = obj["kind"], "failed"
        if kind != former_kind:
            await before_kind()
            former_kind = kind
        # After a failure, only objects of the same kind are still created.
        if incomplete.get(name, kind) == kind:
            result = await _create(served[name], obj, dry_run=dry_run, report=report)
            if result == "failed" and kind in _OWNED:
                incomplete[name] = kind
        results.setdefault(title_of(obj["apiVersion"], kind), Counter())[result] += 1
    for title, counts in results.items():
        done = f"{counts['new']} {'would be ' * dry_run}created"
        report(f"{title}: {done}, {counts['present']} exist already, {counts['failed']} failed")
    for name, kind in incomplete.items():
        report(
            f"{name}: no owner of a {kind} is created, as it would create another {kind}; correct "
            "the errors above, or create these objects yourself, and repeat the command"
        )
    return not any(counts["failed"] for counts in results.values())


async def _check_webhooks(group: MachineObjects, obj: Json) -> None:
    """Raise BackupError if the API server cannot call a webhook that new objects need."""
    try:
        await _post(group, obj, dry_run=True)
    except ApiError as error:
        # All other errors are reported for each object.
        if "failed calling webhook" in str(error):
            raise BackupError(
                f"{_title(obj)}: {redact.mask_text(str(error))}; no object was created. If the "
                "daemon serves this webhook (component kubermatic-webhook), delete its "
                "MutatingWebhookConfiguration, and apply it again when the daemon runs"
            ) from error


async def _post(group: MachineObjects, obj: Json, *, dry_run: bool) -> None:
    codec = group.api.codec
    kind = next(kind for kind in (SECRETS, *group.api.kinds) if kind.kind == obj["kind"])
    body = _to_new(obj, codec.names if kind is codec.machines else None)
    # Strict: otherwise a field that the CRD lacks is dropped without an error.
    query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
    path = kind.path(namespace=obj["metadata"]["namespace"])
    await group.client.raw("POST", path, query=query, body=msgspec.json.encode(body))


async def _create(
    group: MachineObjects, obj: Json, *, dry_run: bool, report: Callable[[str], None]
) -> str:
    """Create an object; return `new`, `present` or `failed`."""
    title = _title(obj)
    if paths := masked_paths(obj):
        report(f"{title}: not created, the snapshot lacks the value of {', '.join(paths)}")
        return "failed"
    try:
        await _post(group, obj, dry_run=dry_run)
    except AlreadyExists:
        return "present"
    except ApiError as error:
        report(f"{title}: {redact.mask_text(str(error))}")
        return "failed"
    if "deletionTimestamp" in obj["metadata"]:
        report(f"{title}: was being deleted when the snapshot was taken; delete it again if needed")
    return "new"


def _to_new(obj: Json, names: Names | None) -> Json:
    """Return an object to create; `names` only for a Machine."""
    metadata, annotations = dict(obj["metadata"]), dict(obj["metadata"]["annotations"])
    uid = metadata.pop("uid")
    metadata.pop("deletionTimestamp", None)
    if names is not None:
        # A later deletion of the Machine must not continue the former one.
        annotations.pop(names.deletion, None)
        if names.former_uid:
            # Kept if an earlier restore was not finished: the VM has an even older UID.
            annotations.setdefault(names.former_uid, uid)
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


def lacking_secrets(entries: Sequence[StoredEntry]) -> list[str]:
    """Return the keys of Secrets that are not in a snapshot although its objects refer to them."""
    named = {key for _, obj in entries for key in _references(obj, obj["metadata"])}
    secret_metadata = (obj["metadata"] for _, obj in entries if obj["kind"] == SECRETS.kind)
    stored = {(metadata["namespace"], metadata["name"]) for metadata in secret_metadata}
    return sorted(f"{namespace}/{name}" for namespace, name in named - stored)


def unrestored(source: Journal, entries: Iterable[StoredEntry]) -> list[JournalEntry]:
    """Return the entries of a lost cluster's journal whose owners are not in a snapshot.

    The other entries must not be added to another journal: their owners have new UIDs now, so that
    their resources would count as orphans.
    """
    restored = {obj["metadata"]["uid"] for _, obj in entries}
    return [
        entry
        for entry in source.entries.values()
        if entry.state is not EntryState.REMOVED
        and (entry.ephemeral or entry.owner.uid not in restored)
    ]


async def add_to_journal(target: Journal, entries: Iterable[JournalEntry], *, dry_run: bool) -> int:
    """Add the entries that a journal lacks, and return their number. Raises PersistenceError."""
    added = [entry for entry in entries if entry.name not in target.entries]
    for first in range(0, 0 if dry_run else len(added), BATCH):
        await target.put(*added[first : first + BATCH])
    return len(added)
