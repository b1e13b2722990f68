"""`kube-ccm backup`: stores a snapshot of the machine objects outside of the cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ccm.base.flags import FlagSection, at_least_one
from ccm.cli import command
from ccm.cli.command import EXIT_OK, ParsedCommand
from ccm.doctor import ExaminationError

if TYPE_CHECKING:
    from ccm.app.backup import MachineObjects
    from ccm.doctor.case import Case

_INTRODUCTION = """\
Stores a snapshot of all Machines, MachineSets, MachineDeployments and MachineClasses, of both API
groups, in the storage of --persistence-config; then deletes old snapshots. The storage has to
outlive the cluster: s3, postgres, or sqlite on a volume outside of it. The daemon may run.

With `secrets: {encrypted: ...}` in the file, whose storage has to outlive the cluster, too, the
snapshot is encrypted, and contains the Secrets to which the objects refer. Otherwise it contains no
Secrets, and no credentials in the objects; the output names what is left out. Never stored:
statuses, ConfigMaps, Nodes, Services, and user data of Kubermatic's operating-system-manager.

Pass the flags of the daemon. Permissions: list the machine objects, get the Secrets, the namespace
kube-system and the Lease. As a CronJob: manifests/examples/backup-cronjob.yaml.

example:
  kube-ccm backup --persistence-config=persistence.yaml --dry-run

exit status: 0 success, 1 an error, 2 invalid command line

"""

NAME = "backup"

FLAGS_USED = (
    *("kubeconfig", "master", "namespace", "control-kubeconfig", "target-kubeconfig"),
    *("kubermatic-namespace", "cluster-id", "cluster-name", "persistence-config"),
    *("leader-elect-resource-name", "leader-elect-resource-namespace", "config"),
)
"""Flags of the daemon that the commands for snapshots use."""

_SECTION = FlagSection(NAME, ours=True)


@dataclass(frozen=True)
class _BackupFlags:
    keep: int = _SECTION.flag(14, "Number of snapshots to keep.", check=at_least_one)
    dry_run: bool = _SECTION.flag(False, "Only show what would be stored.")


@asynccontextmanager
async def connected(request: ParsedCommand, environ: Mapping[str, str]) -> AsyncIterator[Case]:
    """Connect to the API server for the block; turn expected errors into ExaminationError."""
    from ccm.app.backup import BackupError
    from ccm.app.provider import Misconfigured
    from ccm.base import redact
    from ccm.base.decoding import DECODE_ERRORS
    from ccm.doctor import reach
    from ccm.doctor.case import Case
    from ccm.kube.errors import KubeError
    from ccm.persistence.errors import PersistenceError

    case = Case(options=request.options, environ=environ)
    try:
        await reach.connect(case)
        yield case
    except (BackupError, Misconfigured, PersistenceError) as error:
        raise ExaminationError(str(error)) from error
    except (KubeError, *DECODE_ERRORS) as error:
        raise ExaminationError(redact.mask_text(f"{case.cluster.server}: {error}")) from error
    finally:
        await case.exit_stack.aclose()


async def machine_objects(case: Case) -> Sequence[MachineObjects]:
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


async def back_up(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Store a snapshot; return the exit status.

    Raises:
        ExaminationError: the objects cannot be read, or the snapshot cannot be stored.
    """
    from ccm.app import backup
    from ccm.doctor import cluster

    async with connected(request, environ) as case:
        stores = await case.exit_stack.enter_async_context(cluster.open_stores(case))
        storage = backup.BackupStorage(stores)  # before anything is opened
        await stores.wait_open()
        await backup.back_up(
            await machine_objects(case),
            storage,
            now=case.client.server_time(),
            keep=request.own_flags["keep"],
            dry_run=request.own_flags["dry-run"],
            report=lambda line: command.show(out, [line]),
        )
    return EXIT_OK


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="store a snapshot of the machine objects outside of the cluster",
    introduction=_INTRODUCTION,
    own=_BackupFlags,
    execute=lambda request, out: asyncio.run(back_up(request, out)),
    used=FLAGS_USED,
    needs_provider=False,
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
