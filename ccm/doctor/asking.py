"""Finds the daemon that leads and asks it, as the caller: with the kubeconfig's own credentials.

The way is a port-forward to the Pod that holds the Lease, so that nobody needs to reach the Pod's
network. TLS goes all the way to the daemon: a token is shown to the daemon, to which it was sent,
and a client certificate works too. By default a daemon's certificate vouches for itself; through
the port-forward it is not verified, as the way there is the API server's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from ccm.base.parsing import UNDECODABLE
from ccm.doctor import leases
from ccm.doctor.case import Case
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import TlsSettings
from ccm.kube.portforward import LOOPBACK, forwarded
from ccm.kube.transport import Transport
from ccm.runtime.account import PATH, Answer

_RIGHT = (
    f"let yourself `get` the path {PATH}: kubectl create clusterrole ccm-explain --verb=get "
    f"--non-resource-url={PATH}, and a clusterrolebinding of it"
)
_FORWARD_RIGHT = (
    "let yourself `create` and `get` pods/portforward and `list` pods in the daemon's namespace, "
    "or ask the daemon directly with --address"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Why no daemon answered.

    Attributes:
        why: a phrase.
        advice: what to do about it.
        is_leaderless: whether no daemon works; else one may, and could not be asked.
    """

    why: str
    advice: str
    is_leaderless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A daemon that can be reached without a port-forward.

    Attributes:
        address: `host:port` of its HTTPS server; empty: there is no such way.
        authorities: who certifies it, PEM; None: the system's.
        insecure: do not verify it.
    """

    address: str = ""
    authorities: bytes | None = None
    insecure: bool = False

    @property
    def tls(self) -> TlsSettings:
        """What a connection there needs."""
        return TlsSettings(authorities=self.authorities, insecure=self.insecure)


async def ask(case: Case, kind: str, name: str, door: Door) -> Answer | Silence:
    """What the daemon says about an object, or why it says nothing. `case` knows the cluster."""
    try:
        if door.address:
            return await _asked(case, f"https://{door.address}", door.tls, kind, name)
        return await _ask_leader(case, kind, name)
    except errors.Unauthorized:
        return Silence(why="it does not accept your credentials (401)", advice=_who(case))
    except errors.Forbidden as error:
        return Silence(why=f"you may not ask it (403: {error})", advice=_RIGHT)
    except errors.NotFound:
        return Silence(
            why=f"it has no {PATH}", advice="upgrade the daemon: this version is newer than it"
        )
    except errors.KubeError as error:
        return Silence(why=str(error), advice="look at the daemon's Pod and its log")


async def _ask_leader(case: Case, kind: str, name: str) -> Answer | Silence:
    finding = await leases.lease(case)
    namespace = case.options.leader_elect_resource_namespace
    pods = await leases.managers_of(case, namespace)
    found = leases.pod_of(case.holder or "", pods or ())
    if not case.holder and pods:
        # Nobody leads; any of them can say what keeps it from that.
        found = found or pods[0]
    if found is None:
        advice = "; ".join(finding.advice) or "ask it directly with --address=HOST:10258"
        if not case.holder:
            return Silence(why=finding.found, advice=advice, is_leaderless=True)
        return Silence(
            why=finding.found if finding.advice else f"{finding.found}, and its Pod is not found",
            advice="ask it directly with --address=HOST:10258, if it is no Pod of "
            f"{namespace} or its Pods may not be listed",
        )
    answer = await _ask_pod(case, namespace, found, kind, name)
    if isinstance(answer, Answer) and not (answer.leads or answer.opening):
        return Silence(why=finding.found, advice="; ".join(finding.advice), is_leaderless=True)
    return answer


async def _ask_pod(
    case: Case, namespace: str, manager: leases.Manager, kind: str, name: str
) -> Answer | Silence:
    port = case.options.secure_port if "secure-port" in case.options.explicit else manager.port
    insecure = TlsSettings(insecure=True)
    try:
        async with forwarded(
            case.cluster, namespace=namespace, pod=manager.pod, port=port
        ) as forward:
            try:
                url = f"https://{LOOPBACK}:{forward.port}"
                return await _asked(case, url, insecure, kind, name)
            except errors.Unreachable as error:
                said = "; ".join(forward.troubles) or str(error)
                return Silence(
                    why=f"Pod {manager.pod}, port {port}: {said}",
                    advice="look at the Pod and its --secure-port and --bind-address: a "
                    "port-forward comes over the loopback of the Pod",
                )
    except errors.ApiError as error:
        return Silence(
            why=f"no port-forward to Pod {manager.pod}: {error}",
            advice=_FORWARD_RIGHT
            if isinstance(error, errors.Forbidden)
            else "look at the Pod, and at the API server's way to its node",
        )


async def _asked(case: Case, url: str, trust: TlsSettings, kind: str, name: str) -> Answer:
    """Raises KubeError."""
    ours = case.cluster
    there = ClusterConfig(
        server=url,
        credentials=ours.credentials,
        tls=TlsSettings(
            authorities=trust.authorities,
            insecure=trust.insecure,
            certificate=ours.tls.certificate,
        ),
        disable_compression=True,
        source=ours.source,
    )
    async with Transport(there, user_agent=case.client.user_agent) as wire:
        client = Client(wire, timeout_s=case.limit_s)
        body = await client.raw("GET", PATH, query={"kind": kind, "name": name}, retry=False)
    try:
        return msgspec.json.decode(body, type=Answer)
    except UNDECODABLE as error:
        raise errors.Unreachable(f"what answers at {url} is no such daemon", kind="garbage") from (
            error
        )


def _who(case: Case) -> str:
    where = Path(case.cluster.source).name or case.cluster.source
    return (
        f"use a user of this cluster ({where} is not one for the daemon): a token, an exec plugin "
        "or a client certificate; the daemon needs --authentication-kubeconfig, or to run inside "
        "the cluster, to know callers"
    )
