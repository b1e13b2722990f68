"""The daemon's HTTPS servers: `--secure-port`, and `--webhook-secure-port` for webhooks.

The server on `--secure-port` starts before the provider is open and stops last, on standbys too.
Its port is bound first, so that the process exits at once if the port is in use. Certificates and
the cluster's authentication settings are loaded while the daemon starts.

The webhook `service-annotations` checks the annotations of Services against
`Cloud.service_annotation_schema`, the schema that the provider declares. The webhook
`kubermatic-machines` is implemented in `ccm.kubermatic.webhook`. To add a webhook, add its name to
`options.controllers.WEBHOOKS` and its factory to `_FACTORIES`. Standbys serve webhooks too, once
their provider is open. Until then, the API server admits every object if the webhook's
`failurePolicy` is `Ignore`.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from ccm.app import delegated_auth, health, reload
from ccm.app import metrics as own_metrics
from ccm.app.clients import platform_name, user_agent
from ccm.app.delegated_auth import DynamicClientCA, ReviewClient
from ccm.app.health import Checks, DaemonState
from ccm.app.options import FLAGS, PROGRAM, Options, config, controllers, gates, migration
from ccm.app.provider import Misconfigured
from ccm.base import log, metrics, redact
from ccm.base.parsing import format_duration
from ccm.base.tasks import NamedTaskGroup, cancel_and_join, spawn
from ccm.base.throttle import Unlimited
from ccm.cloud.interface import Cloud
from ccm.controllers.service import plan
from ccm.kube import config as kube_config
from ccm.kube.client import Client
from ccm.kube.transport import Transport
from ccm.model import Service
from ccm.runtime.object_status import EXPLAIN_PATH, JOURNAL_PATH
from ccm.serving import acceptor, admission, http, tls
from ccm.serving.admission import AnnotationSchema, ServiceAnnotations, Webhook
from ccm.serving.authentication import Authenticator, Trust
from ccm.serving.handler_chain import DelegatingAuthorizer, HandlerChain, PathSet
from ccm.serving.health import HealthEndpoint, Slis
from ccm.serving.http import JSON, Handler, Request, Response
from ccm.serving.policy import TlsError, parse_policy
from ccm.serving.ttl_cache import LRUStore

HEALTH = "health"
"""User-agent suffix of the client that requests the API server's own `/readyz`."""

HEALTH_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """Inputs of the daemon's HTTPS server, or of a machine command's HTTP server.

    Attributes:
        options: the flags.
        vitals: the state of the daemon.
        transport: connection to the API server.
        environ: environment variables, which show whether the process runs inside a cluster.
        others: connections to the API servers of other clusters, by cluster role.
    """

    options: Options
    vitals: DaemonState
    transport: Transport
    environ: Mapping[str, str]
    others: Mapping[str, Transport] = field(default_factory=dict)

    def checks(self) -> Checks:
        others = {role: _health_client(wire) for role, wire in self.others.items()}
        return Checks(self.vitals, _health_client(self.transport), others)


def _health_client(wire: Transport) -> Client:
    return Client(wire, name=HEALTH, limiter=Unlimited(), timeout_s=HEALTH_TIMEOUT_S)


@asynccontextmanager
async def serving(context: ServerContext) -> AsyncIterator[asyncio.Task[None]]:
    """Serve HTTPS inside the block; the yielded task ends only with an exception.

    Raises:
        Misconfigured: the port cannot be opened. The yielded task raises it if certificates or
            authentication settings are invalid.
    """
    task = spawn(_serve(context, _bind(context.options)), name="serving")
    try:
        yield task
    finally:
        await cancel_and_join(task)


def _bind(options: Options) -> socket.socket | None:
    if not options.secure_port:
        return None
    endpoint = acceptor.Endpoint(
        address=options.bind_address,
        port=options.secure_port,
        share_port=options.permit_port_sharing,
    )
    try:
        return acceptor.bind(endpoint)
    except acceptor.ListenError as error:
        raise Misconfigured(f"--secure-port={options.secure_port}: {error}") from error


