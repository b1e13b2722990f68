"""`kube-ccm explain`: why one node, Service or Machine is as it is, and what to do about it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ccm.base.parsing import parse_digits
from ccm.cli import daemon_flags, screen

if TYPE_CHECKING:
    from ccm.app.options import Options
    from ccm.base.flags import Flag
    from ccm.doctor import explain
    from ccm.doctor.asking import Door
    from ccm.doctor.case import Case
    from ccm.model import Event

NAME = "explain"

SUMMARY = "say why a node, a Service or machines are as they are, and what to do about it"

_INTRODUCTION = """\
Says in its first line why a node is not initialised or not deleted, a Service has no load balancer,
a Machine no VM or no node, or a MachineSet or MachineDeployment not its machines; then what
the daemon knows of it: state, plan, last calls to the cloud, next try.

Usage: kube-ccm explain node NAME [-o table|json]
       kube-ccm explain service|machine|machineset|machinedeployment NAMESPACE/NAME [-o table|json]

The daemon that holds the Lease is asked, through a port-forward to its Pod, with your own
credentials from the kubeconfig: token, exec plugin or client certificate. That takes the rights to
get the object; to `get` the path /explain of the daemon; and in its namespace to list Pods, to get
the Lease, and to `create` and `get` pods/portforward. Nothing is asked of the cloud, and nothing is
written. What no daemon tells is said from the cluster alone: that none leads, or that the object is
another's.

A token is shown to the daemon. To hand no administrator's token around, use an account that may do
no more than the above.

examples:
  kube-ccm explain node worker-3
  kube-ccm explain service default/web -o json
  kube-ccm explain machine default/worker-0
  kube-ccm explain machinedeployment default/workers
  kube-ccm explain node worker-3 --address=10.0.0.7:10258 --insecure

exit status: 0 nothing is to be done about it, 1 something is, 2 the command line is wrong

"""

_USED = (
    "kubeconfig",
    "master",
    "leader-elect-resource-name",
    "leader-elect-resource-namespace",
    "secure-port",
    "load-balancer-classes",
    "own-nodes",
    "config",
)
"""Of the daemon's flags those that this command goes by; it takes the others too."""

EXIT_OK = daemon_flags.EXIT_OK
EXIT_STUCK = 1

LIMIT_S = 15.0

OBJECTS = {
    "node": "NAME: of a node",
    "service": "NAMESPACE/NAME: of a Service",
    "machine": "NAMESPACE/NAME: of a Machine",
    "machineset": "NAMESPACE/NAME: of a MachineSet",
    "machinedeployment": "NAMESPACE/NAME: of a MachineDeployment",
}
"""Words that may follow, with what follows them."""

