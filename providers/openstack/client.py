"""Client of OpenStack: tokens, catalogue, errors and calls of all services.

`keystoneauth1` requests tokens, in a thread, because it knows no asyncio. `ccm.cloud.rest` sends
all other HTTP requests. Every method raises only `CloudError` classes. Unknown fields are ignored;
enumerations that the API may extend are read as text.

`nova`, `neutron` and `octavia` have the wire types and calls of the services.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import re
import ssl
import warnings
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from ccm import cloud
from ccm.base.clock import monotonic
from ccm.cloud import rest

from . import config, metrics

if TYPE_CHECKING:
    from keystoneauth1 import access
    from keystoneauth1.identity import v3

T = TypeVar("T")

CONNECTIONS = 40
"""Maximum connections to a service, half of them for reads. A service often has few workers."""


class Immutable(cloud.RetryAfter):
    """The load balancer is being changed, for an unknown time."""


class UnknownPath(cloud.Unknown):
    """The service does not know the path, such as that of a missing extension."""


_EXHAUSTED = (
    *("ExternalIpAddressExhausted", "IpAddressGenerationFailure", "OverQuota", "RoutesExhausted"),
    *("overLimit", "quota"),
)

CODES: Mapping[str, type[cloud.CloudError]] = {
    "immutable": Immutable,
    "not_found": cloud.NotFound,
    "unknown_path": UnknownPath,
    **dict.fromkeys(_EXHAUSTED, cloud.ResourceExhausted),
}
"""Error code as returned by `parse_refusal` -> error class."""

STATUSES: Mapping[int, type[cloud.CloudError]] = {
    **rest.STATUSES,
    406: cloud.Unimplemented,  # a microversion that an older Nova does not know
    412: cloud.Aborted,
    413: cloud.ResourceExhausted,
    422: cloud.InvalidArgument,
    501: cloud.Unimplemented,
}
"""HTTP status -> error class, unless the body is more specific."""

SUCCESS: Mapping[str, rest.Statuses] = {
    "GET": 200,
    "POST": (200, 201, 202, 204),
    "PUT": (200, 202, 204),
    "PATCH": 200,
    "DELETE": (200, 202, 204),
}
"""Method -> statuses of success; the services differ."""

NO_ROUTE = "The resource could not be found"
"""Message of a 404 about a path that the service does not know; it says nothing about a resource.
Nova sends it with the code of an absent server."""

_ABSENT = re.compile(r"\b(not found|could not be found|does not exist)\b", re.IGNORECASE)


def parse_refusal(body: bytes) -> rest.Refusal:
    """Parse an error response; each service has another form."""
    code: Any
    match msgspec.json.decode(body):
        case {"NeutronError": {"type": str(code), "message": str(text)}}:
            pass
        case {"faultcode": str(code), "faultstring": str(text)}:  # Octavia
            pass
        case {"title": str(code), "description": str(text)}:  # Octavia, about members
            pass
        case {"error": {"title": str(code), "message": str(text)}}:  # Keystone
            pass
        case {"message": str(text)}:
            code = "error"
        case {**items} if len(items) == 1:  # Nova, Cinder: the code is the only name
            ((code, details),) = items.items()
            text = str(details.get("message", "")) if isinstance(details, dict) else str(details)
        case _:
            return rest.Refusal()
    return rest.Refusal(code=_canonical_code(str(code), text), message=text)


def _canonical_code(code: str, text: str) -> str:
    # Octavia answers with the second text if the subnet of the VIP is exhausted.
    if "quota" in text.lower() or "No more IP addresses" in text:
        return "quota"
    # The second text is about changes of the load balancer itself.
    if re.search("immutable and cannot be updated|Invalid state PENDING_", text):
        return "immutable"
    if _ABSENT.search(text) and not text.startswith(NO_ROUTE):
        return "not_found"  # the client believes it only with status 404
    return "unknown_path" if text.startswith(NO_ROUTE) else code


# --- tokens ---------------------------------------------------------------------------------------


def check_library() -> None:
    """Raise ProviderError if `keystoneauth1` is not installed."""
    if importlib.util.find_spec("keystoneauth1") is None:
        raise cloud.ProviderError(
            "the package keystoneauth1 is missing; install kube-ccm with the extra openstack, in "
            "the environment or image of the daemon"
        )


class Keystone(rest.RenewedToken):
    """`rest.Authorizer` with tokens of Keystone, and the catalogue that comes with each token.

    Args:
        settings: address and credentials.
        timeout_s: limit of one request in seconds.
    """

    def __init__(self, settings: config.Global, timeout_s: float) -> None:
        super().__init__()
        self._settings = settings
        self._timeout_s = timeout_s
        self._access: access.AccessInfo | None = None

    async def request_token(self) -> tuple[str, float]:
        """Return a new token and its lifetime: one request, in a thread."""
        granted, life = await cloud.blocking(_authenticate, self._settings, self._timeout_s)
        self._access = granted
        return granted.auth_token or "", life.total_seconds()

    async def endpoint(self, service: str) -> str:
        """Return the URL of a service, such as `compute`, without trailing slashes.

        The first call requests a token.

        Raises:
            FailedPrecondition: the catalogue has no such endpoint.
        """
        from keystoneauth1 import exceptions

        settings, granted = self._settings, await self._granted()
        url = None
        with contextlib.suppress(exceptions.CatalogException):
            url = granted.service_catalog.url_for(
                service_type=service,
                interface=settings.os_endpoint_type.removesuffix("URL"),
                region_name=settings.region or None,
            )
        if not url:
            # The catalogue comes with a token, so that a new one may have the endpoint.
            earliest = self._renewed_at + rest.MIN_RENEW_AGE_S
            self._renew_at = min(self._renew_at, max(earliest, monotonic()))
            place = f" in region {settings.region}" if settings.region else ""
            raise cloud.FailedPrecondition(
                f"the catalogue of {settings.auth_url} has no {settings.os_endpoint_type} endpoint "
                f"of the service {service}{place}; create one, or correct region or "
                "os-endpoint-type"
            )
        return url.rstrip("/")

    async def project_id(self) -> str:
        """Return the ID of the project; the first call requests a token."""
        return (await self._granted()).project_id or ""

    async def _granted(self) -> access.AccessInfo:
        await self.header()
        assert self._access is not None
        return self._access


def _authenticate(settings: config.Global, timeout_s: float) -> tuple[access.AccessInfo, timedelta]:
    """Request a token, and return it with its lifetime; called in a thread."""
    from keystoneauth1 import exceptions, session

    if settings.tls_insecure:
        # The setting says so already; each token would print a warning.
        warnings.filterwarnings("ignore", "Unverified HTTPS request")
    paths = ssl.get_default_verify_paths()  # those of all other requests
    http = session.Session(
        verify=not settings.tls_insecure
        and (settings.ca_file or paths.cafile or paths.capath or True),
        cert=(settings.cert_file, settings.key_file) if settings.cert_file else None,
        timeout=timeout_s,
        redirect=False,
        user_agent="kube-ccm",
    )
    where = f"Keystone at {settings.auth_url}"
    try:
        granted = _plugin(settings).get_auth_ref(http)
        if granted.expires is None or granted.issued is None:
            raise ValueError("no times")
        # Not from our own clock, which may differ from that of Keystone.
        return granted, granted.expires - granted.issued
    except exceptions.HttpError as error:
        raise _token_error(where, error) from error
    except exceptions.ConnectTimeout as error:
        raise cloud.DeadlineExceeded(f"{where}: request timed out") from error
    except exceptions.ConnectionError as error:
        # Only the innermost reason: the text nests the exceptions of several libraries.
        reason = str(error).rpartition(": ")[2].strip("\"')")
        raise cloud.Unavailable(f"{where}: no response: {reason}") from error
    except (exceptions.ClientException, ValueError, KeyError) as error:
        raise cloud.Unknown(f"{where}: malformed response: {type(error).__name__}") from error
    finally:
        http.close()


def _token_error(where: str, error: Any) -> cloud.CloudError:
    """Return the error for an unsuccessful response to a request for a token."""
    status = error.http_status
    text = f"{where}: HTTP {status}: {error.message}"
    if status in (401, 404):  # 404: a deleted application credential, or a wrong path
        return cloud.Unauthenticated(f"{text}; correct auth-url or the credentials")
    kind = rest.STATUSES.get(status, cloud.Unavailable if status >= 500 else cloud.Unknown)
    if issubclass(kind, cloud.RetryAfter):
        return kind(text, seconds=max(rest.RETRY_AFTER_S, getattr(error, "retry_after", 0) or 0))
    return kind(text)


def _plugin(settings: config.Global) -> v3.base.Auth:
    """Return the plugin of `keystoneauth1` for the most specific credentials."""
    from keystoneauth1.identity import v3

    url = f"{settings.auth_url.removesuffix('/v3').removesuffix('/v2.0')}/v3"
    user: dict[str, Any] = {"user_id": settings.user_id}
    if not settings.user_id:
        user = {"username": settings.username, **settings.user_domain}
    secret = settings.application_credential_secret
    if number := settings.application_credential_id:
        return v3.ApplicationCredential(url, secret, application_credential_id=number)
    if name := settings.application_credential_name:
        return v3.ApplicationCredential(url, secret, application_credential_name=name, **user)
    if settings.trust_id:
        trustee, trust = settings.trustee_id, settings.trust_id
        return v3.Password(url, settings.trustee_password, trustee, trust_id=trust)
    project: dict[str, Any] = {"project_id": settings.tenant_id}
    if not settings.tenant_id:
        project = {"project_name": settings.tenant_name, **settings.project_domain}
    if settings.token:
        return v3.Token(url, settings.token, **project)
    return v3.Password(url, settings.password, **user, **project)


# --- calls ----------------------------------------------------------------------------------------

_VERSION = re.compile(r"/v\d+(\.\d+)?$")

_UNVERSIONED = frozenset({"image", "load-balancer", "network"})
"""Services whose paths begin with the version here; the catalogue may have it in the URL too."""


class Reference(msgspec.Struct, frozen=True):
    """Reference to a resource."""

    id: str


class _Link(msgspec.Struct, frozen=True):
    rel: str
    href: str


@functools.cache
def _response_type(*fields: Any) -> Any:
    """Return a Struct type; the fields have the form that `msgspec.defstruct` expects."""
    return msgspec.defstruct("_Answer", fields, frozen=True)


class Service:
    """Calls of one service of the catalogue, such as `network`.

    Paths are already quoted; see `part`. Resources are wrapped: `key` is the only name in the body
    of a request or response, such as `router`.

    Attributes:
        headers: headers of every request, such as the microversion.
    """

    def __init__(self, client: Client, kind: str) -> None:
        self._client = client
        self._kind = kind
        self.headers: Mapping[str, str] = {}

    async def get(
        self, path: str, key: str, kind: type[T], query: Mapping[str, str] | None = None
    ) -> T:
        """Return a resource, such as `/v2.0/routers/<ID>`. Raises `NotFound`."""
        shape = _response_type((key, kind))
        async with self._client.connected(self._kind, "GET", path) as http:
            answer: T = _only(await http.get(path, shape, query, headers=self.headers))
        return answer

    async def list_all(
        self, path: str, key: str, kind: type[T], query: Mapping[str, str] | None = None
    ) -> tuple[list[T], int]:
        """Return all resources that match a query, and the number of requests."""
        items: Any = tuple.__class_getitem__((kind, ...))
        links: Any = tuple.__class_getitem__((_Link, ...))
        page = _response_type((key, items), (f"{key}_links", links, ()))

        def after(answer: Any) -> Mapping[str, str] | None:
            # Only the marker: a proxy may make host and path of the link useless.
            for link in getattr(answer, f"{key}_links"):
                if link.rel == "next":
                    given = dict(parse_qsl(urlsplit(link.href).query))
                    return {name: given[name] for name in ("marker", "limit") if name in given}
            return None

        async with self._client.connected(self._kind, "GET", path) as http:
            listing = http.pages(path, page, query or {}, after=after, headers=self.headers)
            pages = [getattr(answer, key) async for answer in listing]
        return [item for page in pages for item in page], len(pages)

    async def send(
        self,
        method: str,
        path: str,
        key: str,
        order: object,
        kind: type[T],
        headers: Mapping[str, str] | None = None,
        beside: Mapping[str, object] | None = None,
    ) -> T:
        """Create (POST) or change (PUT) a resource and return it.

        `beside` are further names in the body.
        """
        shape, more = _response_type((key, kind)), {**self.headers, **(headers or {})}
        async with self._client.connected(self._kind, method, path) as http:
            answer: T = _only(
                await http.send(method, path, {key: order, **(beside or {})}, shape, headers=more)
            )
        return answer

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send a request and return the body of the response, such as that of an action."""
        data = None if body is None else msgspec.json.encode(body)
        more = {**self.headers, **(headers or {})}
        async with self._client.connected(self._kind, method, path) as http:
            return await http.request(method, path, data=data, headers=more)

    async def delete(self, path: str) -> None:
        """Delete a resource; no error if it is gone."""
        with contextlib.suppress(cloud.NotFound):
            await self.call("DELETE", path)


