"""`kube-ccm plan`: what the daemon would do, without doing it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from ccm.base.flags import FlagSection
from ccm.cli import command
from ccm.cli.command import EXIT_FAILED, EXIT_OK, ParsedCommand

_INTRODUCTION = """\
Shows what the daemon would change if it were started now with these flags: nodes, Services, load
balancers, routes, Machines and their VMs, and which deletions it would hold back and why. Nothing
is written, neither to the cluster nor to the cloud; another manager may run meanwhile, such as the
one to be replaced.

The daemon's own controllers run over a copy of the cluster in memory. They ask the cloud as they
always do; what they would change there is noted and taken for done, so that what follows from it
is shown too. Time in which they would only wait is skipped.

Usage: kube-ccm plan [-o text|json] [--wait] [the daemon's own flags]

Give it the flags of the daemon, for instance those of its Deployment. Without --kubeconfig and
outside a cluster it uses $KUBECONFIG or ~/.kube/config, as kubectl does. It needs the right to
list nodes and Services and to read the ConfigMap kube-ccm-deletions beside the Lease; for Machines
also to list them, their classes and the Secrets beside them, and to read the namespace kube-system.
With -v the controllers' own log is shown too, which tells of changes as if they were made.

examples:
  kube-ccm plan --cloud-provider=sim --cloud-config=cloud.yaml
  kube-ccm plan --cloud-provider=sim --cloud-config=cloud.yaml --wait
  kube-ccm plan --cloud-provider=sim --cloud-config=cloud.yaml -o json | jq '.changes[].object'

how to read it:
  Node worker-3
    - would delete after 5s (if the cloud still denies it)
  Node worker-4
    + spec.providerID: sim://i-4                               is set
    ~ status.addresses[InternalIP]: 10.0.0.4 → 10.0.0.9        is changed
    - spec.taints: node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule
  Node worker-5
    ! held: ...                                                is not deleted, why, and what to do
  Service default/shop
    ~ load balancer: members worker-4 (would ensure it: nobody knows whether anything differs)
  Machine default/worker-6
    + VM: of class small                                       is made; what follows is not known

A node is deleted once the cloud has denied its instance twice, a monitor period apart. Without
--wait the second answer is not waited for. A load balancer whose state the cloud does not list
would be ensured, which changes nothing where nothing differs, but counts as a change here.

-o json is one object:
  summary   one line
  changes   of each: object (kind, namespace, name), action (create, change or delete), what (a
            field, the kind of the object itself, "load balancer", "members of the load balancer",
            "route" or "VM"), old and new (null: not there, or not known), afterSeconds, note
  held, warnings   of each: object, reason, message
  leftOut   controller -> why it would not run
  failures  why it is not known what would be done

exit status: 0 nothing to do, 2 changes, 1 an error: the plan is missing or not complete

"""

NAME = "plan"

EXIT_CHANGES = 2

_STYLES = {"+": "green", "~": "yellow", "-": "red", "!": "bold magenta"}
_SECTION = FlagSection(NAME, ours=True)


@dataclass(frozen=True)
class _Own:
    output: str = command.output(_SECTION, "text")
    wait: bool = _SECTION.flag(
        False,
        "Wait for the monitor period (--node-monitor-period) and ask the cloud again about the "
        "nodes that it denies, as the daemon does before it deletes them.",
    )


async def show_plan(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Show the plan; return the exit status.

    Raises:
        ExaminationError: the plan cannot be computed.
    """
    from ccm.base import terminal
    from ccm.base.log_render import escape_control
    from ccm.doctor import start_forecast
    from ccm.planning import changes

    forecast = await start_forecast.forecast_of(
        request.options, environ, wait=request.own_flags["wait"]
    )
    if request.own_flags["output"] == "json":
        command.show_json(out, changes.document(forecast))
    else:
        console = terminal.console(out, os.environ)
        for line in changes.lines(forecast):
            style = _STYLES.get(line.lstrip()[:1])
            if console is not None and style is not None:
                console.print(escape_control(line), style=style, soft_wrap=True)
            else:
                command.show(out, [line])
        command.show(out, [changes.summary(forecast)])
    if forecast.failures:
        return EXIT_FAILED
    return EXIT_CHANGES if forecast.changes else EXIT_OK


def _act(request: ParsedCommand, out: TextIO) -> int:
    from ccm.planning.timeloop import FastForwardLoop

    with asyncio.Runner(loop_factory=FastForwardLoop) as runner:
        return runner.run(show_plan(request, out))


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="show what the daemon would do to this cluster and its cloud, and do nothing of it",
    introduction=_INTRODUCTION,
    own=_Own,
    execute=_act,
    exit_usage=EXIT_FAILED,  # 2 means changes
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
