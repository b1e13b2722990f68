"""`kube-ccm plan`: what the daemon would do, found out without doing it."""

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
    from ccm.planning.forecast import Forecast

NAME = "plan"

SUMMARY = "show what the daemon would do to this cluster and its cloud, and do nothing of it"

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

EXIT_NOTHING = daemon_flags.EXIT_OK
EXIT_FAILED = 1
EXIT_CHANGES = 2

_STYLES = {"+": "green", "~": "yellow", "-": "red", "!": "bold magenta"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for.

    Attributes:
        options: the daemon's settings, those of its `--config` included.
        output: `text` or `json`.
        wait: whether to wait for the second answers about nodes.
    """

    options: Options
    output: str = "text"
    wait: bool = False


def own_flags() -> Mapping[str, Flag]:
    """The flags that the daemon does not have."""
    from ccm.base.flags import Section, table

    section = Section(NAME, ours=True)

    @dataclass(frozen=True)
    class Own:
        output: str = daemon_flags.output(section, "text")
        wait: bool = section.flag(
            False,
            "Wait for the monitor period (--node-monitor-period) and ask the cloud again about the "
            "nodes that it denies, as the daemon does before it deletes them.",
        )

    return table(Own)


def read(words: Sequence[str]) -> Wanted:
    """Turn the words behind `kube-ccm plan` into what is wanted.

    Raises:
        UsageError: they cannot be used; every fault is named.
    """
    options, chosen = daemon_flags.read(words, own_flags())
    return Wanted(options=options, output=chosen["output"], wait=chosen["wait"])


async def answer(wanted: Wanted, out: TextIO, *, environ: Mapping[str, str] = os.environ) -> int:
    """Show the plan; the exit status.

    Raises:
        NotOpened: there is none.
    """
    from ccm.doctor import outlook
    from ccm.planning import report

    found = await outlook.forecast_of(wanted.options, environ, wait=wanted.wait)
    if wanted.output == "json":
        screen.show_json(out, report.document(found))
    else:
        _show(found, out)
    out.flush()
    if found.failures:
        return EXIT_FAILED
    return EXIT_CHANGES if found.changes else EXIT_NOTHING


def _show(found: Forecast, out: TextIO) -> None:
    from ccm.base import terminal
    from ccm.base.log_render import visible
    from ccm.planning import report

    console = terminal.console(out, os.environ)
    for line in report.lines(found):
        style = _STYLES.get(line.lstrip()[:1])
        if console is not None and style is not None:
            console.print(visible(line), style=style, soft_wrap=True)
        else:
            screen.show(out, [line])
    screen.show(out, [report.summary(found)])


def _then(wanted: Wanted, out: TextIO) -> int:
    from ccm.doctor.provider import NotOpened
    from ccm.planning.timeloop import HurryingLoop

    try:
        with asyncio.Runner(loop_factory=HurryingLoop) as runner:
            return runner.run(answer(wanted, out))
    except NotOpened as error:
        screen.fail(NAME, str(error))
        return EXIT_FAILED


_COMMAND = daemon_flags.Command(
    name=NAME,
    summary=SUMMARY,
    introduction=_INTRODUCTION,
    own=own_flags,
    read=read,
    then=_then,
    wrong=EXIT_FAILED,
)

add, run = _COMMAND.add, _COMMAND.run
