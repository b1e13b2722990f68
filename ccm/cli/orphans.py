"""`kube-ccm orphans`: shows or deletes load balancers of this cluster that belong to no Service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ccm.cli import daemon_flags, screen

if TYPE_CHECKING:
    from ccm.app.options import Options
    from ccm.base.flags import Flag
    from ccm.cloud.calls.handle import Handle
    from ccm.cloud.types import LoadBalancerRecord
    from ccm.doctor.case import Case
    from ccm.model import Service

NAME = "orphans"

SUMMARY = "show load balancers of this cluster that belong to no Service, or delete one"

_INTRODUCTION = """\
Shows the load balancers that the cloud has for this cluster and that belong to no Service. The
daemon never deletes them: it reports them in an Event and in the metric ccm_service_orphans.

Usage: kube-ccm orphans [--delete=NAME] [the daemon's own flags]

Give it the flags of the daemon, for instance those of its Deployment. Without --kubeconfig and
outside a cluster it uses $KUBECONFIG or ~/.kube/config, as kubectl does.

examples:
  kube-ccm orphans --cloud-provider=sim --cloud-config=cloud.yaml
  kube-ccm orphans --cloud-provider=sim --cloud-config=cloud.yaml --delete=a0123456789abcdef

exit status: 0 done, 1 not possible, 2 the command line is wrong

"""

EXIT_OK = daemon_flags.EXIT_OK
EXIT_FAILED = 1
EXIT_USAGE = daemon_flags.EXIT_USAGE


class Refused(Exception):
    """It cannot be done; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for.

    Attributes:
        options: the daemon's settings, those of its `--config` included.
        delete: the name of the load balancer to delete; empty: show them.
    """

    options: Options
    delete: str = ""


def own_flags() -> Mapping[str, Flag]:
    """The flags that the daemon does not have."""
    from ccm.base.flags import Section, table

    section = Section(NAME, ours=True)

    @dataclass(frozen=True)
    class Own:
        delete: str = section.flag(
            "", "Delete the load balancer of this name, if it belongs to no Service."
        )

    return table(Own)


def read(words: Sequence[str]) -> Wanted:
    """Turn the words behind `kube-ccm orphans` into what is wanted.

    Raises:
        UsageError: they cannot be used; every fault is named.
    """
    options, chosen = daemon_flags.read(words, own_flags())
    return Wanted(options=options, delete=chosen["delete"])


async def answer(wanted: Wanted, out: TextIO, *, environ: Mapping[str, str] = os.environ) -> None:
    """Show them, or delete one.

    Raises:
        Refused: it cannot be done.
    """
    from ccm.base import redact
    from ccm.cloud.errors import CloudError
    from ccm.doctor.case import Case
    from ccm.kube.errors import KubeError

    case = Case(options=wanted.options, environ=environ)
    try:
        handle = await _opened(case)
        found = await _orphans(case, handle)
        if wanted.delete:
            await _delete(handle, wanted.delete, found)
            screen.show(out, [f"{wanted.delete} is deleted"])
        for one in () if wanted.delete else found:
            where = ", ".join(entry.ip or entry.hostname for entry in one.status.ingress)
            screen.show(out, [f"{one.name}  {where or '-'}"])
        if not (found or wanted.delete):
            screen.show(out, ["every load balancer of this cluster belongs to a Service"])
    except (CloudError, KubeError) as error:
        raise Refused(redact.words(f"{type(error).__name__}: {error}")) from error
    finally:
        await case.exits.aclose()


async def _opened(case: Case) -> Handle:
    """The way to the cloud; the API server is reached through `case` then."""
    from ccm.cloud.calls.handle import Handle
    from ccm.cloud.interface import LoadBalancerDigests
    from ccm.doctor import provider

    try:
        await provider.opened(case)
    except provider.NotOpened as error:
        raise Refused(str(error)) from error
    handle = Handle(case.cloud, cluster_name=case.options.cluster_name)
    if not handle.offers(LoadBalancerDigests):
        raise Refused(f"provider {handle.name} cannot list load balancers")
    return handle


async def _orphans(case: Case, handle: Handle) -> Sequence[LoadBalancerRecord]:
    from ccm.cloud.interface import LoadBalancerDigests
    from ccm.controllers.service.listing import unowned
    from ccm.kube.resources import SERVICES

    listing = await handle.call(LoadBalancerDigests.list_load_balancers, handle.cluster_name)
    # Read after it: what is listed belongs to a Service that is there by now.
    services: list[Service] = []
    async for page in case.client.resource(SERVICES).pages():
        services += page.items
        if page.malformed_keys:
            unreadable = ", ".join(key or "one without a name" for key in page.malformed_keys)
            raise Refused(f"Services that cannot be decoded may own load balancers: {unreadable}")
    return unowned(handle, listing, services)


async def _delete(handle: Handle, name: str, found: Sequence[LoadBalancerRecord]) -> None:
    from ccm.cloud.interface import LoadBalancerRemoval

    if name not in {one.name for one in found}:
        raise Refused(f"{name} is no load balancer of this cluster, or belongs to a Service")
    if not handle.offers(LoadBalancerRemoval):
        raise Refused(
            f"provider {handle.name} cannot delete a load balancer by its name; delete {name} with "
            "the tools of the cloud"
        )
    await handle.call(LoadBalancerRemoval.delete_load_balancer, handle.cluster_name, name)


def _then(wanted: Wanted, out: TextIO) -> int:
    try:
        asyncio.run(answer(wanted, out))
    except Refused as error:
        screen.fail(NAME, str(error))
        return EXIT_FAILED
    return EXIT_OK


_COMMAND = daemon_flags.Command(
    name=NAME,
    summary=SUMMARY,
    introduction=_INTRODUCTION,
    own=own_flags,
    read=read,
    then=_then,
)

add, run = _COMMAND.add, _COMMAND.run
