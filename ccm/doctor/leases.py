"""Who leads: the daemon's Lease, and other cloud-controller-managers beside it.

Two managers of one cloud that do not share a Lease fight over nodes and load balancers; two
of different clouds that share one keep each other from working.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import msgspec

from ccm.app.machines.commands import COMMANDS
from ccm.app.options import FLAGS, names
from ccm.base import clock
from ccm.base.parsing import parse_digits
from ccm.doctor import deployment, objects
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, count, fail, ok, some, warn
from ccm.kube import errors
from ccm.kube.resources import LEASES, Kind
from ccm.model import times
from ccm.model.meta import ObjectMeta, Wire
from ccm.model.objects import Lease

WORD = "cloud-controller-manager"
"""What leases, images and programs of such managers have in their names."""

_FLAG = "--cloud-provider"
_EXTERNAL = "external"

DEFAULT_PORT = 10258
"""Of the HTTPS server (`--secure-port`)."""

START = (
    "start the daemon with these flags; if it is started, see the findings deployment and lease, "
    "and its log"
)
"""What to do where something waits for a daemon, and none works."""

_NOT_OF_NODES = "metadata.namespace!=kube-node-lease"


class ManagedFields(Wire, frozen=True, kw_only=True):
    """Fields that one client wrote last; `manager` is the program in its user agent."""

    manager: str = ""
    fields_v1: dict[str, Any] | None = None


class ManagedMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata with the clients that wrote the object."""

    managed_fields: list[ManagedFields] | None = None


class ManagedLease(Lease, frozen=True, kw_only=True):
    """A Lease with the clients that wrote it."""

    metadata: ManagedMeta

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def renewed_by(self) -> str:
        """The program that renewed it last; empty: unknown."""
        for entry in self.metadata.managed_fields or ():
            if "f:renewTime" in ((entry.fields_v1 or {}).get("f:spec") or {}):
                return entry.manager
        return ""


