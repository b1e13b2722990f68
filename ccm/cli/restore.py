"""`kube-ccm restore`: creates the machine objects of a snapshot."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ccm.base.flags import FlagSection
from ccm.cli import backup, command
from ccm.cli.command import EXIT_FAILED, EXIT_OK, ParsedCommand
from ccm.doctor import ExaminationError

if TYPE_CHECKING:
    from ccm.app.persistence import PersistenceStores
    from ccm.doctor.case import Case
    from ccm.persistence.journal import Journal

_INTRODUCTION = """\
Creates the objects of a snapshot of kube-ccm backup that are absent; existing objects are left
unchanged. Their VMs are neither created nor deleted. May be repeated. The daemon must not run,
except with --dry-run: it would create VMs for Machines that are not restored yet.

Pass the flags of the daemon. Permissions: create the objects and their Secrets, get the namespace
kube-system and the Lease.

After the loss of a cluster whose namespace kube-system had the UID OLD:
  1. create the new cluster, the namespaces and the CRDs of the machines; do not start the daemon
  2. kube-ccm restore --persistence-config=new.yaml --from-persistence-config=old.yaml \\
       --from-cluster-id=OLD --dry-run    then without --dry-run. For a bucket or a database,
     old.yaml and new.yaml may be the same file; a file of SQLite belongs to one cluster.
  3. create the Secrets that the snapshot lacks, and the Services
  4. kube-ccm journal list --offline ...  then for each load balancer with a new Service:
     kube-ccm journal adopt NAME service NAMESPACE/NAME --offline ...
  5. start the daemon with the --cluster-id that the last line of restore names: the VMs have it
VMs that were created after the snapshot have no Machine, and count as orphans.

exit status: 0 all objects exist, 1 an error, or an object was not created, 2 invalid command line

"""

NAME = "restore"
_SECTION = FlagSection(NAME, ours=True)


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


async def restore(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Restore a snapshot; return the exit status.

    Raises:
        ExaminationError: a daemon leads, or the snapshot cannot be read or restored.
    """
    from ccm.app import backup as app
    from ccm.doctor import cluster, daemons

    own, lines = request.own_flags, list[str]()
    former, dry_run = own["from-cluster-id"], own["dry-run"]

    def report(line: str) -> None:
        command.show(out, [line])

    async with backup.connected(request, environ) as case:
        if not dry_run:
            await daemons.lease(case)
            if case.lease_holder:
                raise ExaminationError(
                    f"{case.lease_holder} holds the Lease; stop all replicas of the daemon"
                )
        enter = case.exit_stack.enter_async_context
        stores = await enter(cluster.open_stores(case, own["from-persistence-config"], former))
        storage = app.BackupStorage(stores)  # before anything is opened
        await stores.wait_open()
        snapshot, entries = await storage.load(own["snapshot"])
        report(f"snapshot {snapshot.name}")
        groups = await backup.machine_objects(case)
        if former and (source := await _journal(case, stores)).entries:
            # Opened first: with an unusable storage, nothing is created.
            target = await _journal(case, await enter(cluster.open_stores(case)))
            count = await app.copy_journal(source, target, entries, dry_run=dry_run)
            lines.append(f"journal: {count} entries {'would be ' * dry_run}added")
        is_complete = await app.restore(groups, entries, dry_run=dry_run, report=report)
        if not snapshot.encrypted:
            lines.append("the snapshot has no Secrets; create those to which the objects refer")
        for marker in {*snapshot.markers} - {group.marker for group in groups}:
            lines.append(f"start the daemon with --cluster-id={marker}, the marker of the VMs")
        command.show(out, lines)
    return EXIT_OK if is_complete else EXIT_FAILED


async def _journal(case: Case, stores: PersistenceStores) -> Journal:
    from ccm.doctor.journal import KEPT, KEPT_S
    from ccm.persistence.journal import Journal

    await stores.wait_open()
    journal = Journal(writer=stores.writer, keep_removed_s=KEPT_S, max_removed=KEPT)
    case.exit_stack.push_async_callback(journal.close)
    await journal.open(stores.objects.provider, stores.objects.instance)
    return journal


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="create the machine objects of a snapshot that are absent",
    introduction=_INTRODUCTION,
    own=_RestoreFlags,
    execute=lambda request, out: asyncio.run(restore(request, out)),
    used=backup.FLAGS_USED,
    needs_provider=False,
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
