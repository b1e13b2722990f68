"""`kube-ccm backup` and `restore`, from the command line to an API server in memory."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ccm.app.machineapis import GARDENER, KUBERMATIC
from ccm.app.machines.commands import MACHINE_CONTROLLER, MACHINE_CONTROLLER_MANAGER
from ccm.app.persistence import Backend, PersistenceStores
from ccm.cli import backup, command
from ccm.cli.command import EXIT_OK
from ccm.doctor import ExaminationError, cluster, reach
from ccm.kube.resources import LEASES, NAMESPACES, SECRETS
from ccm.kubermatic import names as kubermatic
from ccm.testing.apiserver import requests
from tests.manifests import shipped
from tests.unit.app.test_backup import NAMESPACE, Api, entry, fill

EXAMPLE = shipped.MANIFESTS / "examples" / "backup-cronjob.yaml"
SYSTEM = "kube-system"
DAEMON = f"{SYSTEM}/cloud-controller-manager"
VERBS = {"GET": "get", "POST": "create"}

VMS = "VMs that have no Machine in the snapshot (1): server late (sim://9)"

Connect = Callable[[Api], None]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Return a function that connects all commands to an API server."""

    def to(api: Api) -> None:
        async def connected(case: Any) -> None:
            case.client, case.cluster = api.client, SimpleNamespace(server="https://memory")

        monkeypatch.setattr(reach, "connect", connected)

    return to


def storage(folder: Path, name: str = "old", *, encrypted: bool = True) -> str:
    """Return the flag with a file that configures storage in a subfolder."""
    key, file = folder / "key", folder / f"{name}.yaml"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    text = f"instances: [{{sqlite: {{path: {folder}/{name}/a.db}}}}]\n"
    inner = f"{{sqlite: {{path: {folder}/{name}/s.db}}}}"
    if encrypted:
        text += f"secrets: {{encrypted: {{storage: {inner}, key_files: [{key}]}}}}\n"
    file.write_text(text)
    return f"--persistence-config={file}"


async def said_by(subcommand: command.DaemonCommand, *words: str) -> list[str]:
    """Return the output of a successful command."""
    out, request = io.StringIO(), subcommand.read(words)
    act = backup.back_up if subcommand is backup.BACKUP else backup.restore
    assert await act(request, out, environ={}) == EXIT_OK, out.getvalue()
    return out.getvalue().splitlines()


def uid_of(api: Api) -> str:
    return str(api.find(NAMESPACES, SYSTEM)["metadata"]["uid"])


# --- the example of a CronJob -------------------------------------------------------------------


async def test_backup_needs_exactly_the_rights_of_its_example(
    connect: Connect, tmp_path: Path
) -> None:
    api = Api()
    connect(api)
    reference = {"name": "cloud", "namespace": NAMESPACE}
    api.create(
        GARDENER.codec.machine_classes,
        {"metadata": {"name": "a"}, "provider": "sim", "providerSpec": {}, "secretRef": reference},
        NAMESPACE,
    )
    value = {"cloudProviderSpec": {"token": {"secretKeyRef": {**reference, "namespace": SYSTEM}}}}
    api.create(
        KUBERMATIC.codec.machines,
        {"metadata": {"name": "b"}, "spec": {"providerSpec": {"value": value}}},
        SYSTEM,
    )
    for namespace in (NAMESPACE, SYSTEM):
        api.create(SECRETS, {"metadata": {"name": "cloud"}, "data": {"a": "eA=="}}, namespace)
    asked, answer = list[dict[str, Any]](), api.transport.answer

    def recorded(method: str, path: str, *rest: Any) -> bytes:
        # Discovery has no target; every account may read it.
        if (target := requests.parse(api.transport.store.kinds, path)) is not None:
            about = {
                "apiGroup": target.kind.group,
                "resource": target.kind.plural,
                "namespace": target.namespace,
                "name": target.name,
            }
            verb = VERBS[method] if target.name or method != "GET" else "list"
            asked.append({"verb": verb, "objectRef": about})
        return answer(method, path, *rest)

    api.transport.answer = recorded  # type: ignore[assignment,method-assign]

    assert "Secret: 2 stored" in await said_by(backup.BACKUP, storage(tmp_path))

    rights = list(shipped.rights(shipped.objects(EXAMPLE)))
    assert [one for one in asked if not any(right.covers(one) for right in rights)] == []
    assert [right for right in rights if not any(map(right.covers, asked))] == []


