"""`kube-ccm plan`: shows what the daemon would change, without changing it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from ccm.base.flags import FlagSection
from ccm.cli import command
from ccm.cli.command import EXIT_FAILED, EXIT_FINDINGS, EXIT_OK, ParsedCommand

_INTRODUCTION = """\
Shows what the daemon would change if it started now with these flags: nodes, Services, load
balancers, routes, Machines and their VMs, and which deletions it would block and why. Plan changes
nothing, neither in the cluster nor in the cloud. Another manager may run at the same time, such as
the one to be replaced.

Plan runs the daemon's controllers on an in-memory copy of the cluster. Reads go to the real cloud.
Writes to the cloud are recorded and assumed to succeed, so that their consequences are shown, too.
Waiting times are skipped.

Usage: kube-ccm plan [-o FORMAT] [--wait] [the daemon's flags]

Pass the flags of the daemon, for example from its Deployment. Without --kubeconfig and outside a
cluster, plan uses $KUBECONFIG or ~/.kube/config, as kubectl does. Required permissions: list nodes
and Services, and get the ConfigMap kube-ccm-deletions in the Lease's namespace; for Machines also
list them, their classes and the Secrets in their namespace, and get the namespace kube-system; for
Kubermatic's Machines also list the ConfigMaps in their namespace and the Secrets in the namespace
cloud-init-settings. With -v the controllers' log is shown, too; it reports changes as if they were
made.

examples:
  kube-ccm plan --cloud-provider=sim --cloud-config=cloud.yaml
  kube-ccm plan --cloud-provider=sim --cloud-config=cloud.yaml --wait
  kube-ccm plan --cloud-provider=sim --cloud-config=cloud.yaml -o json | jq '.changes[].object'

format:
  Node worker-3
    - would delete after 5s (if its instance is still missing)
  Node worker-4
    + spec.providerID: sim://i-4                               set
    ~ status.addresses[InternalIP]: 10.0.0.4 → 10.0.0.9        changed
    - spec.taints: node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule
  Node worker-5
    ! blocked: ...                                             not deleted: reason and advice
  Service default/shop
    ~ load balancer: members worker-4 (would be ensured; what would change is unknown)
  Machine default/worker-6
    + VM: of class small                                       created; later effects are unknown

The daemon deletes a node after two checks, one monitor period apart, in which the cloud has no
instance for the node. Without --wait, plan does only the first check. A load balancer whose state
the cloud does not list counts as a change, because the daemon would ensure it; the call changes
nothing if nothing differs.

-o json and -o yaml print one object:
  summary   one line
  changes   list of: object (kind, namespace, name), action (create, change or delete), what (a
            field, the kind of the object, "load balancer", "members of the load balancer", "route"
            or "VM"), old and new (null: absent or unknown), afterSeconds, note
  held, warnings   blocked deletions and warnings, list of: object, reason, message
  leftOut   controller -> why it would not run
  failures  why the plan is missing or incomplete

exit status: 0 no changes, 1 an error: the plan is missing or incomplete, 2 invalid command line,
3 changes

"""

NAME = "plan"

_STYLES = {"+": "green", "~": "yellow", "-": "red", "!": "bold magenta"}
_SECTION = FlagSection(NAME, ours=True)


@dataclass(frozen=True)
class _Own:
    output: str = command.output(_SECTION)
    wait: bool = _SECTION.flag(
        False,
        "Wait one monitor period (--node-monitor-period), and check nodes without an instance a "
        "second time, as the daemon does before it deletes them.",
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
    form = request.own_flags["output"]
    console = terminal.console(out, os.environ)
    for line in changes.lines(forecast) if form == "table" else ():
        style = _STYLES.get(line.lstrip()[:1])
        if console is not None and style is not None:
            console.print(escape_control(line), style=style, soft_wrap=True)
        else:
            command.show(out, [line])
    command.show_result(out, form, changes.document(forecast), [changes.summary(forecast)])
    if forecast.failures:
        return EXIT_FAILED
    return EXIT_FINDINGS if forecast.changes else EXIT_OK


def _act(request: ParsedCommand, out: TextIO) -> int:
    from ccm.planning.timeloop import FastForwardLoop

    with asyncio.Runner(loop_factory=FastForwardLoop) as runner:
        return runner.run(show_plan(request, out))


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="show what the daemon would change in this cluster and its cloud, without changing it",
    introduction=_INTRODUCTION,
    own=_Own,
    execute=_act,
    unused_sections=command.SERVER_SECTIONS,
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
