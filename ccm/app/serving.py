"""The daemon's HTTPS server on `--secure-port`: its parts from the flags, and its life.

It runs from before the provider is open until everything else has ended, on standbys too.
The port is opened first, so that one that is taken ends the process at once; certificates
and the cluster's own authentication settings follow while the daemon starts.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from ccm.app import certificates, reviews
from ccm.app import metrics as own_metrics
from ccm.app.clients import platform_name, user_agent
from ccm.app.configz import Configz
from ccm.app.health import Checks
from ccm.app.options import PROGRAM, Options
from ccm.app.provider import Misconfigured
from ccm.app.reviews import Reviews
from ccm.app.trust import Believed
from ccm.app.vitals import Vitals
from ccm.base import log, metrics
from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.base.throttle import Unlimited
from ccm.kube import config as kube_config
from ccm.kube.client import Client
from ccm.kube.transport import Transport
from ccm.serving import certs, http, listener, verbosity
from ccm.serving.authentication import Authenticator, Trust
from ccm.serving.authorization import Authorizer, Paths
from ccm.serving.health import Health
from ccm.serving.profiling import Profiling
from ccm.serving.site import Site
from ccm.serving.slis import Slis

HEALTH = "health"
"""User-agent suffix of the client that looks at the API server's own health."""

HEALTH_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the server is made of besides flags.

    Attributes:
        vitals: what the daemon knows about itself.
        transport: to the API server.
        environ: of the process; says whether it runs inside a cluster.
    """

    vitals: Vitals
    transport: Transport
    environ: Mapping[str, str]


@asynccontextmanager
async def serving(options: Options, around: Surroundings) -> AsyncIterator[asyncio.Task[None]]:
    """Serve inside the block; the task ends only by an exception.

    Raises:
        Misconfigured: the port cannot be opened. From the task: what else is wrong.
    """
    task = spawn(_serve(options, around, _bind(options)), name="serving")
    try:
        yield task
    finally:
        await cancel_and_join(task)


def _bind(options: Options) -> socket.socket | None:
    if not options.secure_port:
        return None
    endpoint = listener.Endpoint(
        address=options.bind_address,
        port=options.secure_port,
        share_port=options.permit_port_sharing,
    )
    try:
        return listener.bind(endpoint)
    except listener.ListenError as error:
        raise Misconfigured(f"--secure-port={options.secure_port}: {error}") from error


async def _serve(options: Options, around: Surroundings, port: socket.socket | None) -> None:
    if port is None:
        await asyncio.get_running_loop().create_future()
        return
    own_metrics.describe(platform_name())
    async with AsyncExitStack() as stack:
        stack.callback(port.close)
        keeper = certificates.keeper(options, certificates.SERVER)
        asks = await _reviewers(stack, options, around)
        authenticator = Authenticator(
            Reviews(asks.tokens) if asks.tokens else None,
            token_ttl_s=options.authentication_token_webhook_cache_ttl.total_seconds(),
        )

        def adopt(trust: Trust) -> None:
            keeper.trust(trust.pem)
            authenticator.trust = trust

        believed = Believed(options, asks.tokens, adopt)
        around.vitals.waiting = lambda: believed.waiting
        await believed.start()
        try:
            await keeper.start()
        except certs.CertificateError as error:
            raise Misconfigured(f"HTTPS server: {error}") from error
        checks = Checks(around.vitals, _health_client(around.transport))
        stack.push_async_callback(checks.close)
        site = Site(
            pages(options, checks),
            authenticator=authenticator,
            authorizer=_authorizer(options, asks.access),
        )
        stack.push_async_callback(site.close)
        server = http.Server(site.answer, context=keeper.context)
        stack.push_async_callback(server.close)
        await server.start(port)
        host, number = port.getsockname()[:2]
        log.logger("serving").info("serving", address=f"{host}:{number}")
        async with Group() as group:
            group.start(keeper.run(), name="certificates")
            group.start(believed.run(), name="client-authorities")
            group.start(around.vitals.beat(), name="beat")


def pages(options: Options, checks: Checks) -> dict[str, http.Handler]:
    """What is served, by path."""
    slis = Slis()
    found: dict[str, http.Handler] = {
        "/metrics": _metrics,
        "/metrics/slis": slis.page,
        "/configz": Configz(options).page,
    }
    for name in ("healthz", "livez", "readyz"):
        found |= Health(name, getattr(checks, name), slis=slis).pages
    if options.profiling:
        found |= Profiling().pages | verbosity.PAGES
    return found


async def _metrics(_request: http.Request) -> http.Response:
    return http.Response(body=metrics.exposition(), content_type=metrics.CONTENT_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reviewers:
    """Who can be asked about tokens and about rights; None: nobody."""

    tokens: Client | None
    access: Client | None


async def _reviewers(stack: AsyncExitStack, options: Options, around: Surroundings) -> _Reviewers:
    tokens = await _transport(stack, options.authentication_kubeconfig, options, around)
    if options.authorization_kubeconfig == options.authentication_kubeconfig:
        access = tokens
    else:
        access = await _transport(stack, options.authorization_kubeconfig, options, around)
    logger = log.logger("serving")
    if tokens is None:
        logger.info("callers' tokens are not checked: no --authentication-kubeconfig")
    if access is None:
        logger.info("callers get the always allowed paths only: no --authorization-kubeconfig")
    return _Reviewers(
        tokens=reviews.client(tokens, "authentication") if tokens else None,
        access=reviews.client(access, "authorization") if access else None,
    )


async def _transport(
    stack: AsyncExitStack, kubeconfig: str, options: Options, around: Surroundings
) -> Transport | None:
    """To the API server that a flag names, or to the cluster we run in; None without either."""
    if not kubeconfig and not around.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    if not kubeconfig and not options.kubeconfig and not options.master:
        return around.transport  # that is the cluster we run in
    try:
        cluster = await asyncio.to_thread(kube_config.load, kubeconfig, environ=around.environ)
    except kube_config.ConfigError as error:
        given = f"{kubeconfig}: " if kubeconfig else ""
        raise Misconfigured(f"authentication and authorization: {given}{error}") from error
    opened = Transport(cluster, user_agent=user_agent(PROGRAM))
    return await stack.enter_async_context(opened)


def _authorizer(options: Options, client: Client | None) -> Authorizer:
    return Authorizer(
        Reviews(client) if client else None,
        Paths(options.authorization_always_allow_paths),
        allowed_ttl_s=options.authorization_webhook_cache_authorized_ttl.total_seconds(),
        denied_ttl_s=options.authorization_webhook_cache_unauthorized_ttl.total_seconds(),
    )


def _health_client(transport: Transport) -> Client:
    return Client(transport, name=HEALTH, limiter=Unlimited(), timeout_s=HEALTH_TIMEOUT_S)