async def test_storage_in_the_cluster_is_refused(connect: Connect, tmp_path: Path) -> None:
    """It is the storage of restore without a file; backup requires a file."""
    connect(Api())
    file = tmp_path / "inside.yaml"
    file.write_text("instances: [{kubernetes: {}}]")
    words = f"--persistence-config={file}"
    for subcommand, given in (
        (backup.BACKUP, [words]),
        (backup.RESTORE, [words]),
        (backup.RESTORE, []),
    ):
        with pytest.raises(ExaminationError, match="would be lost with the cluster"):
            await said_by(subcommand, *given)


# --- a lost cluster -----------------------------------------------------------------------------


async def lose(connect: Connect, config: str) -> str:
    """Store a snapshot and a journal of a cluster, and return the UID of the cluster."""
    api = Api()
    fill(api)
    connect(api)
    words = [config, f"--kubermatic-namespace={NAMESPACE}"]
    await said_by(backup.BACKUP, *words)
    server = replace(entry("s"), resource="server", intended_name="late", resource_id="sim://9")
    async with backup._connected(backup.BACKUP.read(words), {}) as case:
        stores = await case.exit_stack.enter_async_context(cluster.open_stores(case))
        await (await backup._journal(case, stores)).put(entry("b"), server)
    return uid_of(api)


async def test_lost_cluster_is_rebuilt(connect: Connect, tmp_path: Path) -> None:
    old, new = storage(tmp_path), storage(tmp_path, "new")
    uid, api = await lose(connect, old), Api()
    connect(api)
    source = old.replace("--", "--from-", 1)
    words = [new, source, f"--from-cluster-id={uid}", f"--kubermatic-namespace={NAMESPACE}"]

    planned = await said_by(backup.RESTORE, *words, "--dry-run")
    assert api.items(GARDENER.codec.machines) == []
    done = await said_by(backup.RESTORE, *words)

    assert "Machine: 1 created, 0 exist already, 0 failed" in done
    assert planned == [
        line.replace(" created", " would be created").replace(" added", " would be added")
        for line in done
    ]
    assert done[-4:] == [
        VMS,
        backup._ORPHANS,
        "journal: 2 entries added",
        f"start the daemon with --cluster-id={uid}, the marker of the VMs",
    ]
    again = await said_by(backup.RESTORE, *words)
    assert "Machine: 0 created, 1 exist already, 0 failed" in again
    assert VMS in again
    assert "journal: 0 entries added" in again


async def test_lacking_secrets_are_named(connect: Connect, tmp_path: Path) -> None:
    config = storage(tmp_path, encrypted=False)
    api = Api()
    fill(api)
    connect(api)
    words = [config, f"--kubermatic-namespace={NAMESPACE}"]
    await said_by(backup.BACKUP, *words)

    lines = await said_by(backup.RESTORE, *words)

    assert lines[-1] == "create the Secrets that the snapshot lacks: default/class, default/cloud"


def owners(file: Path) -> Sequence[Any]:
    """Return the rows about the clusters of a store."""
    with closing(sqlite3.connect(file)) as db:
        return db.execute("SELECT marker, epoch FROM instance").fetchall()


@pytest.mark.parametrize("flags", [["--from-cluster-id=wrong"], []])
async def test_unknown_cluster_is_refused_and_the_known_ones_are_named(
    connect: Connect, tmp_path: Path, flags: list[str]
) -> None:
    config = storage(tmp_path)
    uid, api = await lose(connect, config), Api()
    connect(api)
    wanted = "wrong" if flags else uid_of(api)
    (tmp_path / "old" / "s.db").unlink()
    before = owners(tmp_path / "old" / "a.db")

    for more in (["--dry-run"], []):
        with pytest.raises(ExaminationError) as refused:
            await said_by(backup.RESTORE, config, *flags, *more)
        assert str(refused.value) == (
            f"the storage has no data of the cluster {wanted}, only of: {uid}. --from-cluster-id "
            "is the UID that the namespace kube-system of the lost cluster had"
        )
    assert owners(tmp_path / "old" / "a.db") == before
    assert not (tmp_path / "old" / "s.db").exists()


async def test_absent_storage_is_not_created_by_a_restore(connect: Connect, tmp_path: Path) -> None:
    connect(Api())
    config = storage(tmp_path)

    with pytest.raises(ExaminationError, match="only of: none"):
        await said_by(backup.RESTORE, config, "--from-cluster-id=a")
    assert not (tmp_path / "old").exists()


