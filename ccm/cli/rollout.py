"""`kube-ccm rollout`: shows and controls the rollout of a MachineDeployment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from ccm.base import clock
from ccm.base import flags as checks
from ccm.base.flags import FlagSection, did_you_mean
from ccm.cli import command, explain
from ccm.cli.command import EXIT_FINDINGS, EXIT_OK, ParsedCommand
from ccm.doctor import ExaminationError

if TYPE_CHECKING:
    from ccm.kube.client import Client, Resource
    from ccm.machines.codec import Codec
    from ccm.model.machines import MachineDeployment, MachineSet
    from ccm.model.patches import Patch

_INTRODUCTION = """\
Shows and controls the rollout of a MachineDeployment, as kubectl rollout does for a Deployment.

Usage: kube-ccm rollout ACTION machinedeployment/NAME [flags]

  status   show the progress until the rollout is complete; --watch=false: show it once
  history  list the revisions; --revision=N: show the template of one
  restart  roll out the template again: all machines are replaced, or updated in place, as the
           strategy of the MachineDeployment says
  undo     roll back to the previous template, or to that of --to-revision
  pause    stop replacing machines; changes of the replicas still take effect
  resume   continue the rollout

restart sets the annotation kubectl.kubernetes.io/restartedAt in the template, as kubectl does, and
the rollout of the changed template replaces the machines. With the strategy InPlaceUpdate none is
replaced: an updater on each node, which is another program, updates the node. To see a CHANGE-CAUSE
in the history, set the annotation kubernetes.io/change-cause on the MachineDeployment when you
change its template.

Without --kubeconfig, rollout uses $KUBECONFIG or ~/.kube/config, as kubectl does. mcd/NAME is short
for machinedeployment.machine.sapcloud.io/NAME (Gardener), and md/NAME for
machinedeployment.cluster.k8s.io/NAME (Kubermatic), which is usually in the namespace kube-system.
The controllers of MachineSets and MachineDeployments do the work; they run in a daemon whose
--controllers includes them.

examples:
  kube-ccm rollout status mcd/workers
  kube-ccm rollout status mcd/workers --timeout=10m && echo all new
  kube-ccm rollout status md/workers --namespace=kube-system
  kube-ccm rollout restart mcd/workers
  kube-ccm rollout history mcd/workers
  kube-ccm rollout undo mcd/workers --to-revision=3

exit status: 0 success, 1 an error, or the rollout is not complete in time, 2 invalid command line,
3 the rollout cannot continue

"""

NAME = "rollout"

ACTIONS = {
    "status": "show the progress",
    "history": "list the revisions",
    "restart": "roll out the template again",
    "undo": "roll back to an earlier template",
    "pause": "pause the rollout",
    "resume": "continue the rollout",
}

_ACTION_OF = {
    "watch": "status",
    "timeout": "status",
    "revision": "history",
    "to-revision": "undo",
}
"""Own flag -> the only action that uses it."""

_KIND = "machinedeployment"
_REQUEST_S = 15.0
_WATCH_S = 60
_SECTION = FlagSection(NAME, ours=True)


def _wrong_revision(number: int) -> str:
    return "" if number >= 0 else "must be 0 or more"


@dataclass(frozen=True)
class _Own:
    output: str = command.output(_SECTION)
    watch: bool = _SECTION.flag(True, "With status: wait until the rollout is complete.", short="w")
    timeout: timedelta = _SECTION.flag(  # noqa: RUF009 - it is `dataclasses.field`
        timedelta(0),
        "With status: maximum time to wait. 0 means no limit.",
        check=checks.not_negative,
    )
    to_revision: int = _SECTION.flag(
        0, "With undo: revision to roll back to. 0 means the previous one.", check=_wrong_revision
    )
    revision: int = _SECTION.flag(
        0, "With history: revision whose template is shown. 0 means none.", check=_wrong_revision
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


def _faults(words: Sequence[str], _own: Mapping[str, Any], given: Collection[str]) -> Iterator[str]:
    action, name, _ = parse_target(words)
    if not name:
        shown, actions = " ".join(words) or "nothing", ", ".join(ACTIONS)
        got = f"got {shown!r}{did_you_mean(''.join(words[:1]), ACTIONS)}"
        yield f"expected one of {actions}, then machinedeployment/NAME; {got}"
    for flag, needed in _ACTION_OF.items():
        if flag in given and action != needed:
            yield f"--{flag} needs {needed}"


async def show_or_change(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Show or change the rollout; return the exit status.

    Raises:
        ExaminationError: a request failed, the MachineDeployment does not permit the action, or the
            rollout is not complete in time.
    """
    from ccm.doctor import reach
    from ccm.machines.rolloutstatus import RolloutRequestError

    action, _, group = parse_target(request.arguments)
    carry_out = {"status": _status, "history": _history}.get(action, _change_rollout)
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
    form, text = request.own_flags["output"], ""
    try:
        async with asyncio.timeout(limit_s or None):
            async for obj in _states(deployments, request, name):
                progress = rollout_progress(obj)
                is_last = progress.done or not request.own_flags["watch"]
                # A document is complete, so it shows the last state only.
                if progress.text != text if form == "table" else is_last:
                    command.show_result(out, form, progress, [progress.text])
                text = progress.text
                if is_last:
                    return EXIT_FINDINGS if progress.failed else EXIT_OK
    except TimeoutError as error:
        state = text or "no state was read"
        raise ExaminationError(f"not complete after {limit_s:g}s: {state}") from error
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


