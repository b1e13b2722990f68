"""Snapshots of machine objects, and their restore into an empty cluster."""

from __future__ import annotations

import base64
import hashlib
import uuid
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from ccm.app import backup
from ccm.app.backup import BackupError, BackupStorage, MachineObjects, Snapshot
from ccm.app.machineapis import APIS, GARDENER, KUBERMATIC, MachineApi
from ccm.app.persistence import Backend, PersistenceStores
from ccm.app.provider import Misconfigured
from ccm.base import redact
from ccm.gardener import names as gardener
from ccm.kube import errors
from ccm.kube.client import Client, Resource
from ccm.kube.resources import CRDS, NAMESPACES, SECRETS
from ccm.kubermatic import names as kubermatic
from ccm.persistence.engine import StoreProvider
from ccm.persistence.errors import BackendUnavailable, Fenced
from ccm.persistence.journal import EntryState, Journal, JournalEntry, Owner
from ccm.persistence.memory import MemoryStore
from ccm.persistence.objects import masked_paths, validate, without_credentials
from ccm.persistence.secrets import SECRET_METHODS, EncryptedSecretStore
from ccm.testing.apiserver.transport import MemoryTransport
from ccm.testing.persistence_harness import HERE
from tests.manifests import shipped
from tests.unit.persistence.helpers import NAME, provider

DEFAULTS = Resource.list_page.__kwdefaults__ or {}
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
NAMESPACE = "default"
TOKEN = "a-token-of-the-cloud"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass
class Api:
    """A cluster that serves both API groups.

    Attributes:
        requests: methods and paths of the writes.
        refused: path of the objects whose creation fails.
        error: how it fails.
    """

    apis: Sequence[MachineApi] = APIS
    requests: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    refused: str = ""
    error: errors.ApiError = field(
        default_factory=lambda: errors.Invalid(status=422, reason="Invalid", message="spec: wrong")
    )

    def __post_init__(self) -> None:
        self.transport = MemoryTransport()
        self.client = self.transport.client()
        for name in (NAMESPACE, "kube-system"):
            with suppress(errors.AlreadyExists):
                self.create(NAMESPACES, {"metadata": {"name": name}})
        for api in self.apis:
            for definition in api.definitions:
                self.create(CRDS, definition.to_manifest())
        answer = self.transport.answer

        def recorded(method: str, path: str, *rest: Any) -> bytes:
            if method == "POST":
                self.requests.append((method, path, rest[-1] or {}))
                if self.refused and path.endswith(self.refused):
                    raise self.error
            return answer(method, path, *rest)

        self.transport.answer = recorded  # type: ignore[assignment,method-assign]

    def create(self, kind: Any, body: Mapping[str, Any], namespace: str = "") -> dict[str, Any]:
        path = kind.path(namespace=namespace)
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        made = self.transport.answer("POST", path, msgspec.json.encode(whole))
        return dict(msgspec.json.decode(made))

    def items(self, kind: Any) -> list[dict[str, Any]]:
        listed = msgspec.json.decode(self.transport.answer("GET", kind.path()))
        return list(listed["items"])

    def find(self, kind: Any, name: str) -> dict[str, Any]:
        (one,) = [item for item in self.items(kind) if item["metadata"]["name"] == name]
        return one

    def groups(self, marker: str = "marker") -> list[MachineObjects]:
        return [
            MachineObjects(
                api=api, kinds=api.kinds, client=self.client, namespace=NAMESPACE, marker=marker
            )
            for api in self.apis
        ]