async def test_restore_claims_no_leadership_in_the_old_storage(
    connect: Connect, tmp_path: Path
) -> None:
    """Its cluster may still be alive."""
    config = storage(tmp_path)
    api = Api()
    fill(api)
    connect(api)
    async with daemon(api, config, epoch=7):
        pass
    await said_by(backup.BACKUP, config)
    before = owners(tmp_path / "old" / "a.db")
    assert before[0][1] == 7
    new = Api()
    connect(new)

    source = config.replace("--", "--from-", 1)
    words = [storage(tmp_path, "new"), source, f"--from-cluster-id={uid_of(api)}"]
    await said_by(backup.RESTORE, *words)

    assert owners(tmp_path / "old" / "a.db") == before


@asynccontextmanager
async def daemon(api: Api, config: str, *, epoch: int) -> AsyncIterator[Backend]:
    """Open the storage of objects as a leader does."""
    file = config.partition("=")[2]
    stores = PersistenceStores(file, api.client, namespace=SYSTEM)
    async with stores.opened("kubernetes", "leader", epoch):
        await stores.wait_open()
        yield stores.objects


async def test_backup_does_not_fence_a_daemon_without_leader_election(
    connect: Connect, tmp_path: Path
) -> None:
    """A Lease of another program, or of an earlier daemon, has a number of its own."""
    config = storage(tmp_path)
    api = Api()
    fill(api)
    api.create(LEASES, lease(api, transitions=5, age=timedelta(days=30)), SYSTEM)
    connect(api)
    async with daemon(api, config, epoch=0) as objects:
        await said_by(backup.BACKUP, config, "--leader-elect=false")

        assert await objects.provider.put_object(objects.instance, cluster.PROBE)


def lease(api: Api, *, age: timedelta, transitions: int = 1) -> dict[str, Any]:
    """Return the daemon's Lease, renewed some time ago by the API server's clock."""
    renewed = (api.client.server_time() - age).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "a_b", "leaseDurationSeconds": 15, "renewTime": renewed}
    name = "cloud-controller-manager"
    return {"metadata": {"name": name}, "spec": {**spec, "leaseTransitions": transitions}}


@pytest.mark.parametrize("behind", [timedelta(), timedelta(hours=1)])
async def test_restore_waits_for_the_end_of_the_daemon(
    connect: Connect, tmp_path: Path, behind: timedelta
) -> None:
    """Also if the local clock differs, by which the Lease would have expired."""
    config = storage(tmp_path)
    await lose(connect, config)
    api = Api()
    fill(api)
    api.transport.clock.read_date_header(format_datetime(datetime.now(UTC) - behind))
    api.create(LEASES, lease(api, age=timedelta(seconds=5)), SYSTEM)
    connect(api)

    with pytest.raises(ExaminationError, match=f"a_b holds the Lease {DAEMON}; stop all replicas"):
        await said_by(backup.RESTORE, config)


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        (NAMESPACE, MACHINE_CONTROLLER.name),
        (NAMESPACE, MACHINE_CONTROLLER_MANAGER.name),
        (SYSTEM, kubermatic.LEASE),
    ],
)
async def test_restore_waits_for_the_end_of_machine_controllers_in_pods_of_their_own(
    connect: Connect, tmp_path: Path, namespace: str, name: str
) -> None:
    config = storage(tmp_path)
    await lose(connect, config)
    api = Api()
    fill(api)
    held = lease(api, age=timedelta(seconds=5)) | {"metadata": {"name": name}}
    api.create(LEASES, held, namespace)
    connect(api)

    with pytest.raises(ExaminationError, match=f"a_b holds the Lease {namespace}/{name}; stop"):
        await said_by(backup.RESTORE, config)


async def test_restore_ends_when_a_daemon_starts(connect: Connect, tmp_path: Path) -> None:
    """Before the sets, which would create VMs with Machines that are not restored."""
    old, new = storage(tmp_path), storage(tmp_path, "new")
    uid, api = await lose(connect, old), Api()
    connect(api)
    answer = api.transport.answer

    def start(method: str, path: str, *rest: Any) -> bytes:
        answered = answer(method, path, *rest)
        is_created = method == "POST" and "dryRun" not in (rest[-1] or {})
        if is_created and path.endswith("/machines"):
            api.transport.answer = answer  # type: ignore[method-assign]
            api.create(LEASES, lease(api, age=timedelta()), SYSTEM)
        return answered

    api.transport.answer = start  # type: ignore[assignment,method-assign]
    source = old.replace("--", "--from-", 1)
    words = [new, source, f"--from-cluster-id={uid}", f"--kubermatic-namespace={NAMESPACE}"]
    with pytest.raises(ExaminationError, match=f"a_b holds the Lease {DAEMON}; stop all replicas"):
        await said_by(backup.RESTORE, *words)

    assert api.items(GARDENER.codec.machines) != []
    assert api.items(GARDENER.codec.machine_sets) == []
