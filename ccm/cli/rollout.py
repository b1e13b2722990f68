"""`kube-ccm rollout`: how far the rollout of a MachineDeployment is; pause, resume, undo."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from ccm.cli import daemon_flags, screen

if TYPE_CHECKING:
    from ccm.app.options import Options
    from ccm.base.flags import Flag
    from ccm.doctor.case import Case
    from ccm.gardener.sets import MachineDeployment
    from ccm.kube.client import Resource

NAME = "rollout"

SUMMARY = "show how far a MachineDeployment is rolled out; pause, resume or undo it"

_INTRODUCTION = """\
Shows how the machines of a MachineDeployment are exchanged for new ones, as kubectl rollout does
for Pods, and steers it.

Usage: kube-ccm rollout status|undo|pause|resume machinedeployment/NAME [flags]

  status   say how far it is, and wait until it is done; --watch=false: only say it
  undo     go back to the template before, or to that of --to-revision
  pause    exchange no machines for now; a change of the replicas is still followed
  resume   go on

Without --kubeconfig it uses $KUBECONFIG or ~/.kube/config, as kubectl does. mcd/NAME will do for
machinedeployment/NAME. The controllers do the work: they run in the daemon where --controllers
names machineset and machinedeployment.

examples:
  kube-ccm rollout status mcd/workers
  kube-ccm rollout status mcd/workers --timeout=10m && echo all new
  kube-ccm rollout undo mcd/workers
  kube-ccm rollout undo mcd/workers --to-revision=3
  kubectl get machinesets -o custom-columns='NAME:.metadata.name,\\
    REVISION:.metadata.annotations.deployment\\.kubernetes\\.io/revision'   which there are

exit status: 0 done, or rolled out; 1 it does not move on, is not done in time, or an error

"""

EXIT_OK = daemon_flags.EXIT_OK
EXIT_FAILED = 1

ACTIONS = {
    "status": "how far it is",
    "undo": "go back to an older template",
    "pause": "exchange no machines for now",
    "resume": "go on",
}

_KINDS = ("machinedeployment", "machinedeployments", "mcd", "machinedeployment.machine.sapcloud.io")

_USED = ("kubeconfig", "master", "namespace", "v")
"""Of the daemon's flags those that this command goes by; it takes the others too."""