async def _serve(context: ServerContext, port: socket.socket | None) -> None:
    if port is None:
        await asyncio.get_running_loop().create_future()
        return
    own_metrics.describe(platform_name())
    options, vitals = context.options, context.vitals
    async with AsyncExitStack() as stack:
        stack.callback(port.close)
        reloader = cert_reloader(options, SERVER_PREFIX)
        tokens, access = await _reviewers(stack, context)
        store = LRUStore()
        authenticator = Authenticator(
            ReviewClient(tokens).review_token if tokens else None,
            token_ttl_s=options.authentication_token_webhook_cache_ttl.total_seconds(),
            store=store,
        )
        client_ca = await _client_ca(context, tokens, authenticator, reloader)
        checks = context.checks()
        stack.push_async_callback(checks.close)
        chain = HandlerChain(
            pages(options, checks, vitals),
            authenticator=authenticator,
            authorizer=_authorizer(options, access, store),
        )
        stack.push_async_callback(chain.close)
        server = http.Server(chain.answer, context=reloader.context)
        stack.push_async_callback(server.close)
        await server.start(port)
        host, number = port.getsockname()[:2]
        log.logger("serving").info("serving", address=f"{host}:{number}")
        async with NamedTaskGroup() as group:
            group.start(reloader.run(), name="certificates")
            group.start(client_ca.run(), name="client-authorities")
            group.start(vitals.measure_loop_lag(), name="beat")


async def _client_ca(
    context: ServerContext,
    client: Client | None,
    authenticator: Authenticator,
    reloader: tls.CertReloader,
) -> DynamicClientCA:
    """Load the server's certificate, and the client CAs for the authenticator and the reloader.

    Raises:
        Misconfigured: a certificate or CA file is unusable.
    """

    def adopt(trust: Trust) -> None:
        reloader.trust(trust.pem)
        authenticator.trust = trust

    client_ca = DynamicClientCA(context.options, client, adopt)
    context.vitals.pending_reason = lambda: client_ca.pending_reason
    await client_ca.start()
    try:
        await reloader.start()
    except tls.CertificateError as error:
        raise Misconfigured(f"HTTPS server: {error}") from error
    return client_ca


def pages(options: Options, checks: Checks, vitals: DaemonState) -> dict[str, http.Handler]:
    """Return the handlers of all pages, by path."""
    slis = Slis()
    handlers: dict[str, http.Handler] = {
        "/metrics": metrics_page,
        "/metrics/slis": slis.page,
        "/configz": configz_page(options),
        EXPLAIN_PATH: health.explain_page(options, vitals),
        JOURNAL_PATH: health.journal_page(vitals),
    }
    for name in ("healthz", "livez", "readyz"):
        handlers |= HealthEndpoint(name, getattr(checks, name), slis=slis).pages
    return handlers


async def metrics_page(_request: http.Request) -> http.Response:
    """Serve all metrics."""
    return http.Response(body=metrics.exposition(), content_type=metrics.CONTENT_TYPE)


async def _reviewers(
    stack: AsyncExitStack, context: ServerContext
) -> tuple[Client | None, Client | None]:
    """Return the clients for TokenReviews and SubjectAccessReviews.

    A client is None if its flag is empty and the process runs outside a cluster.
    """
    options, logger = context.options, log.logger("serving")
    tokens = await _transport(stack, "authentication-kubeconfig", context)
    if options.authorization_kubeconfig == options.authentication_kubeconfig:
        access = tokens
    else:
        access = await _transport(stack, "authorization-kubeconfig", context)
    if tokens is None:
        logger.info("token authentication disabled: no --authentication-kubeconfig")
    if access is None:
        logger.info(
            "without --authorization-kubeconfig, only the paths of "
            "--authorization-always-allow-paths are served"
        )
    return (
        delegated_auth.client(tokens, "authentication") if tokens else None,
        delegated_auth.client(access, "authorization") if access else None,
    )