def _only(answer: Any) -> Any:
    """Return the only field of a response."""
    (resource,) = msgspec.structs.astuple(answer)
    return resource


class Client:
    """Client of one cloud with one set of credentials; opened by `open_client`."""

    def __init__(
        self,
        keystone: Keystone,
        stack: contextlib.AsyncExitStack,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.keystone = keystone
        self._stack = stack
        self._timeout_s = timeout_s
        self._tls = tls
        self._lock = asyncio.Lock()
        self._clients: dict[str, rest.RestClient] = {}
        self.compute = Service(self, "compute")
        self.network = Service(self, "network")
        self.load_balancer = Service(self, "load-balancer")
        self.image = Service(self, "image")

    @contextlib.asynccontextmanager
    async def connected(
        self, service: str, method: str, path: str
    ) -> AsyncIterator[rest.RestClient]:
        """Yield the client for a request."""
        # With each token comes a catalogue, so an endpoint may move.
        url = await self.keystone.endpoint(service)
        if service in _UNVERSIONED:
            url = _VERSION.sub("", url)
        http = self._clients.get(url) or await self._open(url)
        async with metrics.REQUESTS.observe(metrics.request_name(method, path)):
            yield http

    async def _open(self, url: str) -> rest.RestClient:
        async with self._lock:
            if url not in self._clients:
                opened = rest.open_client(
                    url,
                    refusal=parse_refusal,
                    codes=CODES,
                    statuses=STATUSES,
                    success=SUCCESS,
                    authorization=self.keystone,
                    auth_header="X-Auth-Token",
                    timeout_s=self._timeout_s,
                    connections=CONNECTIONS,
                    tls=self._tls,
                )
                self._clients[url] = await self._stack.enter_async_context(opened)
            return self._clients[url]


def part(text: str) -> str:
    """Return an ID or a name as one segment of a path."""
    return quote(text, safe="")


@contextlib.asynccontextmanager
async def open_client(settings: config.Global, timeout_s: float = 30.0) -> AsyncIterator[Client]:
    """Open a client without sending a request.

    Raises:
        ConfigError: a file of certificates or keys is unreadable.
        ProviderError: `keystoneauth1` is not installed.
    """
    check_library()
    tls = _tls_context(settings)
    async with contextlib.AsyncExitStack() as stack:
        yield Client(Keystone(settings, timeout_s), stack, timeout_s=timeout_s, tls=tls)


def _tls_context(settings: config.Global) -> ssl.SSLContext | None:
    """Return the TLS settings; None = the system's."""
    if not (settings.ca_file or settings.cert_file or settings.tls_insecure):
        return None
    place = f"Global.ca-file {settings.ca_file}"
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.cert_file:
            place = f"Global.cert-file {settings.cert_file} with key-file {settings.key_file}"
            # An encrypted key must fail, not ask for a password on the terminal.
            context.load_cert_chain(settings.cert_file, settings.key_file, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, ssl.SSLError):
            reason = "not a valid certificate or key in PEM"
        raise cloud.ConfigError(f"{place}: {reason}") from error
    if settings.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _no_password() -> str:
    raise ValueError("encrypted private keys are not supported")