async def _history(client: Client, codec: Codec, request: ParsedCommand, out: TextIO) -> int:
    from ccm.machines.rolloutstatus import RolloutRequestError, revisions

    _, name, _ = parse_target(request.arguments)
    deployments = client.resource(codec.machine_deployments)
    obj = await deployments.get(name, namespace=request.options.namespace)
    known = revisions(await _sets_of(client, codec, obj), codec.names)
    if not (number := request.own_flags["revision"]):
        listed = [
            {
                "revision": revision.number,
                "machineSet": revision.set.name,
                "template": codec.template_summary(revision.set),
                "changeCause": revision.cause,
            }
            for revision in known
        ]
        head = ("REVISION", "MACHINESET", "TEMPLATE", "CHANGE-CAUSE")
        lines = command.table(
            head, [[str(cell or "<none>") for cell in row.values()] for row in listed]
        )
        command.show_result(out, request.own_flags["output"], {"revisions": listed}, lines)
        return EXIT_OK
    chosen = [revision.set for revision in known if revision.number == number]
    if not chosen:
        numbers = ", ".join(str(revision.number) for revision in known) or "none"
        raise RolloutRequestError(f"There is no revision {number}. Known revisions: {numbers}.")
    template = codec.template_document(chosen[-1])
    text = command.yaml_text(template).splitlines()
    command.show_result(out, request.own_flags["output"], template, text)
    return EXIT_OK


async def _sets_of(client: Client, codec: Codec, obj: MachineDeployment) -> list[MachineSet]:
    """Return the sets that a deployment controls.

    Raises KubeError.
    """
    from ccm.model.owners import controller_uid

    pages = client.resource(codec.machine_sets).pages(namespace=obj.namespace)
    return [
        machine_set
        async for page in pages
        for machine_set in page.items
        if controller_uid(machine_set) == obj.uid
    ]


async def _change_rollout(client: Client, codec: Codec, request: ParsedCommand, out: TextIO) -> int:
    from ccm.machines import rolloutstatus
    from ccm.model.machines import Strategy

    deployments, namespace = client.resource(codec.machine_deployments), request.options.namespace
    action, name, _ = parse_target(request.arguments)
    obj = await deployments.get(name, namespace=namespace)
    form, shown = request.own_flags["output"], f"{_KIND}.{codec.machine_deployments.group}/{name}"
    patch: Patch | None = None
    if action == "undo":
        sets = await _sets_of(client, codec, obj)
        revision = request.own_flags["to-revision"]
        revert = rolloutstatus.find_rollback(obj, sets, revision, codec.names)
        done = f"not rolled back: {revert.error}"
        if revert.to is not None:
            patch = codec.rollback_patch(obj, revert.to, revert.revision)
            done = f"rolled back to revision {revert.revision}"
    elif action == "restart":
        patch, done = rolloutstatus.restart_patch(obj, codec, clock.now()), "restarted"
        if obj.strategy is Strategy.IN_PLACE:
            done += "; no machine is replaced (InPlaceUpdate): nodes wait for their updaters"
    else:
        patch = rolloutstatus.pause_patch(obj, paused=action == "pause")
        done = "paused" if action == "pause" else "resumed"
    if patch is not None:
        await deployments.patch_merge(name, patch, namespace=namespace)
    command.show_result(out, form, {"object": shown, "result": done}, [f"{shown} {done}"])
    return EXIT_OK


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="show the rollout of a MachineDeployment; restart, pause, resume or undo it",
    introduction=_INTRODUCTION,
    own=_Own,
    execute=lambda request, out: asyncio.run(show_or_change(request, out)),
    used=("kubeconfig", "master", "namespace", "v"),
    required=(),
    check_arguments=_faults,
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
