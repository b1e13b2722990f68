"""`kube-ccm rollout`: shows, pauses, resumes or undoes the rollout of a MachineDeployment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from ccm.base import flags as checks
from ccm.base.flags import FlagSection
from ccm.cli import command, explain
from ccm.cli.command import EXIT_FAILED, EXIT_OK, ParsedCommand
from ccm.doctor import ExaminationError

if TYPE_CHECKING:
    from ccm.kube.client import Client, Resource
    from ccm.machines.codec import Codec
    from ccm.model.machines import MachineDeployment

_INTRODUCTION = """\
Shows and controls the rollout of a MachineDeployment, as kubectl rollout does for a Deployment.

Usage: kube-ccm rollout status|undo|pause|resume machinedeployment/NAME [flags]

  status   show the progress until the rollout is complete; --watch=false: show it once
  undo     roll back to the previous template, or to that of --to-revision
  pause    stop replacing machines; changes of the replicas still take effect
  resume   continue the rollout

Without --kubeconfig, rollout uses $KUBECONFIG or ~/.kube/config, as kubectl does. mcd/NAME is short
for machinedeployment.machine.sapcloud.io/NAME (Gardener), and md/NAME for
machinedeployment.cluster.k8s.io/NAME (Kubermatic), which is usually in the namespace kube-system.
The controllers of MachineSets and MachineDeployments do the work; they run in a daemon whose
--controllers includes them.

examples:
  kube-ccm rollout status mcd/workers
  kube-ccm rollout status mcd/workers --timeout=10m && echo all new
  kube-ccm rollout status md/workers --namespace=kube-system
  kube-ccm rollout undo mcd/workers
  kube-ccm rollout undo mcd/workers --to-revision=3
  kubectl get machinesets -o custom-columns='NAME:.metadata.name,\\
    REVISION:.metadata.annotations.deployment\\.kubernetes\\.io/revision'   list revisions

exit status: 0 success; 1 the rollout is stuck or timed out, or an error

"""

NAME = "rollout"

ACTIONS = {
    "status": "show the progress",
    "undo": "roll back to an earlier template",
    "pause": "pause the rollout",
    "resume": "continue the rollout",
}

_KIND = "machinedeployment"
_REQUEST_S = 15.0
_WATCH_S = 60
_SECTION = FlagSection(NAME, ours=True)


@dataclass(frozen=True)
class _Own:
    watch: bool = _SECTION.flag(True, "With status: wait until the rollout is complete.", short="w")
    timeout: timedelta = _SECTION.flag(  # noqa: RUF009 - it is `dataclasses.field`
        timedelta(0),
        "With status: maximum time to wait. 0 means no limit.",
        check=checks.not_negative,
    )
    to_revision: int = _SECTION.flag(
        0,
        "With undo: revision to roll back to. 0 means the previous one.",
        check=lambda value: "" if value >= 0 else "must be 0 or more",
    )


def parse_target(words: Sequence[str]) -> tuple[str, str, str]:
    """Return the action, and name and API group of the MachineDeployment.

    All three are empty for invalid words; the group is empty if the words contain no group.
    """
    action, *objects = words or ("",)
    word, _, name = "/".join(objects).partition("/")
    kind, group = explain.kind_of(word)
    if action not in ACTIONS or kind != _KIND or "/" in name or len(objects) > 2:
        return "", "", ""
    return action, name, group


def _faults(words: Sequence[str], _own: Mapping[str, Any]) -> Iterator[str]:
    if not parse_target(words)[1]:
        shown, actions = " ".join(words) or "nothing", ", ".join(ACTIONS)
        yield f"expected one of {actions}, then machinedeployment/NAME; got {shown!r}"


async def show_or_change(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Show or change the rollout; return the exit status.

    Raises:
        ExaminationError: a request failed, the MachineDeployment does not permit the action, or the
            rollout is stuck or not complete in time.
    """
    from ccm.doctor import reach
    from ccm.machines.rolloutstatus import RolloutRequestError

    action, _, group = parse_target(request.arguments)
    carry_out = _status if action == "status" else _change_rollout
    async with command.open_case(request, environ, _REQUEST_S) as case:
        await reach.connect(case)
        codec = (await reach.find_machine_api(case.client, _KIND, group)).codec
        try:
            return await carry_out(case.client, codec, request, out)
        except RolloutRequestError as error:
            raise ExaminationError(str(error)) from error


async def _status(client: Client, codec: Codec, request: ParsedCommand, out: TextIO) -> int:
    from ccm.machines.rolloutstatus import rollout_progress

    limit_s = request.own_flags["timeout"].total_seconds()
    _, name, _ = parse_target(request.arguments)
    deployments = client.resource(codec.machine_deployments)
    text = ""
    try:
        async with asyncio.timeout(limit_s or None):
            async for obj in _states(deployments, request, name):
                progress = rollout_progress(obj)
                if progress.failed:
                    raise ExaminationError(progress.text)
                if progress.text != text:
                    command.show(out, [progress.text])
                text = progress.text
                if progress.done or not request.own_flags["watch"]:
                    return EXIT_OK
    except TimeoutError as error:
        raise ExaminationError(f"not complete after {limit_s:g}s; the rollout continues") from error
    raise ExaminationError(f'"{name}" was deleted')


async def _states(
    deployments: Resource[MachineDeployment], request: ParsedCommand, name: str
) -> AsyncIterator[MachineDeployment]:
    """Yield the current MachineDeployment and, with --watch, each later state until its deletion.

    Raises KubeError.
    """
    namespace = request.options.namespace
    while True:
        yield await deployments.get(name, namespace=namespace)
        if not request.own_flags["watch"]:
            return
        watching = deployments.watch(
            namespace=namespace, timeout_s=_WATCH_S, field_selector=f"metadata.name={name}"
        )
        async with watching as events:
            async for event in events:
                if event.type == "DELETED":
                    return
                if event.object is not None:
                    yield event.object


async def _change_rollout(client: Client, codec: Codec, request: ParsedCommand, out: TextIO) -> int:
    from ccm.machines import rolloutstatus
    from ccm.model.owners import controller_uid

    deployments, namespace = client.resource(codec.machine_deployments), request.options.namespace
    action, name, _ = parse_target(request.arguments)
    obj = await deployments.get(name, namespace=namespace)
    shown = f"{_KIND}.{codec.machine_deployments.group}/{name}"
    if action == "undo":
        pages = client.resource(codec.machine_sets).pages(namespace=obj.namespace)
        sets = [
            machine_set
            async for page in pages
            for machine_set in page.items
            if controller_uid(machine_set) == obj.uid
        ]
        revision = request.own_flags["to-revision"]
        revert = rolloutstatus.find_rollback(obj, sets, revision, codec.names)
        if revert.to is None:
            command.show(out, [f"{shown} not rolled back: {revert.error}"])
            return EXIT_OK
        patch = codec.rollback_patch(obj, revert.to, revert.revision)
        done = f"rolled back to revision {revert.revision}"
    else:
        patch = rolloutstatus.pause_patch(obj, paused=action == "pause")
        done = "paused" if action == "pause" else "resumed"
    await deployments.patch_merge(name, patch, namespace=namespace)
    command.show(out, [f"{shown} {done}"])
    return EXIT_OK


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="show the rollout of a MachineDeployment; pause, resume or undo it",
    introduction=_INTRODUCTION,
    own=_Own,
    execute=lambda request, out: asyncio.run(show_or_change(request, out)),
    used=("kubeconfig", "master", "namespace", "v"),
    needs_provider=False,
    check_arguments=_faults,
    exit_usage=EXIT_FAILED,
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
