"""`kube-ccm orphans`: shows load balancers of this cluster that belong to no Service.

The command also shows the orphans in the daemon's journal. With `--delete`, it deletes one of the
load balancers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ccm.base import clock
from ccm.base.flags import FlagSection
from ccm.cli import command, explain
from ccm.cli.command import EXIT_FAILED, EXIT_FINDINGS, EXIT_OK, ParsedCommand
from ccm.doctor import ExaminationError

if TYPE_CHECKING:
    from ccm.cloud.calls.client import CloudClient
    from ccm.cloud.types import LoadBalancerRecord
    from ccm.doctor.case import Case
    from ccm.model import Service

_INTRODUCTION = """\
Shows this cluster's load balancers in the cloud that belong to no Service, if the provider can list
load balancers. The daemon never deletes them; it reports them in an Event and in the metric
ccm_service_orphans. With --journal=report or delete, the command also asks the leader for the
resources in the journal whose owner is gone, with the permissions of kube-ccm journal. Other VMs
are not shown: kube-ccm doctor reports those without a Machine.

Usage: kube-ccm orphans [-o FORMAT] [--delete=NAME] [the daemon's flags]

Pass the flags of the daemon, for example from its Deployment. Without --kubeconfig and outside a
cluster, orphans uses $KUBECONFIG or ~/.kube/config, as kubectl does.

examples:
  kube-ccm orphans --cloud-provider=sim --cloud-config=cloud.yaml
  kube-ccm orphans --cloud-provider=sim --cloud-config=cloud.yaml --delete=a0123456789abcdef

-o json and -o yaml print: orphans (list of: source, which is cloud or journal, name, detail), and
problem (why orphans of the journal may be missing; empty: none).

exit status: 0 no orphans, 1 an error, or the leader was not asked, 2 invalid command line,
3 orphans were found

"""

DELETION_S = 600.0
"""Time limit in seconds of a deletion, after which the call is not repeated."""

MIN_DELAY_S = 2.0
"""Minimum delay in seconds before a deletion call is repeated."""

NAME = "orphans"
_SECTION = FlagSection(NAME, ours=True)


@dataclass(frozen=True)
class _Own:
    output: str = command.output(_SECTION)
    delete: str = _SECTION.flag(
        "", "Delete the load balancer of this name if it belongs to no Service."
    )


async def show_or_delete(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Show the orphaned load balancers, or delete the load balancer that `--delete` names.

    Returns:
        The exit status.

    Raises:
        ExaminationError: a request to the cloud or the API server failed; the provider cannot list
            or delete load balancers; or `--delete` names a load balancer that belongs to a Service
            or another cluster.
    """
    from ccm.app.options.generic import JOURNAL_OFF
    from ccm.cloud.interface import LoadBalancerDigests

    name, form = request.own_flags["delete"], request.own_flags["output"]
    async with command.open_case(request, environ) as case:
        client = await _opened(case)
        listing: Sequence[LoadBalancerRecord] = ()
        orphans: Sequence[LoadBalancerRecord] = ()
        if client.offers(LoadBalancerDigests):
            listing = await _listing(client)
            orphans = await _orphans(case, client, listing)
        elif name or case.options.journal == JOURNAL_OFF:
            raise ExaminationError(f"provider {client.name} cannot list load balancers")
        if name:
            await _delete(case, client, name, listing)
            # In OpenStack, the deletion of such a load balancer removes only the Service's part.
            is_adopted = any(lb.adopted for lb in listing if lb.name == name)
            verb = "released" if is_adopted else "deleted"
            command.show_result(out, form, {verb: name}, [f"{name} {verb}"])
            return EXIT_OK
        in_journal, problem = await _in_journal(case)
    listed = [
        {
            "source": "cloud",
            "name": lb.name,
            "detail": ", ".join(entry.ip or entry.hostname for entry in lb.status.ingress),
        }
        for lb in orphans
    ]
    listed += [
        {"source": "journal", "name": entry, "detail": f"journal: {text}"}
        for entry, text in in_journal.items()
    ]
    document = {"orphans": listed, "problem": problem}
    rows = [(orphan["name"], orphan["detail"]) for orphan in listed]
    lines = [*command.table(("NAME", "DETAIL"), rows)] if rows else ["no orphans were found"]
    command.show_result(out, form, document, lines + [f"journal: {problem}"] * bool(problem))
    if problem:
        return EXIT_FAILED
    return EXIT_FINDINGS if rows else EXIT_OK


async def _opened(case: Case) -> CloudClient:
    """Open the clients of `case`, and return a client for cloud calls.

    Raises:
        ExaminationError: a client cannot be opened.
    """
    from ccm.cloud.calls.client import CloudClient
    from ccm.doctor import provider

    await provider.open_provider(case)
    return CloudClient(case.cloud, cluster_name=case.options.cluster_name)


async def _in_journal(case: Case) -> tuple[Mapping[str, str], str]:
    """Return the orphans that the leader found with the journal, and why some may be missing.

    The orphans are messages by the name of the entry; the second value may be empty.
    """
    from ccm.app.options.generic import JOURNAL_OFF
    from ccm.doctor import journal

    if case.options.journal == JOURNAL_OFF:
        return {}, ""
    try:
        response = await journal.ask(case)
    except ExaminationError as error:
        return {}, f"the leader was not asked: {error}"
    return response.orphans, response.down and f"cannot be written: {response.down}"


async def _listing(client: CloudClient) -> Sequence[LoadBalancerRecord]:
    from ccm.cloud.interface import LoadBalancerDigests

    return await client.call(LoadBalancerDigests.list_load_balancers, client.cluster_name)


async def _orphans(
    case: Case, client: CloudClient, listing: Sequence[LoadBalancerRecord]
) -> Sequence[LoadBalancerRecord]:
    """Return the listed load balancers that belong to no Service.

    Services are read after the load balancers, because a Service exists before its load balancer.
    """
    from ccm.controllers.service.listing import find_orphans
    from ccm.kube.resources import SERVICES

    services: list[Service] = []
    async for page in case.client.resource(SERVICES).pages():
        services += page.items
        if page.malformed_keys:
            unreadable = ", ".join(key or "a Service without a name" for key in page.malformed_keys)
            raise ExaminationError(
                f"Services that cannot be decoded may own load balancers: {unreadable}"
            )
    return find_orphans(client, listing, services)


async def _delete(
    case: Case, client: CloudClient, name: str, listing: Sequence[LoadBalancerRecord]
) -> None:
    """Delete a load balancer; repeat the call until the cloud has deleted it with all its parts.

    A second run of the command could not delete the remaining parts, such as security groups or
    credentials: the cloud does not list a deleted load balancer.
    """
    from ccm.base import redact
    from ccm.cloud.errors import DeadlineExceeded, RetryAfter, Unavailable
    from ccm.cloud.interface import LoadBalancerRemoval
    from ccm.kube.errors import ServerError, Unreachable

    if not client.offers(LoadBalancerRemoval):
        raise ExaminationError(
            f"provider {client.name} cannot delete a load balancer by name; delete {name} with the "
            "tools of the cloud"
        )
    deadline, reported = clock.monotonic() + DELETION_S, ""
    while True:
        problem: Exception
        try:
            # Before every call: in some clouds a Service that was created meanwhile gets a load
            # balancer of the same name.
            if name not in {record.name for record in await _orphans(case, client, listing)}:
                raise ExaminationError(
                    f"{name} is not a load balancer of this cluster, lacks the marker of this "
                    "cluster, or belongs to a Service"
                )
            await client.call(LoadBalancerRemoval.delete_load_balancer, client.cluster_name, name)
            remaining = await _listing(client)
            break
        except (RetryAfter, Unavailable, DeadlineExceeded, Unreachable, ServerError) as error:
            problem = error
        text = redact.mask_text(str(problem))
        delay_s = max(MIN_DELAY_S, problem.seconds if isinstance(problem, RetryAfter) else 0)
        if clock.monotonic() + delay_s > deadline:
            raise ExaminationError(
                f"{name} was not deleted within {DELETION_S:g} s: {text}; repeat the command, or "
                "delete what is left in the cloud"
            ) from problem
        if text != reported:
            command.fail(NAME, f"waiting for the deletion of {name}: {text}")
        reported = text
        await asyncio.sleep(delay_s)
    if name in {record.name for record in remaining}:
        raise ExaminationError(
            f"provider {client.name} did not delete {name}; delete it with the tools of the cloud"
        )


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="show load balancers of this cluster that belong to no Service, or delete one",
    introduction=_INTRODUCTION,
    own=_Own,
    execute=lambda request, out: asyncio.run(show_or_delete(request, out)),
    used=(
        *explain.COMMAND.used,
        *("allow-untagged-cloud", "cloud-config", "cloud-provider", "cluster-name", "journal", "v"),
    ),
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