@dataclass
class World:
    """A cluster, and storage outside of it."""

    store: MemoryStore = field(default_factory=MemoryStore)
    lines: list[str] = field(default_factory=list)
    api: Api = field(default_factory=Api)

    def __post_init__(self) -> None:
        self.objects = provider(self.store)
        self.sealed = EncryptedSecretStore(provider(MemoryStore(), sensitive=True), [b"k" * 32])

    def storage(self, *, encrypted: bool = False) -> BackupStorage:
        secrets = Backend("encrypted", self.sealed, SECRET_METHODS) if encrypted else None
        stores = SimpleNamespace(objects=Backend("memory", self.objects), secrets=secrets)
        return BackupStorage(cast("PersistenceStores", stores))

    async def back_up(self, *, encrypted: bool = False, **how: Any) -> str:
        """Store a snapshot; its name."""
        given = {"now": NOW, "keep": 14, "dry_run": False, **how}
        storage = self.storage(encrypted=encrypted)
        await backup.back_up(self.api.groups(), storage, report=self.lines.append, **given)
        names = await storage.names()
        return names[0] if names else ""

    async def before_kind(self) -> None:
        """No daemon leads."""

    async def restore(
        self, api: Api, name: str = "", *, encrypted: bool = False, dry_run: bool = False
    ) -> bool:
        """Restore a snapshot."""
        _, snapshot = await self.storage(encrypted=encrypted).load(name)
        self.lines.clear()
        report, entries = self.lines.append, snapshot.entries
        return await backup.restore(
            api.groups(), entries, dry_run=dry_run, report=report, before_kind=self.before_kind
        )


@asynccontextmanager
async def opened() -> AsyncIterator[World]:
    made = World()
    await made.objects.initialize(HERE)
    await made.sealed.initialize(HERE)
    try:
        yield made
    finally:
        await made.objects.close()
        await made.sealed.close()


@pytest.fixture
def api_of_new_cluster() -> Api:
    return Api()


