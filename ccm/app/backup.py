"""Snapshots of machine objects in storage that outlives the cluster, and their restore.

A snapshot is a number of pages and an index. The index is written last and deleted first: pages
without an index are remains of a snapshot. With an encrypted secret store, the pages are there, and
contain the Secrets to which the objects refer. Otherwise, credentials in the objects are masked.

A restored object has a new UID and no owner references: the garbage collector deletes an object
whose owner does not exist. The controllers adopt the objects by their selectors. A Machine keeps
its VM by provider ID, name, class, namespace and marker of the cluster; in an API group with
`Names.former_uid`, by its former UID.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ccm.app.journalchanges import BATCH
from ccm.app.machineapis import MachineApi, title_of
from ccm.app.persistence import FLAG, PersistenceStores
from ccm.base import redact
from ccm.kube.client import PAGE_SIZE, Client
from ccm.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound
from ccm.kube.resources import SECRETS, RawList, ResourceKind
from ccm.machines.settings import Names
from ccm.model.names import ANNOTATION_LAST_APPLIED
from ccm.persistence.errors import CorruptObject
from ccm.persistence.interface import GVK
from ccm.persistence.journal import EntryState, Journal
from ccm.persistence.objects import key_of, masked_paths, to_canonical_json, without_credentials
from ccm.runtime.journal import SERVER

INDEX = GVK("backup.ccm", "v1", "MachineBackup")
PAGES = GVK("backup.ccm", "v1", "MachineBackupPage")
"""Kinds of stored objects."""

PAGE_BYTES = 256 << 10
"""Maximum bytes of a page with several objects, far below the limit of every store."""

REMAINS_AGE = timedelta(days=1)
"""Age from which pages without an index are deleted; a younger snapshot may be in progress."""

_ORDER = ("Secret", "MachineClass", "Machine", "MachineSet", "MachineDeployment")
"""Kinds in the order of the restore. A set whose Machines are absent would create others."""

_NAME_FORMAT = "%Y%m%d-%H%M%S-%f"
_SEALED = "backup-"
"""Prefix of the names of pages in the secret store."""

_METADATA = ("name", "namespace", "uid", "labels", "finalizers", "deletionTimestamp")
_REFERENCES = ("secretRef", "credentialsSecretRef", "secretKeyRef")

Json = dict[str, Any]
StoredEntry = tuple[str, Json]
"""Name of an API group, and one of its objects or a Secret to which one of them refers."""


class BackupError(Exception):
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
        """Yield the objects of a kind as they are stored. Raises KubeError or `DECODE_ERRORS`."""
        query = {"limit": str(PAGE_SIZE)}
        while True:
            body = await self.client.raw("GET", kind.path(namespace=self.namespace), query=query)
            page = msgspec.json.decode(body, type=RawList)
            for item in page.items or ():
                yield _to_stored(kind, item)
            if not page.metadata.continue_:
                return
            query["continue"] = page.metadata.continue_


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Index of a complete snapshot.

    Attributes:
        name: UTC time of the snapshot.
        pages: number of pages.
        counts: name of a kind -> number of objects.
        digest: SHA-256 digest of the pages.
        markers: markers of the VMs.
        encrypted: whether the pages are in the secret store.
    """

    name: str
    pages: int
    counts: dict[str, int]
    digest: str
    markers: list[str]
    encrypted: bool


