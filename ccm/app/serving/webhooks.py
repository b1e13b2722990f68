"""The admission webhooks: which there are, and their server, from the flags.

`service-annotations` checks the annotations of Services against the schema that the provider
declares as `Cloud.service_annotation_schema`; that is how a provider has a say at admission. A
further webhook is a name in `names.WEBHOOKS` and a maker here.

The server runs on standbys too, from the moment the provider is open. Until then, and when it
is gone, an API server that was told `failurePolicy: Ignore` stores what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ccm.app.options import Options, gates, names
from ccm.app.provider import Misconfigured
from ccm.app.serving.server import WEBHOOKS, cert_reloader
from ccm.base import log
from ccm.cloud.interface import Cloud
from ccm.controllers.service import plan
from ccm.model import Service
from ccm.serving import acceptor, admission, certs, http
from ccm.serving.admission import Handler, Schema, ServiceAnnotations, Webhook


def enabled(options: Options) -> tuple[str, ...]:
    """The webhooks to serve; none without the gate, or without a port.

    `Deviation:` the Go reference opens the port without the gate, and then answers nobody.
    """
    return () if _obstacle(options) else _named(options)


def unserved(options: Options) -> str:
    """Say why webhooks that `--webhooks` names are not served; empty if they are."""
    obstacle = _obstacle(options) if _named(options) else ""
    return f"--webhooks={','.join(options.webhooks)} has no effect: {obstacle}" if obstacle else ""


def _named(options: Options) -> tuple[str, ...]:
    return tuple(name for name in names.WEBHOOKS if names.is_enabled(name, options.webhooks))


def _obstacle(options: Options) -> str:
    """What keeps all webhooks from being served; empty: nothing."""
    if not gates.build(options.feature_gates).enabled(gates.WEBHOOK):
        return f"it needs --feature-gates={gates.WEBHOOK}=true"
    return "" if options.webhook_secure_port else "--webhook-secure-port is 0"


async def serve(options: Options, cloud: Callable[[], Cloud]) -> None:
    """Serve the webhooks that are on until cancelled; return at once if none is.

    Raises:
        Misconfigured: the port cannot be opened, or a certificate not be used.
    """
    hooks = [Webhook(name=name, handle=_MAKERS[name](options, cloud)) for name in enabled(options)]
    if not hooks:
        if why := unserved(options):
            log.logger("webhook").warning("webhooks are not served", reason=why)
        return
    reloader = cert_reloader(options, WEBHOOKS)
    endpoint = acceptor.Endpoint(
        address=options.webhook_bind_address, port=options.webhook_secure_port
    )
    server = http.Server(
        admission.Webhooks(hooks).handle,
        name="webhook",
        context=reloader.context,
        bodies=admission.BODIES,
    )
    try:
        await reloader.start()
        await server.start(acceptor.bind(endpoint))
        log.logger("webhook").info(
            "serving webhooks", address=str(endpoint), webhooks=[hook.name for hook in hooks]
        )
        await reloader.run()
    except (acceptor.ListenError, certs.CertificateError) as error:
        raise Misconfigured(f"webhook server: {error}") from error
    finally:
        await server.close()


def _service_annotations(options: Options, cloud: Callable[[], Cloud]) -> Handler:
    classes = frozenset(options.load_balancer_classes)

    def schema() -> Schema:
        now = cloud()
        return Schema(rules=now.service_annotation_schema, prefixes=now.service_annotations or ())

    def concerns(service: Service) -> bool:
        return plan.wants_balancer(service, classes)

    return ServiceAnnotations(schema, concerns)


_MAKERS: Mapping[str, Callable[[Options, Callable[[], Cloud]], Handler]] = {
    names.SERVICE_ANNOTATIONS: _service_annotations,
}