MANAGED_LEASES = Kind(
    group=LEASES.group,
    plural=LEASES.plural,
    kind=LEASES.kind,
    namespaced=True,
    type=ManagedLease,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A Pod that runs a cloud-controller-manager.

    Attributes:
        pod: its name.
        host: the name that its process takes for its machine's.
        image: of the container.
        provider: its `--cloud-provider`; empty if it does not say.
        lease: namespace and name of its Lease; empty without leader election.
        controllers: names of those that it runs.
        port: of its HTTPS server.
    """

    pod: str
    host: str
    image: str
    provider: str
    lease: str = ""
    controllers: Collection[str] = ()
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        said = f", {_FLAG}={self.provider}" if self.provider else ""
        return f"Pod {self.pod} ({self.image}{said})"


async def lease(case: Case) -> Finding:
    """Read the Lease that replicas of the daemon compete for."""
    options = case.options
    if not options.leader_elect:
        return warn(
            "--leader-elect is false: nothing keeps two daemons from working at once",
            "see that there is one replica only, and that it is stopped before its successor "
            "starts (strategy Recreate)",
        )
    namespace, name = options.leader_elect_resource_namespace, options.leader_elect_resource_name
    try:
        found = await case.client.resource(LEASES).get(name, namespace=namespace)
    except errors.NotFound:
        case.holder = ""
        return await _absent(case, namespace, name)
    holder = found.spec.holder_identity or ""
    case.holder = holder if _is_fresh(case, found) else ""
    if not holder:
        return await _free(case, f"{namespace}/{name} is free")
    held = f"{namespace}/{name} is held by {holder}"
    silent_s = _silence_s(case, found)
    if not case.holder:
        duration_s = found.spec.lease_duration_seconds or 0
        since = "for an unknown time" if silent_s is None else f"for {silent_s:.0f} s"
        return warn(
            f"{held}, silent {since} (its lease lasts {duration_s} s)",
            "start the daemon: it takes over by itself. If one runs, look at its log: it hangs, or "
            "it cannot reach the API server",
        )
    return await _judge_holder(case, held, found, f"renewed {silent_s or 0:.0f} s ago")


async def managers(case: Case) -> Finding:
    """Look for other managers of the same controllers, by the Leases they renew and by Pods."""
    namespace = case.options.leader_elect_resource_namespace
    pods = await managers_of(case, namespace)
    held = [one for one in await _leases(case, namespace) if _is_held_by_another(case, one)]
    known = list(pods or ())
    others = {one.namespace for one in held if _is_managers(case, one)}
    for elsewhere in sorted(others - {namespace}):
        known += await managers_of(case, elsewhere) or ()
    rivals = list(_rivals(case, held, known))
    if not rivals:
        if pods is None:
            return ok(f"no Lease of another one in {namespace}; its Pods may not be read")
        return ok(f"no other cloud-controller-manager in {namespace}")
    found = f"{len(rivals)} beside this daemon: {some([one.shown for one in rivals])}"
    details = [f"{one.shown}: runs {', '.join(one.shared)} too" for one in rivals if one.shared]
    if case.holder and any(one.provider == case.options.cloud_provider for one in rivals):
        return fail(
            found,
            "stop one of them, or give both the same --leader-elect-resource-name and "
            "--leader-elect-resource-namespace: one of them stands by then",
            details=details,
        )
    return warn(
        found,
        "let only one of them look after each node: stop the other, give both the same Lease, or "
        "be sure that its nodes have provider IDs of another cloud",
        details=details,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rival:
    """Another manager at work.

    Attributes:
        shown: its Lease, its Pod, or both.
        provider: its `--cloud-provider`; empty: unknown.
        shared: controllers that it runs and ours too.
    """

    shown: str
    provider: str
    shared: Sequence[str] = ()


def _rivals(case: Case, held: Sequence[ManagedLease], pods: Sequence[Manager]) -> Iterator[_Rival]:
    ours = {one.name for one in names.enabled(case.options.controllers)}
    named: list[str] = []
    for one in held:
        of = [pod for pod in pods if pod.lease == one.key]
        if not (of or _is_managers(case, one)):
            continue
        named.append(one.key)
        pod = pod_of(one.spec.holder_identity or "", of) or next(iter(of), None)
        program = one.renewed_by
        command = next(filter(COMMANDS.get, (program, one.name)), "")
        runs = pod.controllers if pod else _controllers(command)
        by = f": {pod}" if pod else f", renewed by {program}" if program else ""
        if shared := sorted(ours.intersection(runs)):
            yield _Rival(
                shown=f"Lease {one.key}, held by {one.spec.holder_identity}{by}",
                provider=pod.provider if pod else "",
                shared=shared,
            )
    for pod in pods:
        shared = sorted(ours.intersection(pod.controllers))
        is_unelected = not pod.lease and case.options.leader_elect
        is_foreign = pod.provider not in ("", case.options.cloud_provider)
        if shared and (is_unelected or (is_foreign and pod.lease not in named)):
            how = "" if pod.lease else " without leader election"
            yield _Rival(shown=f"{pod}{how}", provider=pod.provider, shared=shared)


def _is_held_by_another(case: Case, lease: ManagedLease) -> bool:
    """Whether another process than the holder of our own Lease renews this one."""
    options, holder = case.options, lease.spec.holder_identity
    own = f"{options.leader_elect_resource_namespace}/{options.leader_elect_resource_name}"
    is_ours = options.leader_elect and lease.key == own
    return bool(holder) and not is_ours and holder != case.holder and _is_fresh(case, lease)


def _is_managers(case: Case, lease: ManagedLease) -> bool:
    """Whether the Lease is a manager's, by the program that renews it, or by its name."""
    # A command for machines has its Lease in the namespace of its Machines: others are not ours.
    is_near = lease.namespace == case.options.namespace
    words = (lease.renewed_by, lease.name)
    return any(WORD in word or (is_near and word in COMMANDS) for word in words)


def _controllers(program: str, requested: str = names.ALL) -> Collection[str]:
    """Names of the controllers that a program runs with a `--controllers` list."""
    command = COMMANDS.get(program)
    if command is not None:
        return command.controllers
    return [one.name for one in names.enabled(requested.split(","))]


async def _absent(case: Case, namespace: str, name: str) -> Finding:
    try:
        await case.client.raw("GET", f"/api/v1/namespaces/{quote(namespace)}")
    except errors.NotFound:
        return fail(
            f"the namespace {namespace} of the Lease does not exist",
            f"create it, or set --leader-elect-resource-namespace: kubectl create ns {namespace}",
        )
    except errors.Forbidden:
        pass  # the daemon needs no such right
    return await _free(case, f"{namespace}/{name} does not exist yet; the first daemon makes it")


async def _free(case: Case, told: str) -> Finding:
    """Nobody leads, which is as it should be where nobody runs."""
    try:
        found = await deployment.ours(case)
    except errors.Forbidden:
        found = None
    ready = found.status.ready_replicas if found else 0
    if found is None or not ready:
        return ok(told)
    return warn(
        f"{told}, and so nobody works, though {found.key} has {count(ready, 'ready replica')}",
        "look at their logs, and whether --leader-elect-resource-namespace is theirs: kubectl -n "
        f"{found.metadata.namespace} logs -l {found.selector} --prefix",
    )


async def _judge_holder(case: Case, held: str, lease: Lease, renewed: str) -> Finding:
    holder = lease.spec.holder_identity or ""
    pods = await managers_of(case, case.options.leader_elect_resource_namespace)
    host = holder.rpartition("_")[0] or holder
    found = pod_of(holder, pods or ())
    if found is None and host == socket.gethostname():
        return ok(f"{held}, a process of this machine, {renewed}")
    if found is None:
        why = "no Pod of a daemon fits to it" if pods is not None else "its Pods may not be read"
        return warn(
            f"{held}, and {why}",
            "nothing, if that is this daemon on another machine: one works, the others wait. "
            "If it is another program, give one of the two a Lease of its own with "
            "--leader-elect-resource-name",
            f"if nothing runs under that name: kubectl -n {lease.namespace} delete lease "
            f"{lease.name}; else the daemons wait for {lease.spec.lease_duration_seconds or 0} s",
        )
    if found.provider not in ("", case.options.cloud_provider):
        return fail(
            f"{held}, which belongs to another cloud: {found}",
            "give one of the two a Lease of its own with --leader-elect-resource-name, or stop one",
        )
    return ok(f"{held}: {found}, {renewed}")


def pod_of(holder: str, pods: Sequence[Manager]) -> Manager | None:
    """The one of these whose process holds a Lease under that identity."""
    host = holder.rpartition("_")[0] or holder
    return next((manager for manager in pods if manager.host == host), None)


def _silence_s(case: Case, found: Lease) -> float | None:
    """Seconds since the holder renewed, by the API server's clock; None: it never said."""
    try:
        renewed = times.parse_time(found.spec.renew_time or "")
    except ValueError:
        return None
    return max(0.0, (clock.now() - renewed).total_seconds() + (case.skew_s or 0.0))


def _is_fresh(case: Case, found: Lease) -> bool:
    silent_s = _silence_s(case, found)
    return silent_s is not None and silent_s <= (found.spec.lease_duration_seconds or 0)


async def _leases(case: Case, namespace: str) -> Sequence[ManagedLease]:
    """Those of all namespaces, else of one, as far as we may read them; none of kubelets."""
    for where in ("", namespace):
        pages = case.client.resource(MANAGED_LEASES).pages(
            namespace=where, field_selector=_NOT_OF_NODES
        )
        try:
            return [lease async for page in pages for lease in page.items]
        except errors.Forbidden:
            continue
    return ()


async def managers_of(case: Case, namespace: str) -> Sequence[Manager] | None:
    """The managers that run as Pods of a namespace; None: we may not know."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    try:
        answer = await case.client.raw("GET", path)
    except (errors.Forbidden, errors.NotFound):
        return None
    return list(_in_pods(msgspec.json.decode(answer, type=objects.Pods).items or ()))


def _in_pods(pods: Sequence[objects.Pod]) -> Iterator[Manager]:
    for pod in pods:
        if pod.status.phase in ("Succeeded", "Failed"):
            continue
        host = pod.spec.node_name if pod.spec.host_network else pod.metadata.name
        for container in pod.spec.containers or ():
            provider = container.flag(_FLAG)
            known = any(WORD in word for word in (container.image, *container.words[:1]))
            if known or provider not in ("", _EXTERNAL):
                yield Manager(
                    pod=pod.metadata.name,
                    host=host,
                    image=container.image,
                    provider=provider,
                    lease=_lease_of(container),
                    controllers=_controllers(
                        _program(container), container.flag("--controllers") or names.ALL
                    ),
                    port=_port(container),
                )


def _program(container: objects.Container) -> str:
    """The program's name, as far as the command line has it."""
    return PurePosixPath(next(iter(container.words), "")).name


def _lease_of(container: objects.Container) -> str:
    """Namespace and name of the Lease that the flags name; empty without leader election."""
    if container.flag("--leader-elect") == "false":
        return ""
    command = COMMANDS.get(_program(container))
    known = command.flags if command is not None else FLAGS
    prefix = "leader-elect-resource-"
    name, namespace = (
        container.flag(f"--{prefix}{part}") or known[f"{prefix}{part}"].default
        for part in ("name", "namespace")
    )
    if command is not None:
        name = name or command.name
        namespace = namespace or container.flag("--namespace") or known["namespace"].default
    return f"{namespace}/{name}"


def _port(container: objects.Container) -> int:
    """Of the HTTPS server: as its flag says, or the port of that name."""
    given = parse_digits(container.flag("--secure-port"))
    if given is not None:
        return given
    named = (port.container_port for port in container.ports or () if port.name == "https")
    return next(named, DEFAULT_PORT)
