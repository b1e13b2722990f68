"""`kube-ccm backup` and `kube-ccm restore`: snapshots of the machine objects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ccm.base.flags import FlagSection, at_least_one
from ccm.cli import command
from ccm.cli.command import EXIT_FAILED, EXIT_OK, ParsedCommand
from ccm.doctor import ExaminationError

if TYPE_CHECKING:
    from ccm.app.backup import MachineObjects
    from ccm.app.persistence import PersistenceStores
    from ccm.doctor.case import Case
    from ccm.persistence.journal import Journal

_BACKUP_INTRODUCTION = """\
Stores a snapshot of all Machines, MachineSets, MachineDeployments and MachineClasses, of both API
groups, in the storage of --persistence-config; then deletes old snapshots. The storage has to
outlive the cluster: s3, postgres, or sqlite on a volume outside of it. The daemon may run.

With `secrets: {encrypted: ...}` in the file, the snapshot is encrypted, and contains the Secrets to
which the objects refer. Otherwise it contains no Secrets, and no credentials in the objects; the
output names the omitted ones. Never stored: statuses, ConfigMaps, Nodes, Services, and user data of
Kubermatic's operating-system-manager.

Pass the flags of the daemon. Permissions, and a CronJob: manifests/examples/backup-cronjob.yaml.

example:
  kube-ccm backup --persistence-config=persistence.yaml --dry-run

exit status: 0 success, 1 an error, 2 invalid command line

"""

_RESTORE_INTRODUCTION = """\
Creates the absent objects of a snapshot of kube-ccm backup; existing objects are left unchanged.
VMs are neither created nor deleted. If a Machine cannot be created, no MachineSet of its API group
is created either, as it could replace the Machine. May be repeated. Except with --dry-run, neither
the daemon nor machine controllers in Pods of their own may run: they would create VMs for Machines
that are not restored yet. Their Leases are checked before the objects of each kind are created.
Without the daemon, the webhook of the component kubermatic-webhook rejects new Machines: before the
restore, delete its MutatingWebhookConfiguration; apply it again when the daemon runs.

Pass the flags of the daemon. Permissions: create the objects and their Secrets, get the namespace
kube-system and the Leases.

After the loss of a cluster whose namespace kube-system had the UID OLD:
  1. create the new cluster, the namespaces and the CRDs of the machines, without the daemon
  2. kube-ccm restore --persistence-config=new.yaml --from-persistence-config=old.yaml \\
       --from-cluster-id=OLD --dry-run    and then without --dry-run. For a bucket or a database,
     old.yaml and new.yaml may be the same file; a file of SQLite belongs to one cluster
  3. create the Secrets that the snapshot lacks, and the Services
  4. kube-ccm journal list --offline ...  and for each load balancer with a new Service:
     kube-ccm journal adopt NAME service NAMESPACE/NAME --offline ...
  5. start the daemon with the --cluster-id that the last line of restore names
The guide is "Backup and restore" in manifests/README.md.

exit status: 0 all objects exist, 1 an error, or an object was not created, 2 invalid command line

"""

_ORPHANS = (
    "VMs without a Machine are deleted after an hour. To examine them first, start the daemon with "
    "-machinesafety as the first entry of --controllers, and without --journal=delete"
)
_FLAGS_USED = (
    *("kubeconfig", "master", "namespace", "control-kubeconfig", "target-kubeconfig"),
    *("kubermatic-namespace", "cluster-id", "cluster-name", "persistence-config"),
    *("leader-elect-resource-name", "leader-elect-resource-namespace", "config"),
)
_SECTION = FlagSection("snapshots", ours=True)


@dataclass(frozen=True)
class _BackupFlags:
    keep: int = _SECTION.flag(14, "Number of snapshots to keep.", check=at_least_one)
    dry_run: bool = _SECTION.flag(False, "Only show what would be stored.")


@dataclass(frozen=True)
class _RestoreFlags:
    snapshot: str = _SECTION.flag("", "Name of the snapshot. Empty means the newest one.")
    from_cluster_id: str = _SECTION.flag(
        "",
        "UID of the namespace kube-system of the cluster that stored the snapshot. Its journal is "
        "added to the journal of this cluster. Empty means this cluster.",
    )
    from_persistence_config: str = _SECTION.flag(
        "", "File that configures the storage of the snapshot. Empty means --persistence-config."
    )
    dry_run: bool = _SECTION.flag(False, "Only check the objects and show what would be done.")


async def back_up(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Store a snapshot; return the exit status.

    Raises:
        ExaminationError: the objects cannot be read, or the snapshot cannot be stored.
    """
    from ccm.app import backup
    from ccm.doctor import cluster

    async with _connected(request, environ) as case:
        opening = cluster.open_stores(case, is_outside=True)
        stores = await case.exit_stack.enter_async_context(opening)
        await stores.wait_open()
        await backup.back_up(
            await _machine_objects(case),
            backup.BackupStorage(stores),
            now=case.client.server_time(),
            keep=request.own_flags["keep"],
            dry_run=request.own_flags["dry-run"],
            report=lambda line: command.show(out, [line]),
        )
    return EXIT_OK


