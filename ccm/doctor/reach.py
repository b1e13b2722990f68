"""Checks of the connection to the API server: kubeconfig, availability, user, and clock skew."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import msgspec

from ccm.app.clients import remote_kubeconfigs, user_agent
from ccm.app.machineapis import APIS, MachineApi
from ccm.base import lazy_aiohttp
from ccm.base.clock import now
from ccm.base.decoding import DECODE_ERRORS
from ccm.doctor import ExaminationError
from ccm.doctor.case import (
    PROGRAM,
    AuthenticatedUser,
    Case,
    CheckFinding,
    Severity,
    fail,
    get_text_field,
    ok,
    skip,
    warn,
)
from ccm.kube import config, errors
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.errors import KubeError
from ccm.kube.transport import Transport
from ccm.machines import discovery
from ccm.machines.flags import IN_CLUSTER
from ccm.model import times
from ccm.model.meta import ObjectMeta, Wire

ANONYMOUS = "system:anonymous"
"""User name of requests without credentials in Kubernetes."""

SKEW_S = 5.0
"""Maximum clock skew without a warning, in seconds; timestamps have whole seconds."""

FAIL_SKEW_S = 60.0
"""Clock skew in seconds from which the check fails.

With such a skew, new tokens and certificates may seem not yet valid.
"""

_WORDS: dict[errors.FailureKind, tuple[str, str]] = {
    "refused": (
        "connection refused, or no route to the host",
        "check the address and port, the firewall, and that the API server runs",
    ),
    "reset": (
        "connection reset",
        "check whether the URL needs https://, and whether a proxy or firewall closes connections",
    ),
    "timeout": ("no answer in time", "check the address, and that no firewall drops the packets"),
    "silent": ("no answer in time", "check that no firewall drops the packets"),
    "credentials": ("no credentials", "correct the credentials in the kubeconfig"),
    "garbage": (
        "the server does not speak HTTP",
        "check the port, and whether the URL must begin with https://",
    ),
}


class _Status(Wire, frozen=True, kw_only=True):
    user_info: AuthenticatedUser = AuthenticatedUser()


class _Review(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


async def connect(case: Case) -> None:
    """Read the kubeconfig, and set `cluster` and `client` of the case.

    Raises:
        ExaminationError: the kubeconfig is unusable.
    """
    finding = await kubeconfig(case)
    if finding.severity is Severity.FAIL:
        raise ExaminationError(str(finding))


async def kubeconfig(case: Case) -> CheckFinding:
    """Check the kubeconfig or in-cluster configuration; set `cluster` and `client` of the case."""
    file, hint, environ = case.options.kubeconfig, "", case.environ
    if not (file or case.options.master or environ.get("KUBERNETES_SERVICE_HOST")):
        home = Path(environ.get("HOME", "/")) / ".kube" / "config"
        if environ.get("KUBECONFIG"):
            file, hint = environ["KUBECONFIG"], ", from $KUBECONFIG"
        elif home.exists():
            file, hint = str(home), ", the default of kubectl"
    try:
        case.cluster, case.client = await _open_client(case, file, case.options.master)
    except config.ClusterConfigError as error:
        return fail(
            str(error),
            "--kubeconfig or $KUBECONFIG names the file; inside a Pod neither is needed",
        )
    return ok(f"{case.cluster.source}{hint}: {case.cluster.server}")


async def client_of_role(case: Case, role: str) -> Client:
    """Return the client for the cluster with this role, such as `CONTROL` or `TARGET`.

    The client is `case.client` if no other cluster has the role.

    Raises:
        KubeError: the kubeconfig of the cluster is unusable.
    """
    file = remote_kubeconfigs(case.options).get(role)
    if file is None:
        return case.client
    if role not in case.role_clients:
        try:
            _, case.role_clients[role] = await _open_client(
                case, "" if file == IN_CLUSTER else file
            )
        except config.ClusterConfigError as error:
            raise KubeError(f"--{role}-kubeconfig={error}") from error
    return case.role_clients[role]


async def find_machine_api(client: Client, kind: str, group: str) -> MachineApi:
    """Return the API group of machine objects that a user means.

    Args:
        client: client of the API server.
        kind: kind of the object in lower case, for example `machineset`.
        group: name of the API group; empty = the only group that the API server serves.

    Raises:
        ExaminationError: the user has to name one of several groups.
        KubeError: a request failed.
    """
    known = [api for api in APIS if group in ("", api.group)]
    if len(known) > 1:
        served = [
            api
            for api in known
            if f"{kind}s" in await discovery.fetch_plurals(client, api.codec.machines.api_version)
        ]
        if len(served) > 1:
            names = " or ".join(f"{kind}.{api.group}" for api in served)
            raise ExaminationError(f"{kind}: several API groups have this kind; name {names}")
        known = served or known
    return known[0]


async def _open_client(case: Case, file: str, master: str = "") -> tuple[ClusterConfig, Client]:
    cluster = await asyncio.to_thread(
        config.load, file, master, environ=case.environ, service_account=case.service_account
    )
    transport = Transport(cluster, user_agent=user_agent(PROGRAM), read_only=case.reads_only)
    return cluster, Client(
        await case.exit_stack.enter_async_context(transport), timeout_s=case.limit_s
    )


async def server(case: Case) -> CheckFinding:
    """Check that the API server answers a request for its version."""
    where = case.cluster.server
    try:
        # No retries, because the first error is the finding.
        answer = await case.client.raw("GET", "/version", retry=False)
        version = get_text_field(msgspec.json.decode(answer, type=dict[str, Any]), "gitVersion")
    except errors.Unreachable as error:
        return _unreachable(where, error)
    except (errors.Unauthorized, errors.Forbidden):
        return ok(f"{where} answers; its version requires authentication")
    except (errors.ApiError, *DECODE_ERRORS) as error:
        return fail(
            f"{where}: not a Kubernetes API server",
            "check the URL, its port, and its path if there is a proxy",
            details=[str(error)],
        )
    return ok(f"{where} answers, Kubernetes {version or '(unknown version)'}")


async def identity(case: Case) -> CheckFinding:
    """Check that the API server authenticates the command's user; measure the clock skew too."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await case.client.raw("POST", path, body=msgspec.json.encode(body))
    except errors.Unauthorized as error:
        return fail(
            "the API server rejects the credentials",
            "get a new token or certificate for the user of the kubeconfig; in a Pod, check that "
            "its ServiceAccount still exists",
            details=[str(error)],
        )
    except (errors.NotFound, errors.Forbidden):
        return warn(
            "user unknown: SelfSubjectReview is forbidden or missing (before Kubernetes 1.28)",
            "no action is needed if the check `permissions` is ok",
        )
    review = msgspec.json.decode(answer, type=_Review)
    case.user = review.status.user_info
    if (moment := review.metadata.creation_timestamp) is not None:
        # The timestamp is rounded down to whole seconds; 0.5 s is the mean error.
        case.skew_s = (times.parse_time(moment) - now()).total_seconds() + 0.5
    if case.user.username == ANONYMOUS:
        return fail(
            f"authenticated as {ANONYMOUS}: no credentials were sent",
            "add a token or a client certificate to the user of the kubeconfig",
        )
    groups = f" (groups {', '.join(case.user.groups)})" if case.user.groups else ""
    return ok(f"{case.user.username}{groups}")


