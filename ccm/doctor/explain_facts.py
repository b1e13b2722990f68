"""Gathers the facts about one object, from the cluster and from the leader.

`ask_daemon` sends any request to the leader. The request carries the user's credentials from the
kubeconfig. Without an address of the daemon, the request goes through a port-forward to the Pod
that holds the Lease, so that the Pod network need not be reachable. TLS ends at the daemon, so only
the daemon sees a token, and client certificates work too. Through a port-forward the daemon's
certificate is not verified: it is self-signed by default, and the API server controls the
connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from ccm.app.machineapis import GARDENER
from ccm.base.decoding import DECODE_ERRORS
from ccm.doctor import daemons, reach
from ccm.doctor.case import Case
from ccm.doctor.explain import NODE, SERVICE, NoAnswer, Object, ObjectFacts
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import TlsSettings
from ccm.kube.portforward import LOOPBACK, forward_port
from ccm.kube.resources import EVENTS, NODES, SERVICES, ResourceKind
from ccm.kube.transport import Transport
from ccm.machines import discovery
from ccm.runtime.object_status import EXPLAIN_PATH, DaemonResponse, ExplainResponse

R = TypeVar("R", bound=DaemonResponse)

_FORWARD_RIGHT = (
    "grant your user `create` and `get` of pods/portforward and `list` of Pods in the daemon's "
    "namespace, or connect to the daemon directly with --address"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonRequest(Generic[R]):
    """Request to the daemon.

    Attributes:
        path: path on the daemon's HTTPS server.
        response: type of the response.
        query: query parameters.
        body: body of a POST; None: the request is a GET.
    """

    path: str
    response: type[R]
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    @property
    def missing_right(self) -> str:
        """Advice for a user who may not send the request."""
        verb, role = self.method.lower(), f"ccm-{self.path.strip('/')}"
        return (
            f"grant your user `{verb}` of the path {self.path}: kubectl create clusterrole {role} "
            f"--verb={verb} --non-resource-url={self.path}, and create a ClusterRoleBinding of "
            "this role"
        )


async def gather_facts(
    case: Case, kind: str, name: str, address: str, trust: TlsSettings, *, group: str = ""
) -> ObjectFacts:
    """Return the facts about an object.

    Args:
        case: case with `cluster` and `client`.
        kind: `NODE`, `SERVICE`, `MACHINE`, `SET` or `DEPLOYMENT` of `explain`.
        name: `NAME` of a node, else `NAMESPACE/NAME`; the default namespace is that of the
            kubeconfig.
        address: `host:port` of the daemon; empty = use a port-forward to the leader.
        trust: TLS settings for a daemon at `address`.
        group: API group of a machine object; empty = the only group that the API server serves.

    Raises:
        KubeError: the object cannot be read.
        ExaminationError: several API groups have the kind.
    """
    if kind != NODE and "/" not in name:
        name = f"{case.cluster.namespace}/{name}"
    namespace, _, bare = name.rpartition("/")
    is_machine, api = kind not in (NODE, SERVICE), GARDENER
    if is_machine:
        api = await reach.find_machine_api(case.client, kind, group)
    kinds: tuple[ResourceKind[Any], ...] = (NODES, SERVICES, *api.kinds)
    resource = next(item for item in kinds if item.kind.lower() == kind)
    obj: Object | None = None
    is_served = True
    try:
        obj = await case.client.resource(resource).get(bare, namespace=namespace)
    except errors.NotFound:
        if is_machine:
            is_served = resource.plural in await discovery.fetch_plurals(
                case.client, resource.api_version
            )
    prefix = api.codec.prefix if is_machine else ""
    query = {"kind": f"{prefix}{kind}", "name": name}
    request = DaemonRequest(path=EXPLAIN_PATH, response=ExplainResponse, query=query)
    answer = await ask_daemon(case, request, address, trust)
    try:
        pages = case.client.resource(EVENTS).pages(
            namespace=namespace or "default",
            field_selector=f"involvedObject.name={bare},type=Warning",
        )
        warnings = [event async for page in pages for event in page.items]
    except errors.KubeError:
        warnings = []  # explain the object without events
    return ObjectFacts(
        kind=kind,
        name=name,
        obj=obj,
        api=api,
        is_served=is_served,
        answer=None if isinstance(answer, NoAnswer) else answer,
        no_answer=answer if isinstance(answer, NoAnswer) else None,
        warnings=sorted(warnings, key=lambda item: item.last_timestamp or ""),
    )


async def ask_daemon(
    case: Case, request: DaemonRequest[R], address: str, trust: TlsSettings
) -> R | NoAnswer:
    """Return the response of the daemon at `address`; with an empty address, of the leader.

    NoAnswer has the reason why there is no response, and advice.
    """
    try:
        if address:
            return await _send(case, f"https://{address}", trust, request)
        return await _ask_leader(case, request)
    except errors.Unauthorized:
        source = case.cluster.source
        return NoAnswer(
            why="the daemon rejects your credentials (401)",
            advice="use credentials of this cluster (the daemon rejects those of "
            f"{Path(source).name or source}): a token, an exec plugin or a client certificate; "
            "outside the cluster the daemon needs --authentication-kubeconfig to verify them",
        )
    except errors.Forbidden as error:
        return NoAnswer(why=f"no permission (403: {error})", advice=request.missing_right)
    except errors.NotFound:
        return NoAnswer(
            why=f"the daemon has no endpoint {request.path}",
            advice="upgrade the daemon to the version of this command",
        )
    except errors.KubeError as error:
        return NoAnswer(why=str(error), advice="check the daemon's Pod and its log")


async def _ask_leader(case: Case, request: DaemonRequest[R]) -> R | NoAnswer:
    finding = await daemons.lease(case)
    namespace = case.options.leader_elect_resource_namespace
    pods = await daemons.managers_of(case, namespace)
    pod = daemons.pod_of(case.lease_holder or "", pods or ())
    if not case.lease_holder and pods:
        # Without a leader, any Pod can report why it does not lead.
        pod = pod or pods[0]
    if pod is None:
        advice = "; ".join(finding.advice) or "connect directly with --address=HOST:10258"
        if not case.lease_holder:
            return NoAnswer(why=finding.message, advice=advice, is_leaderless=True)
        return NoAnswer(
            why=finding.message
            if finding.advice
            else f"{finding.message}; no Pod of the holder was found",
            advice="connect directly with the flag --address=HOST:10258 of kube-ccm explain or "
            f"kube-ccm journal, if the daemon does not run as a Pod in {namespace}, or if you may "
            "not list Pods there",
        )
    answer = await _ask_pod(case, namespace, pod, request)
    if isinstance(answer, DaemonResponse) and not (answer.leads or answer.opening):
        return NoAnswer(why=finding.message, advice="; ".join(finding.advice), is_leaderless=True)
    return answer


async def _ask_pod(
    case: Case, namespace: str, manager: daemons.ManagerPod, request: DaemonRequest[R]
) -> R | NoAnswer:
    port = case.options.secure_port if "secure-port" in case.options.explicit else manager.port
    try:
        async with forward_port(
            case.cluster, namespace=namespace, pod=manager.pod, port=port
        ) as forward:
            try:
                url = f"https://{LOOPBACK}:{forward.port}"
                return await _send(case, url, TlsSettings(insecure=True), request)
            except errors.Unreachable as error:
                return NoAnswer(
                    why=f"Pod {manager.pod}, port {port}: {'; '.join(forward.errors) or error}",
                    advice="check the Pod, --secure-port and --bind-address: a port-forward "
                    "connects to the loopback address of the Pod",
                )
    except errors.ApiError as error:
        return NoAnswer(
            why=f"port-forward to Pod {manager.pod} failed: {error}",
            advice=_FORWARD_RIGHT
            if isinstance(error, errors.Forbidden)
            else "check the Pod, and the connection from the API server to the Pod's node",
        )


async def _send(case: Case, url: str, trust: TlsSettings, request: DaemonRequest[R]) -> R:
    """Send a request to the daemon at `url`. Raises KubeError."""
    ours = case.cluster
    there = ClusterConfig(
        server=url,
        credentials=ours.credentials,
        tls=replace(trust, certificate=ours.tls.certificate),
        disable_compression=True,
        source=ours.source,
    )
    async with Transport(there, user_agent=case.client.user_agent) as wire:
        client = Client(wire, timeout_s=case.limit_s)
        body = await client.raw(
            request.method, request.path, query=request.query, body=request.body, retry=False
        )
    try:
        return msgspec.json.decode(body, type=request.response)
    except DECODE_ERRORS as error:
        raise errors.Unreachable(f"{url}: not a kube-ccm daemon", kind="garbage") from error