async def _transport(stack: AsyncExitStack, flag: str, context: ServerContext) -> Transport | None:
    """Return the connection to the API server in the kubeconfig that a flag names.

    With an empty flag, the API server is that of this Pod's cluster; None outside a cluster.

    Raises:
        Misconfigured: the kubeconfig is unusable.
    """
    options, environ = context.options, context.environ
    kubeconfig = str(options.get(flag))
    if not kubeconfig and not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    if not kubeconfig and not options.kubeconfig and not options.master:
        return context.transport  # the daemon's own cluster is the cluster of this Pod
    since = reload.signatures(kubeconfig)
    try:
        cluster = await asyncio.to_thread(kube_config.load, kubeconfig, environ=environ)
    except kube_config.ClusterConfigError as error:
        raise Misconfigured(f"--{flag}={error}" if kubeconfig else str(error)) from error
    # Changes of this file are logged, but not recorded as events: the server has no recorder.
    wire = await stack.enter_async_context(
        Transport(cluster, user_agent=user_agent(options.program))
    )
    source = reload.KubeconfigSource(kubeconfig, wire, environ=environ, name=flag)
    follower = reload.Reloader([source], since=since)
    stack.push_async_callback(cancel_and_join, spawn(follower.run(), name=f"reload-{flag}"))
    return wire


def _authorizer(options: Options, client: Client | None, store: LRUStore) -> DelegatingAuthorizer:
    return DelegatingAuthorizer(
        ReviewClient(client).review_access if client else None,
        PathSet(options.authorization_always_allow_paths),
        allowed_ttl_s=options.authorization_webhook_cache_authorized_ttl.total_seconds(),
        denied_ttl_s=options.authorization_webhook_cache_unauthorized_ttl.total_seconds(),
        store=store,
    )


SERVER_PREFIX = ""
WEBHOOK_PREFIX = "webhook-"
"""Prefixes of the TLS flags of the two servers."""

PAIR_NAMES = {SERVER_PREFIX: PROGRAM, WEBHOOK_PREFIX: f"{PROGRAM}-webhook"}
"""Base names of the files in `--cert-dir` and `--webhook-cert-dir`.

Source: the Go cloud-controller-manager.
"""


def cert_reloader(options: Options, prefix: str) -> tls.CertReloader:
    """Return the certificate reloader of the server whose TLS flags have this prefix.

    Raises:
        Misconfigured: a flag names an unknown TLS version, cipher suite or group.
    """

    def get(name: str) -> Any:
        return options.get(prefix + name)

    try:
        rules = parse_policy(
            get("tls-min-version"), get("tls-cipher-suites"), get("tls-curve-preferences")
        )
    except TlsError as error:
        raise Misconfigured(f"--{prefix}tls-...: {error}") from error
    named = [
        tls.SniCertificate(
            source=tls.files(
                Path(entry.cert_file),
                Path(entry.key_file),
                labels=(f"--{prefix}tls-sni-cert-key: ", f"--{prefix}tls-sni-cert-key: "),
            ),
            names=entry.names,
        )
        for entry in get("tls-sni-cert-key")
    ]
    callers = options.webhook_client_ca_file if prefix == WEBHOOK_PREFIX else ""
    return tls.CertReloader(
        rules,
        tls.CertificateSources(_main(get, prefix), named),
        client_ca_file=Path(callers) if callers else None,
    )


def _main(get: Callable[[str], Any], prefix: str) -> tls.KeyPairSource:
    if get("tls-cert-file"):
        return tls.files(
            Path(get("tls-cert-file")),
            Path(get("tls-private-key-file")),
            labels=(f"--{prefix}tls-cert-file=", f"--{prefix}tls-private-key-file="),
        )
    hosts = tls.hosts_of(get("bind-address"))
    if get("cert-dir"):
        return tls.directory(Path(get("cert-dir")), PAIR_NAMES[prefix], hosts)
    return tls.memory(hosts)


_GROUP = config.GROUP_VERSION.partition("/")[0]


def configz(options: Options) -> dict[str, Any]:
    """Return the content of `/configz`: the settings in the Go program's format."""
    content: dict[str, Any] = {"kind": config.KIND, "apiVersion": config.GROUP_VERSION}
    for path in config.UNUSED:
        config.put(content, path, "")
    config.put(content, "Generic.Port", 0)
    config.put(content, "Generic.Address", "0.0.0.0")  # noqa: S104 - an unused field of the API
    for path, name in config.FIELDS.items():
        config.put(
            content, path, _plain(options.get(name), is_list=FLAGS[name].kind.merge is not None)
        )
    plan = options.leader_migration
    if plan is not None:
        config.put(content, config.MIGRATION, migration.write(plan))
    return {_GROUP: content}