_KINDS = {
    "node": "node",
    "nodes": "node",
    "no": "node",
    "service": "service",
    "services": "service",
    "svc": "service",
    "machine": "machine",
    "machines": "machine",
    "mc": "machine",
    "machineset": "machineset",
    "machinesets": "machineset",
    "mcs": "machineset",
    "machinedeployment": "machinedeployment",
    "machinedeployments": "machinedeployment",
    "mcd": "machinedeployment",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for.

    Attributes:
        options: the daemon's settings, as far as they were given.
        kind: one of `OBJECTS`.
        name: of the object; but of a node perhaps without its namespace.
        output: `table` or `json`.
        door: the way to a daemon without a port-forward.
        limit_s: longest time of one request, in seconds.
    """

    options: Options
    kind: str
    name: str
    output: str
    door: Door
    limit_s: float


def own_flags() -> Mapping[str, Flag]:
    """The flags that the daemon does not have."""
    from ccm.base.flags import (
        Section,
        positive,
        table,
    )

    section = Section(NAME, ours=True)

    @dataclass(frozen=True)
    class Own:
        output: str = daemon_flags.output(section, "table")
        address: str = section.flag(
            "",
            "Ask the daemon at this host and port, without a port-forward.",
            check=lambda word: "" if not word or _is_address(word) else "must be HOST:PORT",
        )
        ca: str = section.flag(
            "", "File with the authorities that certify the daemon at --address, PEM."
        )
        insecure: bool = section.flag(
            False,
            "Do not verify the daemon at --address: its certificate vouches for itself unless it "
            "was given one. Whoever answers there sees your token.",
        )
        timeout: timedelta = section.flag(  # noqa: RUF009 - it is `dataclasses.field`
            timedelta(seconds=LIMIT_S),
            "Longest time that one request may take.",
            check=positive,
        )

    return table(Own)


def read(words: Sequence[str]) -> Wanted:
    """Turn the words behind `kube-ccm explain` into what is wanted.

    Raises:
        UsageError: they cannot be used; every fault is named.
    """
    from ccm.app.options.argv import UsageError
    from ccm.doctor.asking import Door

    objects: list[str] = []

    def faults(given: Sequence[str]) -> Iterator[str]:
        objects.extend(given)
        if len(given) != 2 or given[0] not in _KINDS:
            shown = " ".join(given) or "nothing"
            yield (
                "say which object: node NAME, or service, machine, machineset or "
                f"machinedeployment with NAMESPACE/NAME, not {shown!r}"
            )

    options, chosen = daemon_flags.read(
        words,
        own_flags(),
        complete=daemon_flags.of_no_cloud,
        arguments=faults,
    )
    if chosen["address"] and not (chosen["ca"] or chosen["insecure"]):
        raise UsageError(
            [
                (
                    "--address needs --ca=FILE with the authority of the daemon's certificate, or "
                    "--insecure, if you are sure who answers there: it sees your token"
                )
            ]
        )
    door = Door(
        address=chosen["address"], authorities=_read(chosen["ca"]), insecure=chosen["insecure"]
    )
    kind, name = objects
    return Wanted(
        options=options,
        kind=_KINDS[kind],
        name=name,
        output=chosen["output"],
        door=door,
        limit_s=chosen["timeout"].total_seconds(),
    )


async def answer(wanted: Wanted, out: TextIO, *, environ: Mapping[str, str] = os.environ) -> int:
    """Explain; the exit status."""
    from ccm.doctor import explain
    from ccm.doctor.case import Case

    case = Case(options=wanted.options, environ=environ, limit_s=wanted.limit_s)
    try:
        subject = await _subject(case, wanted)
    finally:
        await case.exits.aclose()
    if isinstance(subject, str):
        screen.fail(NAME, subject)
        return EXIT_STUCK
    verdict = explain.judge(subject)
    if wanted.output == "json":
        screen.show_json(out, explain.document(subject, verdict))
    else:
        screen.show(out, explain.lines(subject, verdict))
    return EXIT_OK if verdict.is_well else EXIT_STUCK


async def _subject(case: Case, wanted: Wanted) -> explain.Subject | str:
    """Return what there is to judge, or why there is nothing."""
    from ccm.base import redact
    from ccm.doctor import asking, explain, reach
    from ccm.doctor.finding import Verdict
    from ccm.kube.errors import KubeError

    finding = await reach.kubeconfig(case)
    if finding.verdict is Verdict.FAIL:
        return "; ".join((finding.found, *finding.details, *finding.advice))
    name = wanted.name
    if wanted.kind != explain.NODE and "/" not in name:
        name = f"{case.cluster.namespace}/{name}"
    try:
        found = await _object(case, wanted.kind, name)
        is_served = found is not None or await _is_served(case, wanted.kind)
        told = await asking.ask(case, wanted.kind, name, wanted.door)
    except KubeError as error:
        return redact.words(f"{case.cluster.server}: {error}")
    answered = None if isinstance(told, asking.Silence) else told
    return explain.Subject(
        kind=wanted.kind,
        name=name,
        found=found,
        is_served=is_served,
        answer=answered,
        silence=told if isinstance(told, asking.Silence) else None,
        foreign=_foreign(found, wanted.options),
        warnings=await _warnings(case, name),
    )


async def _object(case: Case, kind: str, name: str) -> explain.Object | None:
    """Read it; None = there is none. Raises KubeError."""
    from ccm.gardener.kinds import MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES
    from ccm.kube.errors import NotFound
    from ccm.kube.resources import NODES, SERVICES

    kinds = (NODES, SERVICES, MACHINES, MACHINE_SETS, MACHINE_DEPLOYMENTS)
    of: Any = next(each for each in kinds if each.kind.lower() == kind)
    namespace, _, bare = name.rpartition("/")
    try:
        found: explain.Object = await case.client.resource(of).get(bare, namespace=namespace)
    except NotFound:
        return None
    return found


async def _warnings(case: Case, name: str) -> Sequence[Event]:
    """Read its Warning events, the newest last; none where they may not be read."""
    from ccm.kube.errors import KubeError
    from ccm.kube.resources import EVENTS

    namespace, _, bare = name.rpartition("/")
    where = f"involvedObject.name={bare},type=Warning"
    try:
        pages = case.client.resource(EVENTS).pages(
            namespace=namespace or "default", field_selector=where
        )
        found = [event async for page in pages for event in page.items]
    except KubeError:
        return ()
    return sorted(found, key=lambda each: each.last_timestamp or "")


async def _is_served(case: Case, kind: str) -> bool:
    """Whether the API server knows such objects. Raises KubeError."""
    from ccm.doctor import explain
    from ccm.gardener import served

    if kind in (explain.NODE, explain.SERVICE):
        return True
    return f"{kind}s" in await served.resources(case.client)


def _foreign(found: explain.Object | None, options: Options) -> str:
    """Why it is another's by the flags that were given, where no daemon says it."""
    from ccm.cloud.lookup import Ownership
    from ccm.controllers.service import plan
    from ccm.model import Node, Service

    if isinstance(found, Service):
        given = found.spec.load_balancer_class
        is_foreign = plan.is_foreign(found, options.load_balancer_classes)
        return f"it asks for a load balancer of class {given}" if is_foreign else ""
    if not isinstance(found, Node):
        return ""
    ours = Ownership.of((), options.own_nodes)
    if ours.is_explicit and not all(term.matches(found.labels) for term in ours.selector):
        return f"its labels are not those of --own-nodes={options.own_nodes}"
    return ""


def _is_address(word: str) -> bool:
    host, _, port = word.rpartition(":")
    return bool(host) and bool(parse_digits(port, most=0xFFFF))


def _read(file: str) -> bytes | None:
    from ccm.app.options.argv import UsageError
    from ccm.base.files import reason

    try:
        return Path(file).read_bytes() if file else None
    except OSError as error:
        raise UsageError([f"--ca={file}: cannot be read: {reason(error)}"]) from error


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
)

add, run = _COMMAND.add, _COMMAND.run