_REQUEST_S = 15.0
_WATCH_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for.

    Attributes:
        options: the daemon's settings, as far as they were given.
        action: one of `ACTIONS`.
        name: of the deployment.
        watch: whether to wait until it is rolled out.
        timeout_s: longest time to wait, in seconds; 0 = for ever.
        revision: to go back to; 0 = the one before.
    """

    options: Options
    action: str
    name: str
    watch: bool
    timeout_s: float
    revision: int


def own_flags() -> Mapping[str, Flag]:
    """The flags that the daemon does not have."""
    from ccm.base.flags import (
        Section,
        not_negative,
        table,
    )

    section = Section(NAME, ours=True)

    @dataclass(frozen=True)
    class Own:
        watch: bool = section.flag(True, "Wait until it is rolled out (status).", short="w")
        timeout: timedelta = section.flag(  # noqa: RUF009 - it is `dataclasses.field`
            timedelta(0),
            "Longest time to wait (status). 0 means for ever.",
            check=not_negative,
        )
        to_revision: int = section.flag(
            0,
            "Revision to go back to (undo). 0 means the one before.",
            check=lambda value: "" if value >= 0 else "must be 0 or more",
        )

    return table(Own)


def read(words: Sequence[str]) -> Wanted:
    """Turn the words behind `kube-ccm rollout` into what is wanted.

    Raises:
        UsageError: they cannot be used; every fault is named.
    """
    objects: list[str] = []

    def faults(given: Sequence[str]) -> Iterator[str]:
        objects.extend(given)
        if len(given) == 3 and given[1] in _KINDS:
            objects[1:] = [f"{given[1]}/{given[2]}"]
        kind, _, name = objects[1].partition("/") if len(objects) == 2 else ("", "", "")
        if len(objects) != 2 or objects[0] not in ACTIONS or kind not in _KINDS or not name:
            shown = " ".join(given) or "nothing"
            actions = ", ".join(ACTIONS)
            yield f"say what: one of {actions}, then machinedeployment/NAME, not {shown!r}"

    options, chosen = daemon_flags.read(
        words,
        own_flags(),
        complete=daemon_flags.of_no_cloud,
        arguments=faults,
    )
    return Wanted(
        options=options,
        action=objects[0],
        name=objects[1].partition("/")[2],
        watch=chosen["watch"],
        timeout_s=chosen["timeout"].total_seconds(),
        revision=chosen["to-revision"],
    )


async def answer(wanted: Wanted, out: TextIO, *, environ: Mapping[str, str] = os.environ) -> int:
    """Do it; the exit status."""
    from ccm.base import redact
    from ccm.doctor import reach
    from ccm.doctor.case import Case
    from ccm.doctor.finding import Verdict
    from ccm.gardener.rolloutstatus import CannotBeDone
    from ccm.kube.errors import KubeError

    case = Case(options=wanted.options, environ=environ, limit_s=_REQUEST_S)
    try:
        finding = await reach.kubeconfig(case)
        if finding.verdict is Verdict.FAIL:
            return _failed("; ".join((finding.found, *finding.details, *finding.advice)))
        if wanted.action == "status":
            return await _status(case, wanted, out)
        return await _steer(case, wanted, out)
    except CannotBeDone as error:
        return _failed(str(error))
    except KubeError as error:
        return _failed(redact.words(f"{case.cluster.server}: {error}"))
    finally:
        await case.exits.aclose()


def _failed(text: str) -> int:
    screen.fail(NAME, text)
    return EXIT_FAILED


async def _status(case: Case, wanted: Wanted, out: TextIO) -> int:
    from ccm.gardener.rolloutstatus import progress_of

    limit_s = wanted.timeout_s or None
    text = ""
    try:
        async with asyncio.timeout(limit_s):
            async for obj in _states(case, wanted):
                found = progress_of(obj)
                if found.failed:
                    return _failed(found.text)
                if found.text != text:
                    screen.show(out, [found.text])
                    out.flush()
                text = found.text
                if found.done or not wanted.watch:
                    return EXIT_OK
    except TimeoutError:
        return _failed(f"not done within {wanted.timeout_s:g}s; it goes on nevertheless")
    return _failed(f'"{wanted.name}" was deleted')


async def _states(case: Case, wanted: Wanted) -> AsyncIterator[MachineDeployment]:
    """The deployment as it is, and after each change; ends when it is deleted. Raises KubeError."""
    deployments, namespace = _deployments(case), wanted.options.namespace
    while True:
        yield await deployments.get(wanted.name, namespace=namespace)
        if not wanted.watch:
            return
        watching = deployments.watch(
            namespace=namespace,
            timeout_s=_WATCH_S,
            field_selector=f"metadata.name={wanted.name}",
        )
        async with watching as events:
            async for event in events:
                if event.type == "DELETED":
                    return
                if event.object is not None:
                    yield event.object


async def _steer(case: Case, wanted: Wanted, out: TextIO) -> int:
    from ccm.gardener import rolloutstatus
    from ccm.gardener.kinds import MACHINE_DEPLOYMENTS

    deployments, namespace = _deployments(case), wanted.options.namespace
    obj = await deployments.get(wanted.name, namespace=namespace)
    said = f"{MACHINE_DEPLOYMENTS.kind.lower()}.{MACHINE_DEPLOYMENTS.group}/{wanted.name}"
    if wanted.action == "undo":
        found = rolloutstatus.way_back(obj, await _sets(case, obj), wanted.revision)
        if found.is_same:
            screen.show(out, [f"{said} stays as it is: {found.why_not}"])
            return EXIT_OK
        patch = rolloutstatus.rollback_patch(obj, found.revision)
        done = f"goes back to revision {found.revision}"
    else:
        patch = rolloutstatus.pause_patch(obj, paused=wanted.action == "pause")
        done = "paused" if wanted.action == "pause" else "resumed"
    await deployments.patch_merge(wanted.name, patch, namespace=namespace)
    screen.show(out, [f"{said} {done}"])
    return EXIT_OK


async def _sets(case: Case, obj: MachineDeployment) -> Sequence[Any]:
    from ccm.gardener.kinds import MACHINE_SETS
    from ccm.model.owners import controller_uid

    pages = case.client.resource(MACHINE_SETS).pages(namespace=obj.namespace)
    found = [one async for page in pages for one in page.items]
    return [one for one in found if controller_uid(one) == obj.uid]


def _deployments(case: Case) -> Resource[MachineDeployment]:
    from ccm.gardener.kinds import MACHINE_DEPLOYMENTS

    return case.client.resource(MACHINE_DEPLOYMENTS)


def _then(wanted: Wanted, out: TextIO) -> int:
    return asyncio.run(answer(wanted, out))


_COMMAND = daemon_flags.Command(
    name=NAME,
    summary=SUMMARY,
    introduction=_INTRODUCTION,
    own=own_flags,
    read=read,
    then=_then,
    used=_USED,
    wrong=EXIT_FAILED,
)

add, run = _COMMAND.add, _COMMAND.run
