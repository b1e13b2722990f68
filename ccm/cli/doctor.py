"""`kube-ccm doctor`: the daemon's own flags and a few more in, findings and an exit status out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from ccm.cli import daemon_flags, screen

if TYPE_CHECKING:
    from ccm.app.options import Options
    from ccm.base.flags import Flag
    from ccm.doctor.case import Case
    from ccm.doctor.examination import Check
    from ccm.doctor.finding import Result

NAME = "doctor"

SUMMARY = "look for what keeps the daemon from working, and say what to do about it"

_INTRODUCTION = """\
Looks at the API server, the permissions, the daemon's Deployment and who leads, the provider, the
cloud, the nodes, and Machines with their classes and VMs, in this order, and says of each what it
found and what to do next; but first, what starting the daemon would delete. Nothing is ever
written, neither to the cluster nor to the cloud.

Usage: kube-ccm doctor [-o table|json] [--timeout=DURATION] [--as=USER] [the daemon's own flags]

Give it the flags of the daemon, for instance those of its Deployment. Without --kubeconfig and
outside a cluster it uses $KUBECONFIG or ~/.kube/config, as kubectl does. Where --controllers names
those of Machines, it reads the Secrets of their namespace, as the daemon does.

examples:
  kube-ccm doctor --cloud-provider=sim --cloud-config=cloud.yaml
  kube-ccm doctor --cloud-provider=sim --cloud-config=cloud.yaml --controllers=*,-route -o json
  kube-ccm doctor --cloud-provider=sim --cloud-config=cloud.yaml \\
      --as=system:serviceaccount:kube-system:cloud-controller-manager

exit status: 0 no failure, 1 a failure, 2 the command line is wrong

"""

EXIT_OK = daemon_flags.EXIT_OK
EXIT_FAILED = 1
EXIT_USAGE = daemon_flags.EXIT_USAGE

_UNSET = "none"
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
_SHOW_CURSOR = "\x1b[?25h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for.

    Attributes:
        options: the daemon's settings, those of its `--config` included.
        output: `table` or `json`.
        limit_s: longest time of one check, in seconds.
        account: whose permissions are asked about; empty: our own.
    """

    options: Options
    output: str = "table"
    limit_s: float
    account: str = ""


def own_flags() -> Mapping[str, Flag]:
    """The flags that the daemon does not have."""
    from ccm.base.flags import (
        Section,
        positive,
        table,
    )
    from ccm.doctor import LIMIT_S

    section = Section("doctor", ours=True)

    @dataclass(frozen=True)
    class Own:
        output: str = daemon_flags.output(section, "table")
        timeout: timedelta = section.flag(  # noqa: RUF009 - it is `dataclasses.field`
            timedelta(seconds=LIMIT_S),
            "Longest time that one check may take.",
            check=positive,
        )
        as_: str = section.flag(
            "",
            "Ask about the permissions of this user, such as "
            "system:serviceaccount:kube-system:cloud-controller-manager, instead of our own. "
            "Needs the right to ask about others.",
        )

    return table(Own)


def read(words: Sequence[str]) -> Wanted:
    """Turn the words behind `kube-ccm doctor` into what is wanted.

    Raises:
        UsageError: they cannot be used; every fault is named.
    """
    options, chosen = daemon_flags.read(
        words,
        own_flags(),
        # A missing provider is found by the examination, whose other checks are made all the same.
        complete=lambda given: replace(given, cloud_provider=given.cloud_provider or _UNSET),
    )
    return Wanted(
        options=options,
        output=chosen["output"],
        limit_s=chosen["timeout"].total_seconds(),
        account=chosen["as"],
    )


async def answer(
    wanted: Wanted,
    out: TextIO,
    *,
    environ: Mapping[str, str] = os.environ,
    watch: Callable[[str], None] = lambda _name: None,
) -> int:
    """Make all checks and show what they found; the exit status.

    Args:
        wanted: what the command line asks for.
        out: where findings go.
        environ: the environment, for kubeconfig and exec plugins.
        watch: told the name of each check before it is made.
    """
    from ccm.doctor import finding
    from ccm.doctor.case import Case

    case = Case(
        options=wanted.options, environ=environ, account=wanted.account, limit_s=wanted.limit_s
    )
    results = await _examine(case, wanted.output, out, watch)
    if wanted.output == "json":
        screen.show_json(out, finding.document(results))
    else:
        screen.show(out, [finding.summary(results)])
    out.flush()
    return EXIT_FAILED if finding.failed(results) else EXIT_OK


async def _examine(
    case: Case, output: str, out: TextIO, watch: Callable[[str], None]
) -> list[Result]:
    """Make all checks, and show each as it comes where people read."""
    from ccm.doctor import examination

    progress = _Progress(sys.stderr)

    def about_to(check: Check) -> None:
        watch(check.name)
        progress.start(check)

    results = []
    try:
        async with contextlib.aclosing(examination.examine(case, about_to)) as coming:
            async for result in coming:
                progress.clear()
                results.append(result)
                if output == "table":
                    _show(result, out)
    finally:
        progress.clear()
    return results


class Watchman:
    """Ends the process when a check does not, although its time is over long ago.

    A provider may block the event loop or shrug off its cancellation; a thread sees to it.

    Args:
        limit_s: longest time of one check, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._patience_s = 2 * limit_s + 1.0
        self._timer: threading.Timer | None = None

    def watch(self, name: str) -> None:
        """From now on this check is the one that has to end."""
        self.close()
        self._timer = threading.Timer(self._patience_s, self._end, (name,))
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """No check has to end any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, name: str) -> None:
        shown = _SHOW_CURSOR if sys.stderr.isatty() else ""
        text = f"{shown}kube-ccm doctor: {name}: hangs and cannot be cancelled, given up\n"
        os.write(sys.stderr.fileno(), text.encode())
        os._exit(EXIT_FAILED)


class _Progress:
    """Says on a terminal what is being looked at, on a line that goes away."""

    def __init__(self, out: TextIO) -> None:
        from ccm.base import terminal

        console = terminal.console(out, os.environ)
        self._status = console.status("") if console is not None else None

    def start(self, check: Check) -> None:
        if self._status is not None:
            self._status.update(f"{check.name}: {check.title}")
            self._status.start()

    def clear(self) -> None:
        if self._status is not None:
            self._status.stop()


def _show(result: Result, out: TextIO) -> None:
    from ccm.base import terminal
    from ccm.doctor import finding

    lines = list(finding.text(result))
    if not lines:
        return
    first, *others = lines
    console = terminal.console(out, os.environ)
    if console is not None:
        verdict, first = first[:4], first[4:]
        console.print(verdict, style=_STYLES[result.finding.verdict.value], end="")
    screen.show(out, (first, *others))
    out.flush()


def _then(wanted: Wanted, out: TextIO) -> int:
    with contextlib.closing(Watchman(wanted.limit_s)) as watchman:
        return asyncio.run(answer(wanted, out, watch=watchman.watch))


_COMMAND = daemon_flags.Command(
    name=NAME,
    summary=SUMMARY,
    introduction=_INTRODUCTION,
    own=own_flags,
    read=read,
    then=_then,
)

add, run = _COMMAND.add, _COMMAND.run
