"""Worlds of Kubermatic's machine objects whose leaders are killed, frozen or refused.

One has a provider of Kubermatic's interface, the other one the driver of the simulated cloud, whose
HTTP requests end in the cloud without a wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from ccm.cloud import Credentials, rest
from ccm.cloud.configvar import ConfigVarString, Resolver
from ccm.cloud.kubermatic import (
    InstanceNotFound,
    KubermaticDriver,
    KubermaticInstance,
    KubermaticMachine,
    KubermaticMachineSpec,
    ProviderData,
    decode_config,
    decode_spec,
    from_kubermatic,
)
from ccm.cloud.machines import Identity
from ccm.kubermatic import names
from ccm.model.times import parse_time
from providers.sim import client, instances, kubermatic, machines, state, world
from providers.sim.server import ERRORS, OPERATIONS, DecodedRequest, Operation, Service
from tests.conformance.machine.crashes import (
    CLOUD,
    REQUEST_S,
    CrashWorld,
    Interceptor,
    MemoryAccount,
    Server,
    decoded,
)
from tests.unit.kubermatic.test_machines import BASE, TOKEN, WEB, Kubermatic, value


class KubermaticWorld(CrashWorld, Kubermatic):
    """A world of Kubermatic's machine objects, with an operating-system-manager."""

    base = BASE
    controllers = ("machine", "machineset", "machinedeployment")

    def provider_spec(self, class_name: str) -> dict[str, Any]:
        """Return the provider spec of a class."""
        return value(class_name)

    def create(self, replicas: int) -> None:
        self.deployment(replicas, template=self._template("small"))

    def roll(self) -> None:
        self.edit(template=self._template("large"))

    def _template(self, class_name: str) -> dict[str, Any]:
        spec = {"providerSpec": {"value": self.provider_spec(class_name)}}
        return {
            "metadata": {"labels": {"app": "web"}},
            "spec": {**spec, "versions": {"kubelet": "1.35.1"}},
        }

    def tick(self) -> None:
        """Write the user data of the deployment's revision, besides the nodes of servers."""
        super().tick()
        metadata = (self.server.get(WEB) or {}).get("metadata", {})
        if revision := metadata.get("annotations", {}).get(names.ANNOTATION_REVISION):
            self.user_data(revision)

    def phase(self, name: str = "m0") -> str:
        machine = self.server.get(f"{BASE}/machines/{name}") or {}
        return str(machine.get("status", {}).get("phase", ""))

    def class_name(self, machine: Mapping[str, Any]) -> str:
        return str(machine["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["size"])


# --- a provider of Kubermatic's interface -------------------------------------------------------


CLOUD_TOKEN = "secret"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """`cloudProviderSpec` of a machine."""

    token: ConfigVarString
    size: str
    networks: list[str] | None = None


class Provider:
    """A `KubermaticProvider` that finds instances by UID, and makes one whenever it is asked."""

    def __init__(self, account: MemoryAccount, resolver: Resolver) -> None:
        self._account, self._resolver = account, resolver

    def add_defaults(self, spec: KubermaticMachineSpec) -> KubermaticMachineSpec:
        return spec

    async def validate(self, spec: KubermaticMachineSpec) -> None:
        token = decode_spec(decode_config(spec.provider_spec), Spec).token
        assert self._resolver.get_string_value(token) == CLOUD_TOKEN

    async def get(self, machine: KubermaticMachine) -> KubermaticInstance:
        for server in await self._servers(machine):
            return _instance(server)
        raise InstanceNotFound(machine.name)

    def get_cloud_config(self, _spec: KubermaticMachineSpec) -> tuple[str, str]:
        return "", ""

    async def create(
        self, machine: KubermaticMachine, _data: ProviderData, userdata: str
    ) -> KubermaticInstance:
        assert f"hostname: {machine.name}" in userdata
        await self._account.create_disk(machine.name)
        identity = Identity(cluster="", pool="", name=machine.name, uid=machine.uid)
        return _instance(await self._account.create_server(machine.name, identity))

    async def cleanup(self, machine: KubermaticMachine, _data: ProviderData) -> bool:
        """Delete the instance in one call, its disk in the next one."""
        servers = await self._servers(machine)
        for server in servers:
            await self._account.delete_server(server.provider_id)
        if not servers:
            await self._account.delete_disk(machine.name)
        return not servers

    def machine_metrics_labels(self, _machine: KubermaticMachine) -> Mapping[str, str]:
        return {"size": ""}

    async def migrate_uid(self, machine: KubermaticMachine, uid: str) -> None:
        raise NotImplementedError

    def set_metrics_for_machines(self, _machines: Any) -> None:
        """Do nothing."""

    async def _servers(self, machine: KubermaticMachine) -> list[Server]:
        servers = await self._account.list_servers()
        return [one for one in servers if one.identity.uid == machine.uid]


def _instance(server: Server) -> KubermaticInstance:
    return KubermaticInstance(name=server.name, provider_id=server.provider_id)


# --- the simulated cloud --------------------------------------------------------------------------

ROUTES: tuple[tuple[re.Pattern[str], Operation], ...] = tuple(
    (re.compile(one.route.replace("{id}", "([^/]+)")), one) for one in OPERATIONS
)
STARTS_S, GOES_S = 1.0, 2.0
"""Time that an instance takes to start, and to go."""


class SimAccount:
    """An account of the simulated cloud; see `Account`. It is the HTTP session of its clients."""

    def __init__(self, interceptor: Interceptor) -> None:
        settings = state.Settings(transition_s=STARTS_S, removal_s=GOES_S)
        self.service = Service(token=CLOUD_TOKEN, seed=0, settings=settings)
        self._interceptor = interceptor
        self._made: dict[str, str] = {}
        """Provider ID -> name."""

    @property
    def servers(self) -> Mapping[str, Server]:
        found = (_server(one) for one in self.service.world.snapshot())
        return {one.provider_id: one for one in found}

    @property
    def disks(self) -> list[str]:
        return [one.name.removesuffix("-0") for one in self.service.worlds.volumes.list()]

    @property
    def ordered(self) -> Counter[str]:
        return Counter(self._made.values())

    @contextlib.asynccontextmanager
    async def of(self, credentials: Credentials, *, pool: str = "") -> AsyncIterator[client.Client]:
        """Open a client, as the driver's pool of clients does."""
        yield client.Client(
            rest.RestClient(
                session=self,  # type: ignore[arg-type]
                url="http://sim",
                proxy="",
                authorization=f"Bearer {machines.token(credentials)}",
                refusal=lambda body: rest.Refusal(**msgspec.json.decode(body)["error"]),
                codes=client.CODES,
                statuses=rest.STATUSES,
                success=rest.SUCCESS,
                quota=None,
                authorizer=None,
                answer_limit=rest.ANSWER_LIMIT,
            )
        )

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None,
        data: bytes | None,
        headers: Mapping[str, str],
        **_: Any,
    ) -> AsyncIterator[Response]:
        """Send a request, as an HTTP session does."""
        assert headers["Authorization"] == f"Bearer {CLOUD_TOKEN}"
        operation, key = _route(method, urlsplit(url).path)

        async def send() -> Response:
            await asyncio.sleep(REQUEST_S)
            answer = self._answer(operation, key, params or {}, data or b"")
            await asyncio.sleep(REQUEST_S)
            return answer

        with decoded():
            yield await self._interceptor.call(CLOUD, operation.name.replace("_", " "), send)

    def _answer(
        self, operation: Operation, key: str, query: Mapping[str, str], body: bytes
    ) -> Response:
        decoded_query = msgspec.convert(dict(query), operation.query, strict=False)
        content = msgspec.json.decode(body, type=operation.body) if operation.body else None
        try:
            answer = operation.handle(self.service, DecodedRequest(key, decoded_query, content))
        except world.WorldError as error:
            refusal = {"error": {"code": error.code, "message": str(error)}}
            return Response(ERRORS[error.code], msgspec.json.encode(refusal))
        if isinstance(answer, world.Instance) and operation.name == "create_instance":
            self._made[answer.id] = answer.name
        return Response(operation.status, msgspec.json.encode(answer))


@dataclass(frozen=True, slots=True)
class Response:
    """The part of an HTTP response that the client reads; it is its own content."""

    status: int
    body: bytes
    headers: ClassVar[Mapping[str, str]] = {}

    @property
    def content(self) -> Response:
        return self

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        yield self.body


def _route(method: str, path: str) -> tuple[Operation, str]:
    for pattern, operation in ROUTES:
        if match := pattern.fullmatch(f"{method} {path}"):
            return operation, "".join(match.groups())
    raise AssertionError(f"{method} {path}")


def _server(instance: world.Instance) -> Server:
    return Server(
        provider_id=f"{instances.SCHEME}://{instance.id}",
        name=instance.name,
        identity=machines.MARKS.to_identity(instance.labels, instance.name),
        created=parse_time(instance.created),
        initialized=bool(instance.allowed_addresses),
    )


class SimWorld(KubermaticWorld):
    """A world of the simulated cloud, whose machines have volumes."""

    account_type = SimAccount
    provider = "sim"

    def provider_spec(self, class_name: str) -> dict[str, Any]:
        spec = {
            "token": TOKEN,
            "machineType": class_name,
            "dataVolumes": [1],
            "allowedAddresses": ["10.0.0.0/8"],
        }
        return {"cloudProvider": "sim", "cloudProviderSpec": spec, "operatingSystem": "ubuntu"}

    def class_name(self, machine: Mapping[str, Any]) -> str:
        return str(machine["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["machineType"])


def _from_kubermatic(account: MemoryAccount) -> Any:
    return from_kubermatic(lambda resolver: Provider(account, resolver), names=("fake",))


def _native(account: SimAccount) -> Any:
    return KubermaticDriver(kubermatic.KubermaticMachines(account), {})  # type: ignore[arg-type]


WORLDS: Mapping[str, Callable[[], CrashWorld]] = {
    "kubermatic": partial(KubermaticWorld, _from_kubermatic, initializes=False),
    "kubermatic-sim": partial(SimWorld, _native),
}
"""Worlds of Kubermatic's machine objects by the kind of their driver."""