async def restore(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Restore a snapshot; return the exit status.

    Raises:
        ExaminationError: a daemon or a machine controller leads, or the snapshot cannot be read or
            restored.
    """
    from ccm.app import backup
    from ccm.doctor import cluster
    from ccm.doctor.case import some
    from ccm.kube.resources import NAMESPACES
    from ccm.runtime.journal import SERVER
    from ccm.runtime.orphans import describe

    own, lines = request.own_flags, list[str]()
    former_uid, dry_run = own["from-cluster-id"], own["dry-run"]

    def report(line: str) -> None:
        command.show(out, [line])

    async with _connected(request, environ) as case:
        groups = await _machine_objects(case)

        async def check_leases() -> None:
            if not dry_run:
                await _check_leases(case, groups)

        await check_leases()
        enter = case.exit_stack.enter_async_context
        uid = former_uid or (await case.client.resource(NAMESPACES).get("kube-system")).uid
        file = own["from-persistence-config"]
        stores = await enter(cluster.open_stores(case, file, uid, is_outside=True))
        await stores.wait_open()
        name, snapshot = await backup.BackupStorage(stores).load(own["snapshot"])
        report(f"snapshot {name}")
        if former_uid:
            lost_entries = backup.unrestored(await _journal(case, stores), snapshot.entries)
            if vms := [describe(entry) for entry in lost_entries if entry.resource == SERVER]:
                shown = f"({len(vms)}): {some(vms)}"
                lines.append(f"VMs that have no Machine in the snapshot {shown}")
            if any(group.api.deletes_orphans for group in groups):
                lines.append(_ORPHANS)
            if lost_entries:
                # Opened before the restore: if the storage is unusable, nothing is created.
                target = await _journal(case, await enter(cluster.open_stores(case)))
                count = await backup.add_to_journal(target, lost_entries, dry_run=dry_run)
                lines.append(f"journal: {count} entries {'would be ' * dry_run}added")
        is_complete = await backup.restore(
            groups, snapshot.entries, dry_run=dry_run, report=report, before_kind=check_leases
        )
        if keys := backup.lacking_secrets(snapshot.entries):
            lines.append(f"create the Secrets that the snapshot lacks: {', '.join(keys)}")
        for marker in sorted({*snapshot.markers} - {group.marker for group in groups}):
            lines.append(f"start the daemon with --cluster-id={marker}, the marker of the VMs")
        command.show(out, lines)
    return EXIT_OK if is_complete else EXIT_FAILED


@asynccontextmanager
async def _connected(request: ParsedCommand, environ: Mapping[str, str]) -> AsyncIterator[Case]:
    """Connect to the API server for the block; turn expected errors into ExaminationError."""
    from ccm.app.provider import Misconfigured
    from ccm.base.decoding import DECODE_ERRORS
    from ccm.doctor import reach
    from ccm.persistence.errors import PersistenceError

    try:
        async with command.open_case(request, environ) as case:
            await reach.connect(case)
            yield case
    except (Misconfigured, PersistenceError) as error:
        raise ExaminationError(str(error)) from error
    except DECODE_ERRORS as error:
        raise ExaminationError(f"the response of the API server is invalid: {error}") from error


async def _machine_objects(case: Case) -> Sequence[MachineObjects]:
    """Return access to the objects of each API group that the cluster serves."""
    from ccm.app.backup import MachineObjects
    from ccm.app.machineapis import APIS
    from ccm.doctor import machines, reach
    from ccm.machines import discovery

    groups = list[MachineObjects]()
    for api in APIS:
        client = await reach.client_of_role(case, api.role)
        plurals = await discovery.fetch_plurals(client, api.codec.machines.api_version)
        if kinds := [kind for kind in api.kinds if kind.plural in plurals]:
            group = MachineObjects(
                api=api,
                kinds=kinds,
                client=client,
                namespace=api.namespace(case.options),
                marker=case.options.cluster_id or await machines.vm_marker(case, api),
            )
            groups.append(group)
    return groups


async def _check_leases(case: Case, groups: Iterable[MachineObjects]) -> None:
    """Raise ExaminationError if a daemon or another machine controller leads."""
    from ccm.app.machines.commands import COMMANDS
    from ccm.doctor import daemons

    options = case.options
    own = options.leader_elect_resource_namespace, options.leader_elect_resource_name
    leases = [(case.client, *own)]
    for group in groups:
        leases += [(group.client, group.namespace, name) for name in COMMANDS]
        if shared := group.api.manifest.lease(options):
            leases.append((group.client, shared.namespace, shared.name))
    for client, namespace, name in leases:
        if holder := await daemons.holder_of(client, namespace, name):
            raise ExaminationError(
                f"{holder} holds the Lease {namespace}/{name}; stop all replicas, and wait until "
                "the Lease expires"
            )


async def _journal(case: Case, stores: PersistenceStores) -> Journal:
    from ccm.persistence.journal import Journal

    await stores.wait_open()
    journal = Journal(writer=stores.writer)
    case.exit_stack.push_async_callback(journal.close)
    await journal.open(stores.objects.provider, stores.objects.instance)
    return journal


BACKUP = command.DaemonCommand(
    name="backup",
    summary="store a snapshot of the machine objects outside of the cluster",
    introduction=_BACKUP_INTRODUCTION,
    own=_BackupFlags,
    execute=lambda request, out: asyncio.run(back_up(request, out)),
    used=_FLAGS_USED,
    required=("persistence-config",),
)
RESTORE = command.DaemonCommand(
    name="restore",
    summary="create the machine objects of a snapshot that are absent",
    introduction=_RESTORE_INTRODUCTION,
    own=_RestoreFlags,
    execute=lambda request, out: asyncio.run(restore(request, out)),
    used=_FLAGS_USED,
    required=(),
)