def configz_page(options: Options) -> Handler:
    """Return the handler of `/configz`, which serves the settings in effect."""

    async def answer(_request: Request) -> Response:
        return Response(body=json.dumps(configz(options)).encode(), content_type=JSON)

    return answer


def _plain(value: Any, *, is_list: bool) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    if is_list and isinstance(value, tuple):
        return [_plain(item, is_list=False) for item in value] or None
    if isinstance(value, bool | int | float) or value is None:
        return value
    return redact.mask_text(str(value))


def enabled_webhooks(options: Options) -> tuple[str, ...]:
    """Return the names of the webhooks to serve; none if the feature gate is off or the port is 0.

    `Deviation:` with the gate off, the Go cloud-controller-manager opens the port but never
    answers.
    """
    return () if _unserved_cause(options) else _requested_webhooks(options)


def unserved_reason(options: Options) -> str:
    """Return why the webhooks that are selected with `--webhooks` are not served.

    Empty if they are served, or if none is selected.
    """
    obstacle = _unserved_cause(options) if _requested_webhooks(options) else ""
    return f"--webhooks={','.join(options.webhooks)} has no effect: {obstacle}" if obstacle else ""


def _requested_webhooks(options: Options) -> tuple[str, ...]:
    off = controllers.WEBHOOKS_OFF_BY_DEFAULT
    return tuple(
        name
        for name in controllers.WEBHOOKS
        if controllers.is_enabled(name, options.webhooks, off_by_default=off)
    )


def _unserved_cause(options: Options) -> str:
    """Return why no webhook can be served; empty if webhooks can be served."""
    if not gates.values(options.feature_gates)[gates.WEBHOOK]:
        return f"--feature-gates={gates.WEBHOOK}=true is missing"
    return "" if options.webhook_secure_port else "--webhook-secure-port is 0"


async def serve_webhooks(options: Options, cloud: Callable[[], Cloud]) -> None:
    """Serve the enabled webhooks until cancelled; return at once if none is enabled.

    Raises:
        Misconfigured: the port cannot be opened, or a certificate is unusable.
    """
    hooks = [
        Webhook(name=name, handle=_FACTORIES[name](options, cloud))
        for name in enabled_webhooks(options)
    ]
    if not hooks:
        if why := unserved_reason(options):
            log.logger("webhook").warning("webhooks not served", reason=why)
        return
    reloader = cert_reloader(options, WEBHOOK_PREFIX)
    endpoint = acceptor.Endpoint(
        address=options.webhook_bind_address, port=options.webhook_secure_port
    )
    server = http.Server(
        admission.Webhooks(hooks).handle,
        name="webhook",
        context=reloader.context,
        bodies=admission.BODY_LIMITS,
    )
    try:
        await reloader.start()
        await server.start(acceptor.bind(endpoint))
        log.logger("webhook").info(
            "serving webhooks", address=str(endpoint), webhooks=[hook.name for hook in hooks]
        )
        await reloader.run()
    except (acceptor.ListenError, tls.CertificateError) as error:
        raise Misconfigured(f"webhook server: {error}") from error
    finally:
        await server.close()


def _service_annotations(options: Options, cloud: Callable[[], Cloud]) -> admission.Handler:
    classes = frozenset(options.load_balancer_classes)

    def schema() -> AnnotationSchema:
        now = cloud()
        return AnnotationSchema(
            rules=now.service_annotation_schema, prefixes=now.service_annotations or ()
        )

    def concerns(service: Service) -> bool:
        return plan.wants_balancer(service, classes)

    return ServiceAnnotations(schema, concerns)


def _kubermatic_machines(options: Options, cloud: Callable[[], Cloud]) -> admission.Handler:
    # Imported only if enabled: the package `cryptography` needs 14 MiB.
    from ccm.kubermatic.webhook import MachineWebhook

    return MachineWebhook(cloud, options.kubernetes_version_constraints)


_FACTORIES: Mapping[str, Callable[[Options, Callable[[], Cloud]], admission.Handler]] = {
    controllers.SERVICE_ANNOTATIONS: _service_annotations,
    controllers.KUBERMATIC_MACHINES: _kubermatic_machines,
}
