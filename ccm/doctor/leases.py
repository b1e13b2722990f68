"""Who leads: the daemon's Lease, and other cloud-controller-managers beside it.

Two managers of one cloud that do not share a Lease fight over nodes and load balancers; two
of different clouds that share one keep each other from working.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from ccm.base import clock
from ccm.doctor import deployment, objects
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, count, fail, ok, some, warn
from ccm.kube import errors
from ccm.kube.resources import LEASES
from ccm.model import times
from ccm.model.lease import Lease

WORD = "cloud-controller-manager"
"""What leases, images and programs of such managers have in their names."""

_FLAG = "--cloud-provider"
_EXTERNAL = "external"

DEFAULT_PORT = 10258
"""Of the HTTPS server (`--secure-port`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A Pod that runs a cloud-controller-manager.

    Attributes:
        pod: its name.
        host: the name that its process takes for its machine's.
        image: of the container.
        provider: its `--cloud-provider`; empty if it does not say.
        port: of its HTTPS server.
    """

    pod: str
    host: str
    image: str
    provider: str
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
    return await _judge_holder(case, held, holder, f"renewed {silent_s or 0:.0f} s ago")


async def managers(case: Case) -> Finding:
    """Look for other cloud-controller-managers."""
    options = case.options
    namespace = options.leader_elect_resource_namespace
    others = [
        f"Lease {namespace}/{other.name}, held by {other.spec.holder_identity}"
        for other in await _leases(case, namespace)
        if WORD in other.name and other.name != options.leader_elect_resource_name
        if other.spec.holder_identity and _is_fresh(case, other)
    ]
    pods = await managers_of(case, namespace)
    others += [
        str(manager)
        for manager in pods or ()
        if manager.provider and manager.provider != options.cloud_provider
    ]
    if others:
        return warn(
            f"{len(others)} beside this daemon: {some(others)}",
            "let only one of them look after each node: stop the other, or be sure that its nodes "
            "have provider IDs of another cloud",
        )
    if pods is None:
        return ok(f"no Lease of another one in {namespace}; its Pods may not be read")
    return ok(f"no other cloud-controller-manager in {namespace}")


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


async def _judge_holder(case: Case, held: str, holder: str, renewed: str) -> Finding:
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


async def _leases(case: Case, namespace: str) -> Sequence[Lease]:
    pages = case.client.resource(LEASES).pages(namespace=namespace)
    try:
        return [lease async for page in pages for lease in page.items]
    except errors.Forbidden:
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
                    port=_port(container),
                )


def _port(container: objects.Container) -> int:
    """Of the HTTPS server: as its flag says, or the port of that name."""
    given = container.flag("--secure-port")
    if given.isdigit():
        return int(given)
    named = (port.container_port for port in container.ports or () if port.name == "https")
    return next(named, DEFAULT_PORT)