def owned(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": True}
    return [owner]


def fill(api: Api, token: Any = None) -> None:
    """Create a deployment, a set and a Machine of both groups, and what they refer to."""
    reference = {"secretKeyRef": {"namespace": NAMESPACE, "name": "cloud", "key": "token"}}
    value = {"cloudProvider": "sim", "cloudProviderSpec": {"token": token or reference}}
    of_kubermatic = {"providerSpec": {"value": value}, "versions": {"kubelet": "1.35.1"}}
    of_gardener = {"class": {"kind": "MachineClass", "name": "small"}}
    api.create(
        GARDENER.codec.machine_classes,
        {
            "metadata": {"name": "small", "annotations": {APPLIED: f'{{"token": "{TOKEN}"}}'}},
            "provider": "sim",
            "providerSpec": {"machineType": "small"},
            "secretRef": {"name": "class", "namespace": NAMESPACE},
        },
        NAMESPACE,
    )
    for name in ("class", "cloud", "other"):
        api.create(SECRETS, {"metadata": {"name": name}, "data": {"token": "eA=="}}, NAMESPACE)
    for group, spec in ((GARDENER, of_gardener), (KUBERMATIC, of_kubermatic)):
        codec, labels = group.codec, {"pool": "web"}
        template = {"metadata": {"labels": labels}, "spec": spec}
        common = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        api.create(
            codec.machine_deployments, {"metadata": {"name": "web"}, "spec": common}, NAMESPACE
        )
        owners = owned("MachineDeployment", "web", "uid-of-web")
        metadata = {"name": "web-1", "labels": labels, "ownerReferences": owners}
        api.create(codec.machine_sets, {"metadata": metadata, "spec": common}, NAMESPACE)
        api.create(
            codec.machines,
            {
                "metadata": {
                    "name": "web-1-a",
                    "labels": {**labels, gardener.LABEL_NODE: "web-1-a"},
                    "annotations": {codec.names.deletion: "{}", "note": "kept"},
                    "finalizers": list({codec.names.finalizer}),
                    "ownerReferences": owned("MachineSet", "web-1", "uid-of-set"),
                },
                "spec": {**spec, "providerID": "sim://1"},
                "status": {"lastOperation": {"description": "created"}},
            },
            NAMESPACE,
        )


OBJECTS = [kind for api in APIS for kind in api.kinds]


async def test_restored_objects_have_the_fields_that_identify_their_vms(
    api_of_new_cluster: Api,
) -> None:
    new = api_of_new_cluster
    async with opened() as world:
        fill(world.api)
        name = await world.back_up()
        assert world.lines[-1] == f"snapshot {name} is complete"
        assert "Machine: 1 stored" in world.lines
        assert "Machine.cluster.k8s.io: 1 stored" in world.lines

        assert await world.restore(new)

    assert "Machine: 1 created, 0 exist already, 0 failed" in world.lines
    for kind in OBJECTS:
        (before,), (after,) = world.api.items(kind), new.items(kind)
        assert {**before, "metadata": 0, "status": 0} == {**after, "metadata": 0, "status": 0}
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        for key in ("name", "namespace", "labels", "finalizers"):
            assert after["metadata"].get(key) == before["metadata"].get(key)
        assert "ownerReferences" not in after["metadata"]
        assert APPLIED not in after["metadata"].get("annotations", {})
    machine = new.find(GARDENER.codec.machines, "web-1-a")
    assert machine["metadata"]["annotations"] == {"note": "kept"}
    assert machine["spec"]["providerID"] == "sim://1"
    (former,) = world.api.items(KUBERMATIC.codec.machines)
    machine = new.find(KUBERMATIC.codec.machines, "web-1-a")
    uid = former["metadata"]["uid"]
    assert machine["metadata"]["annotations"] == {
        "note": "kept",
        kubermatic.ANNOTATION_FORMER_UID: uid,
    }
    assert new.items(SECRETS) == []


async def test_sets_are_created_after_their_machines(api_of_new_cluster: Api) -> None:
    new = api_of_new_cluster
    async with opened() as world:
        fill(world.api)
        await world.back_up(encrypted=True)
        new.requests.clear()
        assert await world.restore(new, encrypted=True)

    plurals = [path.rpartition("/")[2] for _, path, _ in new.requests]
    order = ["secrets", "machineclasses", "machines", "machinesets", "machinedeployments"]
    assert list(dict.fromkeys(plurals)) == order
    assert all(query["fieldValidation"] == "Strict" for _, _, query in new.requests)


async def test_second_restore_changes_nothing(api_of_new_cluster: Api) -> None:
    new = api_of_new_cluster
    async with opened() as world:
        fill(world.api)
        await world.back_up()
        new.refused = "/machinesets"  # as if it was killed there
        assert not await world.restore(new)
        assert new.items(GARDENER.codec.machine_deployments) == []
        new.refused = ""
        before = new.items(GARDENER.codec.machines)

        assert await world.restore(new)
        assert "MachineSet: 1 created, 0 exist already, 0 failed" in world.lines
        assert await world.restore(new)

    assert "Machine: 0 created, 1 exist already, 0 failed" in world.lines
    assert new.items(GARDENER.codec.machines) == before


async def test_no_owner_is_restored_without_its_machines(api_of_new_cluster: Api) -> None:
    """It would create other Machines, and other VMs."""
    new = api_of_new_cluster
    codec = GARDENER.codec
    new.refused = codec.machines.path(namespace=NAMESPACE)
    async with opened() as world:
        fill(world.api)
        await world.back_up()
        assert not await world.restore(new)

        assert "Machine default/web-1-a: spec: wrong (422 Invalid)" in world.lines
        assert "Machine: 0 created, 0 exist already, 1 failed" in world.lines
        assert "MachineSet: 0 created, 0 exist already, 1 failed" in world.lines
        (line,) = [one for one in world.lines if one.startswith("machine.sapcloud.io: ")]
        assert "no owner of a Machine is created, as it would create another Machine" in line
        assert [new.items(kind) for kind in (codec.machine_sets, codec.machine_deployments)] == [
            [],
            [],
        ]
        assert len(new.items(codec.machine_classes)) == 1
        for kind in KUBERMATIC.kinds:  # the other API group is complete
            assert len(new.items(kind)) == 1

        new.refused = ""
        assert await world.restore(new)

    assert "MachineSet: 1 created, 0 exist already, 0 failed" in world.lines
    assert len(new.items(codec.machine_deployments)) == 1


@pytest.mark.parametrize("dry_run", [True, False])
async def test_restore_creates_nothing_while_a_webhook_does_not_respond(
    api_of_new_cluster: Api, dry_run: bool
) -> None:
    """The daemon serves the webhook of Kubermatic's Machines, and must not run."""
    new = api_of_new_cluster
    new.refused = KUBERMATIC.codec.machines.path(namespace=NAMESPACE)
    text = 'failed calling webhook "kubermatic-machines": no endpoints available'
    new.error = errors.ServerError(status=500, reason="InternalError", message=text)
    async with opened() as world:
        fill(world.api)
        await world.back_up()
        secrets = new.items(SECRETS)

        with pytest.raises(BackupError, match=r"no endpoints .* delete its MutatingWebhookConfig"):
            await world.restore(new, dry_run=dry_run)

        kinds = [kind for api in APIS for kind in api.kinds]
        assert [item for kind in kinds for item in new.items(kind)] == []
        assert new.items(SECRETS) == secrets
        new.refused = ""
        assert await world.restore(new)


async def test_dry_run_stores_and_creates_nothing(api_of_new_cluster: Api) -> None:
    new = api_of_new_cluster
    async with opened() as world:
        fill(world.api)
        assert await world.back_up(dry_run=True) == ""
        assert "Machine: 1 would be stored" in world.lines
        assert world.store.held == {}
        await world.back_up()

        assert await world.restore(new, dry_run=True)

    assert "Machine: 1 would be created, 0 exist already, 0 failed" in world.lines
    assert [new.items(kind) for kind in OBJECTS] == [[]] * len(OBJECTS)


async def test_objects_that_were_being_deleted_are_named(api_of_new_cluster: Api) -> None:
    async with opened() as world:
        fill(world.api)
        path = GARDENER.codec.machines.path(namespace=NAMESPACE, name="web-1-a")
        world.api.transport.answer("DELETE", path)
        await world.back_up()

        assert await world.restore(api_of_new_cluster)

    line = "Machine default/web-1-a: was being deleted when the snapshot was taken"
    assert any(one.startswith(line) for one in world.lines)
    machine = api_of_new_cluster.find(GARDENER.codec.machines, "web-1-a")
    assert "deletionTimestamp" not in machine["metadata"]


async def test_annotation_of_an_unfinished_restore_is_kept(api_of_new_cluster: Api) -> None:
    kind = KUBERMATIC.codec.machines
    async with opened() as world:
        annotations = {kubermatic.ANNOTATION_FORMER_UID: "the-uid-on-the-vm"}
        world.api.create(
            kind, {"metadata": {"name": "a", "annotations": annotations}, "spec": {}}, NAMESPACE
        )
        await world.back_up()
        await world.restore(api_of_new_cluster)

    assert api_of_new_cluster.find(kind, "a")["metadata"]["annotations"] == annotations


async def test_nothing_is_created_without_the_crds() -> None:
    new = Api(apis=(GARDENER,))
    async with opened() as world:
        fill(world.api)
        await world.back_up()
        with pytest.raises(BackupError, match=r"does not serve cluster\.k8s\.io; apply the CRDs"):
            await world.restore(new)

    assert new.items(GARDENER.codec.machines) == []


async def test_empty_snapshot_is_refused() -> None:
    async with opened() as world:
        with pytest.raises(BackupError, match="there are no machine objects"):
            await world.back_up()
        assert world.store.held == {}


# --- credentials ----------------------------------------------------------------------------------


async def test_credentials_are_neither_stored_nor_restored(api_of_new_cluster: Api) -> None:
    new = api_of_new_cluster
    async with opened() as world:
        fill(world.api, token=TOKEN)
        await world.back_up()
        field_ = "spec.providerSpec.cloudProviderSpec.token"
        name = "Machine.cluster.k8s.io default/web-1-a"
        text = "is a credential and is not stored without encrypted `secrets`"
        assert f"{name}: {field_} {text}" in world.lines
        assert f"Secret default/class {text}" in world.lines
        assert TOKEN not in str(await world.storage().load())

        assert not await world.restore(new)

    assert f"{name}: not created, the snapshot lacks the value of {field_}" in world.lines
    assert new.items(KUBERMATIC.codec.machines) == []
    assert len(new.items(GARDENER.codec.machines)) == 1


async def test_encrypted_snapshot_has_the_secrets_to_which_objects_refer(
    api_of_new_cluster: Api,
) -> None:
    new = api_of_new_cluster
    async with opened() as world:
        fill(world.api)
        await world.back_up(encrypted=True)
        assert "Secret: 2 stored" in world.lines
        with pytest.raises(BackupError, match="For encrypted ones, add `secrets"):
            await world.storage().load()
        assert world.store.held == {}

        assert await world.restore(new, encrypted=True)

    assert {one["metadata"]["name"] for one in new.items(SECRETS)} == {"class", "cloud"}
    assert all(one["data"] == {"token": "eA=="} for one in new.items(SECRETS))


async def test_missing_secret_is_reported() -> None:
    async with opened() as world:
        fill(world.api)
        await world.back_up(now=NOW - DAY)
        path = SECRETS.path(namespace=NAMESPACE, name="cloud")
        world.api.transport.answer("DELETE", path)
        await world.back_up(encrypted=True)
        for encrypted, names in ((False, ["class", "cloud"]), (True, ["cloud"])):
            _, snapshot = await world.storage(encrypted=encrypted).load()
            lacking = [f"{NAMESPACE}/{name}" for name in names]
            assert backup.lacking_secrets(snapshot.entries) == lacking

    assert any(line.startswith("Secret default/cloud is not stored: ") for line in world.lines)
    assert "Secret: 1 stored" in world.lines


def test_masked_objects_can_be_stored_and_name_their_paths() -> None:
    obj = {
        "apiVersion": "v1",
        "kind": "Thing",
        "metadata": {"name": "a"},
        "spec": {
            "token": {"value": TOKEN},
            "items": [{"password": TOKEN}, {"note": f"token={TOKEN}"}],
            "empty": {"password": ""},
            "secretKeyRef": {"name": "token"},
            "size": 3,
        },
    }
    masked = without_credentials(obj)

    assert masked_paths(obj) == []
    assert masked_paths(masked) == ["spec.token", "spec.items.password", "spec.items.note"]
    assert masked["spec"]["token"] == {"value": redact.MASK}
    assert (masked["spec"]["size"], masked["spec"]["empty"]) == (3, {"password": ""})
    assert TOKEN.encode() not in validate(masked)


def test_shipped_objects_contain_no_value_that_would_be_masked() -> None:
    """A wrong guess would keep the object from being restored."""
    files = [
        *(shipped.MANIFESTS / "samples").iterdir(),
        *(shipped.MANIFESTS / "examples").iterdir(),
    ]
    kinds = {kind.kind for kind in OBJECTS}
    objects = [one for one in shipped.objects(*files) if one["kind"] in kinds]

    assert len(objects) > 4
    assert [masked_paths(without_credentials(one)) for one in objects] == [[]] * len(objects)


ENCRYPTED = "secrets: {encrypted: {storage: {STORE}, key_files: [HERE/key]}}"
SQLITE = "instances: [{sqlite: {path: HERE/a.db}}]"


@pytest.mark.parametrize(
    ("text", "outlives", "encrypted"),
    [
        ("", False, False),
        (SQLITE, True, False),
        ("instances: [{memory: {}}]", False, False),
        ("instances: [{kubernetes: {}}]", False, False),
        (f"{SQLITE}\nsecrets: {{kubernetes: {{}}}}", True, False),
        (f"{SQLITE}\n{ENCRYPTED.replace('STORE', 'kubernetes: {}')}", True, False),
        (f"{SQLITE}\n{ENCRYPTED.replace('STORE', 'sqlite: {path: HERE/s.db}')}", True, True),
    ],
)
def test_storage_has_to_outlive_the_cluster(
    text: str, outlives: bool, encrypted: bool, tmp_path: Path
) -> None:
    """A secret store in the cluster is not even opened: the example's role does not permit it."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o400)
    file = tmp_path / "persistence.yaml"
    file.write_text(text.replace("HERE", str(tmp_path)))

    def stores() -> PersistenceStores:
        client = cast("Client", None)
        name = str(file) if text else ""
        return PersistenceStores(name, client, namespace="kube-system", is_outside=True)

    if outlives:
        assert BackupStorage(stores()).is_encrypted is encrypted
        assert len(stores().backends()) == 1 + encrypted
    else:
        with pytest.raises(Misconfigured, match="would be lost with the cluster"):
            stores()


# --- snapshots in the storage ---------------------------------------------------------------------


async def test_lists_have_several_pages(
    api_of_new_cluster: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Resource.list_page, "__kwdefaults__", {**DEFAULTS, "limit": 2})
    kind = GARDENER.codec.machines
    async with opened() as world:
        for number in range(7):
            world.api.create(kind, {"metadata": {"name": f"m{number}"}, "spec": {}}, NAMESPACE)
        await world.back_up()

        assert await world.restore(api_of_new_cluster)

    assert len(api_of_new_cluster.items(kind)) == 7


async def test_object_that_cannot_be_decoded_is_not_left_out() -> None:
    async with opened() as world:
        fill(world.api)
        answer = world.api.transport.answer
        deep = b'{"metadata": {"name": "deep", "namespace": "a"}, "spec": %b1%b}'

        def garbled(method: str, path: str, *rest: Any) -> bytes:
            if path.endswith("/machines"):
                return b'{"metadata": {}, "items": [%b]}' % (deep % (b"[" * 5000, b"]" * 5000))
            return answer(method, path, *rest)

        world.api.transport.answer = garbled  # type: ignore[assignment,method-assign]
        with pytest.raises(BackupError, match="Machine a/deep cannot be decoded; correct or"):
            await world.back_up()
        assert await world.storage().names() == []


@pytest.mark.parametrize("encrypted", [False, True])
async def test_snapshot_of_10000_machines_fits(*, encrypted: bool) -> None:
    async with opened() as world:
        fill(world.api)
        (group, _) = world.api.groups()
        (machine,) = [one async for one in group.items(GARDENER.codec.machines)]
        entries = []
        for number in range(10_000):
            digest = hashlib.sha256(str(number).encode()).digest()
            name = f"web-1-{digest.hex()[:5]}"
            metadata = {
                **machine["metadata"],
                "name": name,
                "uid": str(uuid.UUID(bytes=digest[:16])),
            }
            entries.append((GARDENER.group, {**machine, "metadata": metadata}))
        snapshot = Snapshot(markers=["marker"], entries=entries)
        storage = world.storage(encrypted=encrypted)
        await storage.put("a", snapshot)

        assert await storage.load() == ("a", snapshot)


async def test_newest_snapshot_is_restored_unless_another_is_named(
    api_of_new_cluster: Api,
) -> None:
    async with opened() as world:
        fill(world.api)
        old = await world.back_up()
        path = GARDENER.codec.machine_deployments.path(namespace=NAMESPACE, name="web")
        world.api.transport.answer("DELETE", path)
        new = await world.back_up(now=NOW + timedelta(seconds=1))

        for name, expected in (("", new), (old, old), (new, new)):
            assert (await world.storage().load(name))[0] == expected
        with pytest.raises(BackupError, match=f"has no snapshot x, only: {new}, {old}"):
            await world.storage().load("x")
        await world.restore(api_of_new_cluster, old)

    assert len(api_of_new_cluster.items(GARDENER.codec.machine_deployments)) == 1


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("content", [b"", b"no zlib", zlib.compress(b"{"), zlib.compress(b"{}")])
async def test_damaged_snapshot_is_refused_and_others_are_named(
    content: bytes, *, encrypted: bool
) -> None:
    async with opened() as world:
        fill(world.api)
        old = await world.back_up(encrypted=encrypted)
        new = await world.back_up(encrypted=encrypted, now=NOW + DAY)
        storage = world.storage(encrypted=encrypted)
        if encrypted:
            await world.sealed.put_secret(NAME, f"backup-{new}", {"snapshot": content})
        else:
            (stored, _) = await world.objects.get_all_objects(NAME, backup.SNAPSHOTS)
            stored["metadata"]["name"] = new
            stored["snapshot"] = base64.b64encode(content).decode()
            await world.objects.put_object(NAME, stored)

        with pytest.raises(BackupError) as refused:
            await storage.load()
        text = str(refused.value)
        assert text.startswith(f"snapshot {new} cannot be read: ")
        assert text.endswith(f"; set --snapshot to another of: {new}, {old}")
        assert (await storage.load(old))[0] == old


@pytest.mark.parametrize("encrypted", [False, True])
async def test_snapshot_is_complete_or_absent(
    monkeypatch: pytest.MonkeyPatch, *, encrypted: bool
) -> None:
    async with opened() as world:
        fill(world.api)
        first = await world.back_up(encrypted=encrypted, now=NOW - DAY)
        writes = 0
        put = StoreProvider.put_object

        async def counted(self: StoreProvider, instance: str, obj: Mapping[str, Any]) -> Any:
            nonlocal writes
            writes += 1
            if writes == 1:
                raise BackendUnavailable("killed")
            return await put(self, instance, obj)

        with monkeypatch.context() as patched:
            patched.setattr(StoreProvider, "put_object", counted)
            with pytest.raises(BackendUnavailable):
                await world.back_up(encrypted=encrypted)
            storage = world.storage(encrypted=encrypted)
            assert await storage.names() == [first]
            second = await world.back_up(encrypted=encrypted)
        assert writes == 2
        assert await storage.names() == [second, first]


@pytest.mark.parametrize("encrypted", [False, True])
async def test_only_the_newest_snapshots_are_kept(*, encrypted: bool) -> None:
    async with opened() as world:
        fill(world.api)
        await world.sealed.put_secret(NAME, "other", {"a": b"b"})
        made = [
            await world.back_up(encrypted=encrypted, keep=2, now=NOW + n * DAY) for n in range(4)
        ]
        storage = world.storage(encrypted=encrypted)
        assert await storage.names() == [made[3], made[2]]
        # The new snapshot is kept even if the clock went back.
        await world.back_up(encrypted=encrypted, keep=1, now=NOW)
        assert await storage.names() == [made[3], made[0]]
        # So is everything else.
        assert "_/other" in await world.sealed.list_secrets(NAME)


async def test_former_leader_stores_no_snapshot() -> None:
    async with opened() as world:
        fill(world.api)
        world.store._epoch = 2  # a newer leader has opened the storage
        with pytest.raises(Fenced):
            await world.back_up()


# --- the journal ----------------------------------------------------------------------------------


def entry(name: str, **facts: Any) -> JournalEntry:
    owner = Owner(api_version="v1", kind="Service", namespace="default", name="web", uid=name)
    given = {"resource": "loadbalancer", "provider": "sim", "state": EntryState.CREATED, **facts}
    return JournalEntry(name=name, owner=owner, **given)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_journal_of_a_lost_cluster_is_copied(*, dry_run: bool) -> None:
    async with opened() as world:
        old, new = (Journal(writer=world.objects._writer) for _ in range(2))
        other = provider(MemoryStore())
        await other.initialize(HERE)
        await old.open(world.objects, NAME)
        await new.open(other, NAME)
        known = entry("known", resource_id="1")
        machine = entry("uid-of-a-machine", resource="server")
        await old.put(
            entry("a"),
            entry("gone", state=EntryState.REMOVED),
            machine,
            # Parts of a VM that stays would be reported as orphans.
            replace(machine, name="part", resource="sshkey"),
            replace(machine, name="left", resource="sshkey", ephemeral=True),
            entry("uid-of-a-lost-machine", resource="server"),
            entry("known", resource_id="2"),
        )
        await new.put(known)
        restored = [("group", {"metadata": {"uid": "uid-of-a-machine"}})]

        lost = backup.unrestored(old, restored)
        assert {one.name for one in lost} == {"a", "left", "uid-of-a-lost-machine", "known"}
        assert await backup.add_to_journal(new, lost, dry_run=dry_run) == 3
        assert await backup.add_to_journal(new, lost, dry_run=dry_run) == 3 * dry_run

        added = set() if dry_run else {"a", "left", "uid-of-a-lost-machine"}
        assert set(new.entries) == {"known", *added}
        assert new.entries["known"].resource_id == "1"
        await old.close()
        await new.close()
        await other.close()