async def clock(case: Case) -> CheckFinding:
    """Compare the local clock with the API server's clock."""
    if case.skew_s is None:
        return skip("the API server's time is unknown")
    difference_s = abs(case.skew_s)
    if difference_s <= SKEW_S:
        return ok("local clock agrees with the API server's")
    words = f"local clock is {difference_s:.0f} s {'behind' if case.skew_s > 0 else 'ahead of'} "
    judge = warn if difference_s < FAIL_SKEW_S else fail
    return judge(
        f"{words}the API server's",
        "synchronise both with NTP; clock skew makes tokens and certificates appear expired or not "
        "yet valid, and event times wrong",
    )


def _unreachable(where: str, error: errors.Unreachable) -> CheckFinding:
    if error.kind == "tls":
        return _untrusted(where, error)
    words, advice = _WORDS[error.kind]
    where = "" if error.kind == "credentials" else f"{where}: "
    return fail(f"{where}{words}", advice, details=[str(error)])


def _untrusted(where: str, error: errors.Unreachable) -> CheckFinding:
    # The details are in the TLS library's errors, which the HTTP library's errors wrap.
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    of_tls = [tls_error for tls_error in causes if isinstance(tls_error, ssl.SSLError)]
    message, reason = (
        next((str(text) for tls_error in of_tls if (text := getattr(tls_error, name, ""))), "")
        for name in ("verify_message", "reason")
    )
    if message:
        return fail(
            f"{where}: its certificate is not trusted: {message}",
            "set certificate-authority(-data) in the kubeconfig to the authority that signed it; "
            "set tls-server-name if the host name in the URL is not in the certificate",
            details=[str(error)],
        )
    if any(map(lazy_aiohttp.is_not_tls, causes)):
        return fail(
            f"{where}: the server does not speak TLS",
            "check the port, and whether the URL must begin with http://",
        )
    return fail(
        f"{where}: no TLS connection: {reason or 'the handshake failed'}",
        "check that the port speaks TLS, and that the client certificate belongs to this cluster",
        details=[str(error)],
    )