class BackupStorage:
    """Storage of the snapshots of one cluster.

    Args:
        stores: open storage.

    Raises:
        BackupError: the storage would be lost with the cluster.
    """

    def __init__(self, stores: PersistenceStores) -> None:
        self._objects, self._secrets = stores.objects, stores.secrets
        if not self._objects.outlives_cluster:
            raise BackupError(
                f"the storage would be lost with the cluster; name a file with {FLAG} whose "
                "`instances` has s3, postgres, or sqlite on a volume outside of the cluster"
            )
        if self._secrets is not None and not self._secrets.outlives_cluster:
            self._secrets = None

    @property
    def is_encrypted(self) -> bool:
        """Whether snapshots are encrypted and contain Secrets."""
        return self._secrets is not None

    async def snapshots(self) -> list[Snapshot]:
        """Return all complete snapshots, newest first."""
        stored = await self._objects.provider.get_all_objects(self._objects.instance, INDEX)
        snapshots = [msgspec.convert(obj["snapshot"], Snapshot) for obj in stored]
        return sorted(snapshots, key=lambda snapshot: snapshot.name, reverse=True)

    async def put(self, snapshot: Snapshot, pages: Iterable[bytes]) -> None:
        """Store a snapshot; it is complete only when this method returns."""
        for number, page in enumerate(pages):
            name = _page_name(snapshot, number)
            if self._secrets is None:
                await self._put(PAGES, name, "objects", json.loads(page))
            else:
                provider, instance = self._secrets.provider, self._secrets.instance
                await provider.put_secret(instance, f"{_SEALED}{name}", {"objects": page})
        await self._put(INDEX, snapshot.name, "snapshot", msgspec.to_builtins(snapshot))

    async def load(self, name: str = "") -> tuple[Snapshot, list[StoredEntry]]:
        """Return a complete snapshot and its content; without a name, the newest snapshot.

        Raises:
            BackupError: the snapshot does not exist, or is damaged.
            PersistenceError: the storage failed.
        """
        known = {snapshot.name: snapshot for snapshot in await self.snapshots()}
        names = ", ".join(known) or "none"
        if name not in ("", *known) or not known:
            raise BackupError(
                f"the storage has no snapshot {name or 'of this cluster'}, only: {names}. For a "
                "snapshot of another cluster, set --from-cluster-id"
            )
        snapshot = known[name or max(known)]
        try:
            pages = [await self._page(snapshot, number) for number in range(snapshot.pages)]
            if _digest(pages) != snapshot.digest:
                raise CorruptObject("the pages do not match the digest")
        except CorruptObject as error:
            raise BackupError(
                f"snapshot {snapshot.name}: {error}; set --snapshot to another one of: {names}"
            ) from error
        return snapshot, [(group, obj) for page in pages for group, obj in json.loads(page)]

    async def prune(self, newest: str, keep: int, oldest_remains: str) -> None:
        """Delete old snapshots and remains; keep `newest`, and the `keep` newest ones."""
        provider, instance = self._objects.provider, self._objects.instance
        known = [snapshot.name for snapshot in await self.snapshots()]
        kept = {newest, *known[:keep]}

        def is_waste(page: str) -> bool:
            name = page.rpartition("-")[0]
            return name not in kept and (name in known or name < oldest_remains)

        for name in set(known) - kept:
            await provider.delete_object(instance, INDEX, key_of("", name))
        for key in [key async for key, _, _ in provider.iter_objects(instance, PAGES)]:
            if is_waste(key.rpartition("/")[2]):
                await provider.delete_object(instance, PAGES, key)
        if self._secrets is not None:
            provider, instance = self._secrets.provider, self._secrets.instance
            for key in await provider.list_secrets(instance):
                page = key.rpartition("/")[2]
                if page.startswith(_SEALED) and is_waste(page.removeprefix(_SEALED)):
                    await provider.delete_secret(instance, key)

    async def _put(self, kind: GVK, name: str, field: str, content: Any) -> None:
        head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
        await self._objects.provider.put_object(self._objects.instance, {**head, field: content})

    async def _page(self, snapshot: Snapshot, number: int) -> bytes:
        name = _page_name(snapshot, number)
        if not snapshot.encrypted:
            provider, instance = self._objects.provider, self._objects.instance
            obj = await provider.get_object(instance, PAGES, key_of("", name))
            if obj is not None:
                return to_canonical_json(obj["objects"])
        elif self._secrets is None:
            raise BackupError(
                f"snapshot {snapshot.name} is encrypted; add `secrets: {{encrypted: ...}}` with "
                "its keys to the file"
            )
        else:
            provider, instance = self._secrets.provider, self._secrets.instance
            data = await provider.get_secret(instance, key_of("", f"{_SEALED}{name}"))
            if data is not None:
                return bytes(data["objects"])
        raise CorruptObject(f"page {name} is missing")


def _page_name(snapshot: Snapshot, number: int) -> str:
    return f"{snapshot.name}-{number:03}"


def _digest(pages: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(pages)).hexdigest()


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
        # Machines first: if a set is scaled up meanwhile, the snapshot lacks a Machine. The other
        # order would lack replicas, and the restored set would delete a VM that is in use.
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
    if dry_run:
        return
    pages = [*_to_pages(entries)]
    snapshot = Snapshot(
        name=now.strftime(_NAME_FORMAT),
        pages=len(pages),
        counts=dict(counts),
        digest=_digest(pages),
        markers=sorted({group.marker for group in groups}),
        encrypted=storage.is_encrypted,
    )
    await storage.put(snapshot, pages)
    report(f"snapshot {snapshot.name} is complete")
    await storage.prune(snapshot.name, keep, (now - REMAINS_AGE).strftime(_NAME_FORMAT))


