"""`kube-ccm explain`: shows the state of an object, the cause of the state, and advice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ccm.base import flags as checks
from ccm.base.flags import FlagSection, did_you_mean
from ccm.base.parsing import parse_digits
from ccm.cli import command
from ccm.cli.command import EXIT_FINDINGS, EXIT_OK, ParsedCommand
from ccm.doctor import CHECK_LIMIT_S
from ccm.gardener.names import GROUP as GARDENER
from ccm.kubermatic.names import GROUP as KUBERMATIC

if TYPE_CHECKING:
    from ccm.kube.credentials import TlsSettings

_INTRODUCTION = """\
Explains why a node is not initialised or not deleted, a Service has no load balancer, a Machine has
no VM or no node, or a MachineSet or MachineDeployment lacks machines. The first line has the cause;
then follows the daemon's view of the object: state, plan, last error, next retry.

Usage: kube-ccm explain node NAME [-o FORMAT]
       kube-ccm explain service|machine|machineset|machinedeployment NAMESPACE/NAME [-o FORMAT]

The kinds of machines may have an API group, as for kubectl: machine.machine.sapcloud.io (Gardener)
or machine.cluster.k8s.io (Kubermatic). Without a group, the API server decides, if it serves only
one. kubectl's short names work, too: mc, mcs and mcd for Gardener's kinds, ma, ms and md for
Kubermatic's.

The command connects to the leader's Pod by port-forward, with the credentials from your kubeconfig:
token, exec plugin or client certificate. Required permissions: get the object; get the daemon's
path /explain; and in the daemon's namespace list Pods, get the Lease, and create and get
pods/portforward. The command calls no cloud and changes nothing. Without a leader, only the objects
in the cluster are examined.

The daemon receives your token. Instead of an administrator's account, use an account with only
these permissions.

examples:
  kube-ccm explain node worker-3
  kube-ccm explain service default/web -o json
  kube-ccm explain machine default/worker-0
  kube-ccm explain machinedeployment default/workers
  kube-ccm explain machine.cluster.k8s.io kube-system/worker-0
  kube-ccm explain node worker-3 --address=10.0.0.7:10258 --insecure

exit status: 0 no action needed, 1 an error, 2 invalid command line, 3 action needed

"""

NAME = "explain"

_MACHINES = {
    "machine": "NAMESPACE/NAME of a Machine",
    "machineset": "NAMESPACE/NAME of a MachineSet",
    "machinedeployment": "NAMESPACE/NAME of a MachineDeployment",
}

OBJECTS = {
    "node": "NAME of a node",
    "service": "NAMESPACE/NAME of a Service",
    **_MACHINES,
    **{
        f"{kind}.{group}": f"{text} of the group {group}"
        for group in (GARDENER, KUBERMATIC)
        for kind, text in _MACHINES.items()
    },
}
"""Kind of object -> description of the name that follows it on the command line.

Plurals and kubectl's short names are accepted too.
"""

_SHORT = {
    "no": "node",
    "svc": "service",
    "mc": f"machine.{GARDENER}",
    "mcs": f"machineset.{GARDENER}",
    "mcd": f"machinedeployment.{GARDENER}",
    "ma": f"machine.{KUBERMATIC}",
    "ms": f"machineset.{KUBERMATIC}",
    "md": f"machinedeployment.{KUBERMATIC}",
}
_SECTION = FlagSection(NAME, ours=True)
_CONNECTION = FlagSection("connection to the daemon", ours=True)


def _wrong_address(word: str) -> str:
    host, _, port = word.rpartition(":")
    is_right = not word or (host and parse_digits(port, maximum=0xFFFF))
    return "" if is_right else "must be HOST:PORT"


def _wrong_file(file: str) -> str:
    from ccm.base.files import describe_error

    try:
        _authorities(file)
    except OSError as error:
        return f"cannot be read: {describe_error(error)}"
    return ""


def _authorities(file: str) -> bytes | None:
    return Path(file).read_bytes() if file else None


@dataclass(frozen=True)
class ConnectionFlags:
    """Flags of a subcommand that connects to the daemon."""

    address: str = _CONNECTION.flag(
        "",
        "Host and port of the daemon. Empty: connect to the leader by port-forward.",
        check=_wrong_address,
    )
    ca: str = _CONNECTION.flag(
        "", "PEM file with the CA certificates of the daemon at --address.", check=_wrong_file
    )
    insecure: bool = _CONNECTION.flag(
        False,
        "Do not verify the certificate of the daemon at --address, which is self-signed unless "
        "one is configured. Any server at that address gets your token.",
    )
    timeout: timedelta = _CONNECTION.flag(  # noqa: RUF009 - it is `dataclasses.field`
        timedelta(seconds=CHECK_LIMIT_S), "Time limit of one request.", check=checks.positive
    )


@dataclass(frozen=True)
class _Own(ConnectionFlags):
    output: str = command.output(_SECTION)


def trust_of(own: Mapping[str, Any]) -> TlsSettings:
    """Return the TLS settings for the daemon at `--address`."""
    from ccm.kube.credentials import TlsSettings

    return TlsSettings(authorities=_authorities(own["ca"]), insecure=own["insecure"])


def address_faults(own: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message if `--address` needs another flag."""
    if own["address"] and not (own["ca"] or own["insecure"]):
        yield (
            "--address needs --ca=FILE with the CA of the daemon's certificate, or --insecure; "
            "use --insecure only if the server at that address may get your token"
        )


def kind_of(word: str) -> tuple[str, str]:
    """Return kind and API group for a kind, its plural or kubectl's short name.

    The kind is empty if it is unknown. The group is empty if it is not named.
    """
    kind, _, group = _SHORT.get(word, word).partition(".")
    kind = kind.removesuffix("s")
    is_known = ".".join(filter(None, (kind, group))) in OBJECTS
    return (kind, group) if is_known else ("", "")


def _faults(words: Sequence[str], own: Mapping[str, Any], _given: Collection[str]) -> Iterator[str]:
    if len(words) != 2 or not kind_of(words[0])[0]:
        shown = " ".join(words) or "nothing"
        yield (
            "expected node NAME, or service, machine, machineset or machinedeployment with "
            f"NAMESPACE/NAME; got {shown!r}{did_you_mean(''.join(words[:1]), OBJECTS)}"
        )
    yield from address_faults(own)


async def explain_object(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Show the explanation of the object's state; return the exit status.

    Raises:
        ExaminationError: the kubeconfig is unusable, or a request to the API server failed.
    """
    from ccm.doctor import explain, explain_facts, reach

    own, (word, name) = request.own_flags, request.arguments
    kind, group = kind_of(word)
    async with command.open_case(request, environ, own["timeout"].total_seconds()) as case:
        await reach.connect(case)
        subject = await explain_facts.gather_facts(
            case, kind, name, own["address"], trust_of(own), group=group
        )
    verdict = explain.find_cause(subject)
    document, lines = explain.document(subject, verdict), explain.lines(subject, verdict)
    command.show_result(out, own["output"], document, lines)
    return EXIT_OK if verdict.is_healthy else EXIT_FINDINGS


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="explain the state of a node, a Service or machines, and show what to do",
    introduction=_INTRODUCTION,
    own=_Own,
    execute=lambda request, out: asyncio.run(explain_object(request, out)),
    used=(
        "kubeconfig",
        "master",
        "leader-elect-resource-name",
        "leader-elect-resource-namespace",
        "secure-port",
        "config",
    ),
    required=(),
    check_arguments=_faults,
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
