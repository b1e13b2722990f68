"""`kube-ccm doctor`: checks the cluster and the cloud with the daemon's flags."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from ccm.base import flags as checks
from ccm.base.flags import FlagSection
from ccm.cli import command
from ccm.cli.command import EXIT_FAILED, EXIT_FINDINGS, EXIT_OK, ParsedCommand
from ccm.doctor import CHECK_LIMIT_S

if TYPE_CHECKING:
    from ccm.doctor.case import CheckResult
    from ccm.doctor.examination import DoctorCheck

_INTRODUCTION = """\
Shows what the daemon would delete at its start. Then checks the API server, the permissions, the
daemon's Deployment and Lease, the provider, the cloud, the nodes, and Machines with their classes
and VMs, in this order. Each check prints its result and advice. Doctor changes nothing in the
cluster or in the cloud. With --persistence-config it writes a probe object to that storage, and
deletes the probe again.

Usage: kube-ccm doctor [-o FORMAT] [--timeout=DURATION] [--as=USER] [the daemon's flags]

Pass the flags of the daemon, for example from its Deployment. Without --kubeconfig and outside a
cluster, doctor uses $KUBECONFIG or ~/.kube/config, as kubectl does. If --controllers includes
machine controllers, it reads the Secrets in their namespace, as the daemon does.

examples:
  kube-ccm doctor --cloud-provider=sim --cloud-config=cloud.yaml
  kube-ccm doctor --cloud-provider=sim --cloud-config=cloud.yaml --controllers=*,-route -o json
  kube-ccm doctor --cloud-provider=sim --cloud-config=cloud.yaml \\
      --as=system:serviceaccount:kube-system:cloud-controller-manager

exit status: 0 no failure, 1 an error, 2 invalid command line, 3 a check has failed

"""

NAME = "doctor"

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
_SHOW_CURSOR = "\x1b[?25h"
_SECTION = FlagSection(NAME, ours=True)


@dataclass(frozen=True)
class _Own:
    output: str = command.output(_SECTION)
    timeout: timedelta = _SECTION.flag(  # noqa: RUF009 - it is `dataclasses.field`
        timedelta(seconds=CHECK_LIMIT_S), "Time limit of one check.", check=checks.positive
    )
    as_: str = _SECTION.flag(
        "",
        "Check the permissions of this user, such as "
        "system:serviceaccount:kube-system:cloud-controller-manager. Empty: your own. "
        "Needs permission to create SubjectAccessReviews.",
    )


async def examine_and_show(
    request: ParsedCommand,
    out: TextIO,
    *,
    environ: Mapping[str, str] = os.environ,
    watch: Callable[[str], None] = lambda _name: None,
) -> int:
    """Run all checks and show their findings.

    Args:
        request: the command line.
        out: destination of the findings.
        environ: environment variables, for the kubeconfig and exec plugins.
        watch: called with the name of each check before the check runs.

    Returns:
        The exit status.
    """
    from ccm.base import terminal
    from ccm.doctor import case, examination

    examined = case.Case(
        options=request.options,
        environ=environ,
        impersonated_user=request.own_flags["as"],
        limit_s=request.own_flags["timeout"].total_seconds(),
    )
    form = request.own_flags["output"]
    console = terminal.console(sys.stderr, os.environ)
    progress = console.status("") if console is not None else None

    def about_to(check: DoctorCheck) -> None:
        watch(check.name)
        if progress is not None:
            progress.update(f"{check.name}: {check.title}")
            progress.start()

    def clear() -> None:
        if progress is not None:
            progress.stop()

    results = []
    try:
        async with contextlib.aclosing(examination.examine(examined, about_to)) as stream:
            async for result in stream:
                clear()
                results.append(result)
                if form == "table":
                    _show(result, out)
    finally:
        clear()
    command.show_result(out, form, case.document(results), [case.summary(results)])
    return EXIT_FINDINGS if case.failed(results) else EXIT_OK


def _show(result: CheckResult, out: TextIO) -> None:
    from ccm.base import terminal
    from ccm.doctor import case

    lines = list(case.text(result))
    console = terminal.console(out, os.environ)
    if lines and console is not None:
        verdict, lines[0] = lines[0][:4], lines[0][4:]
        console.print(verdict, style=_STYLES[result.finding.severity.value], end="")
    command.show(out, lines)


@contextlib.contextmanager
def _watchdog(limit_s: float) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the name of each check; exit the process if a check hangs.

    A check hangs if no other call follows within 2 * `limit_s` + 1 seconds. The timer is a thread,
    because a provider can block the event loop or ignore cancellation.
    """
    timers: list[threading.Timer] = []

    def give_up(name: str) -> None:
        shown = _SHOW_CURSOR if sys.stderr.isatty() else ""
        text = f"{shown}kube-ccm doctor: {name}: hangs and cannot be cancelled; aborted\n"
        os.write(sys.stderr.fileno(), text.encode())
        os._exit(EXIT_FAILED)

    def watch(name: str) -> None:
        stop()
        timers.append(threading.Timer(2 * limit_s + 1.0, give_up, (name,)))
        timers[0].daemon = True
        timers[0].start()

    def stop() -> None:
        if timers:
            timers.pop().cancel()

    try:
        yield watch
    finally:
        stop()


def _act(request: ParsedCommand, out: TextIO) -> int:
    with _watchdog(request.own_flags["timeout"].total_seconds()) as watch:
        return asyncio.run(examine_and_show(request, out, watch=watch))


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="find problems of the daemon, cluster and cloud, and show how to fix them",
    introduction=_INTRODUCTION,
    own=_Own,
    execute=_act,
    unused_sections=("stopping", "configuration file", "help", "global"),
    required=(),  # a check reports a missing provider, and the other checks still run
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