async def _secrets(
    client: Client, keys: Iterable[tuple[str, str]], report: Callable[[str], None]
) -> AsyncIterator[Json]:
    for namespace, name in keys:
        try:
            body = await client.raw("GET", SECRETS.path(namespace=namespace, name=name))
        except (NotFound, Forbidden) as error:
            report(f"Secret {namespace}/{name} is not stored: {error}")
        else:
            yield _to_stored(SECRETS, body)


def _to_stored(kind: ResourceKind[Any], body: bytes | msgspec.Raw) -> Json:
    """Return an object without its status and most of the metadata that the API server sets."""
    obj = msgspec.json.decode(body, type=Json)
    given = obj["metadata"]
    metadata = {key: given[key] for key in _METADATA if key in given}
    # The last applied object may contain credentials that the present object lacks.
    metadata["annotations"] = {
        key: value
        for key, value in (given.get("annotations") or {}).items()
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


def _to_pages(entries: Iterable[StoredEntry]) -> Iterator[bytes]:
    """Yield the canonical JSON of the pages."""
    page, size = list[StoredEntry](), 0
    for entry in entries:
        length = len(to_canonical_json(entry))
        if page and size + length > PAGE_BYTES:
            yield to_canonical_json(page)
            page, size = [], 0
        page.append(entry)
        size += length
    yield to_canonical_json(page)


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
) -> bool:
    """Create the objects of a snapshot that are absent; existing objects are left unchanged.

    May be interrupted and repeated.

    Args:
        groups: API groups that the cluster serves.
        entries: content of the snapshot.
        dry_run: whether the API server only checks the requests.
        report: shows a line.

    Returns:
        Whether all objects exist now; with `dry_run`, whether they would.

    Raises:
        BackupError: an API group is not served; nothing was created.
        KubeError: the API server does not respond.
    """
    served = {group.api.group: group for group in groups}
    ordered = sorted(entries, key=lambda entry: _ORDER.index(entry[1]["kind"]))
    if missing := {name for name, _ in ordered} - served.keys():
        raise BackupError(
            f"the cluster does not serve {', '.join(sorted(missing))}; apply the CRDs, or set "
            "--control-kubeconfig"
        )
    results: dict[str, Counter[str]] = {}
    for name, obj in ordered:
        result = await _create(served[name], obj, dry_run=dry_run, report=report)
        results.setdefault(title_of(obj["apiVersion"], obj["kind"]), Counter())[result] += 1
    for title, counts in results.items():
        done = f"{counts['new']} {'would be ' * dry_run}created"
        report(f"{title}: {done}, {counts['present']} exist already, {counts['failed']} failed")
    return not any(counts["failed"] for counts in results.values())


async def _create(
    group: MachineObjects, obj: Json, *, dry_run: bool, report: Callable[[str], None]
) -> str:
    """Create an object; return `new`, `present` or `failed`."""
    title, codec = _title(obj), group.api.codec
    if paths := masked_paths(obj):
        report(f"{title}: not created, the snapshot lacks the value of {', '.join(paths)}")
        return "failed"
    kind = next(kind for kind in (SECRETS, *group.api.kinds) if kind.kind == obj["kind"])
    body = _to_new(obj, codec.names if kind is codec.machines else None)
    # Strict: otherwise a field that the CRD lacks is dropped without an error.
    query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
    path = kind.path(namespace=obj["metadata"]["namespace"])
    try:
        await group.client.raw("POST", path, query=query, body=msgspec.json.encode(body))
    except AlreadyExists:
        return "present"
    except ApiError as error:
        report(f"{title}: {redact.mask_text(str(error))}")
        return "failed"
    if "deletionTimestamp" in obj["metadata"]:
        report(f"{title}: was being deleted at the time of the snapshot")
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
            # Present after a restore that was not finished: the VM has an even older UID.
            annotations.setdefault(names.former_uid, uid)
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


async def copy_journal(
    source: Journal, target: Journal, entries: Iterable[StoredEntry], *, dry_run: bool
) -> int:
    """Add the entries of a lost cluster's journal to the journal of this cluster.

    VMs of restored Machines are left out, because their owners have other UIDs. Raises
    PersistenceError.

    Args:
        source: journal of the lost cluster.
        target: journal of this cluster.
        entries: content of the restored snapshot.
        dry_run: whether nothing is written.

    Returns:
        The number of added entries.
    """
    restored = {obj["metadata"]["uid"] for _, obj in entries}
    added = [
        entry
        for entry in source.entries.values()
        if entry.name not in target.entries
        and entry.state is not EntryState.REMOVED
        and not (entry.resource == SERVER and entry.owner.uid in restored)
    ]
    for first in range(0, 0 if dry_run else len(added), BATCH):
        await target.put(*added[first : first + BATCH])
    return len(added)
