"""Kubermatic's machine provider interface, and adapters from and to machine drivers.

A provider written to `KubermaticProvider` becomes a machine driver by `from_kubermatic`:

```python
@cloud.provider(sdk="2.0", offers=("machines",))
async def open_cloud(context):
    async with AcmeClient() as client:
        driver = cloud.from_kubermatic(lambda resolver: Acme(client, resolver), names=("acme",))
        yield cloud.Cloud(name="acme", kubermatic=driver)
```

A driver that implements `KubermaticSpecs` serves Kubermatic's machines too, and `to_kubermatic`
wraps it as a `KubermaticProvider`.

Kubermatic's provider spec, the field `spec.providerSpec.value` of a machine, is decoded by
`decode_config`. The daemon reads the Secrets and ConfigMaps to which the spec refers, and passes
their data as the `credentials` of each request to the driver; see `credentials_of`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import msgspec

from ccm.base import clock
from ccm.cloud import errors
from ccm.cloud.blocking import blocking, invoke
from ccm.cloud.configvar import Lookup, Reference, Resolver, decode, references, to_json
from ccm.cloud.journal import JournalParts, MachineAccounts, PartRequest
from ccm.cloud.machines import (
    Credentials,
    DeleteMachineResponse,
    Driver,
    GetVolumeIDsRequest,
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineMetrics,
    MachineMetricsUpdate,
    MachineRecord,
    MachineRequest,
    Marks,
    Phase,
    Problem,
    SpecValidation,
    partial_info,
)
from ccm.model import NodeAddress

S = TypeVar("S", bound=msgspec.Struct)
R = TypeVar("R", MachineRequest, ListMachinesRequest, PartRequest)

# --- errors -------------------------------------------------------------------------------------


class ErrorReason(StrEnum):
    """Reason of a `TerminalError`; the value of `status.errorReason` (Kubermatic's names)."""

    INVALID_CONFIGURATION = "InvalidConfiguration"
    UNSUPPORTED_CHANGE = "UnsupportedChange"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    CREATE = "CreateError"
    UPDATE = "UpdateError"
    DELETE = "DeleteError"
    JOIN_TIMEOUT = "JoinClusterTimeoutError"


class InstanceNotFound(Exception):
    """The cloud confirms that the machine has no instance.

    An error that merely has an `InstanceNotFound` as its cause does not count as absence.
    """


class TerminalError(Exception):
    """An error that a user must correct; it may also be the cause of another error.

    The daemon retries seldom, and shows message and reason in the machine's status. While the
    machine is being deleted, `status.errorReason` is `DeleteError`. Otherwise it is `reason`,
    except that `UnsupportedChange` replaces a reason of the provider, `UPDATE`, `DELETE` and
    `JOIN_TIMEOUT`.

    Attributes:
        reason: an `ErrorReason`, or a reason of the provider.
        message: what is wrong and what would be right.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = str(reason)
        self.message = message


class OSNotSupported(TerminalError):
    """The provider has no image for an operating system."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorReason.INVALID_CONFIGURATION, message)


_KINDS: Mapping[str, type[errors.CloudError]] = {
    ErrorReason.INVALID_CONFIGURATION: errors.InvalidArgument,
    ErrorReason.UNSUPPORTED_CHANGE: errors.FailedPrecondition,
    ErrorReason.INSUFFICIENT_RESOURCES: errors.ResourceExhausted,
    ErrorReason.CREATE: errors.AlreadyExists,
}
"""Reason of a terminal error -> error class of the driver; `FailedPrecondition` for others."""


def reason_of(error: errors.CloudError) -> str:
    """Return the reason of a terminal error; empty = the error is transient."""
    if terminal := _terminal(error):
        return terminal.reason
    match error:
        case errors.InvalidArgument() | errors.OutOfRange():
            return ErrorReason.INVALID_CONFIGURATION
        case errors.Unauthenticated() | errors.PermissionDenied():
            return ErrorReason.INVALID_CONFIGURATION
        case errors.ResourceExhausted():
            return ErrorReason.INSUFFICIENT_RESOURCES
        case errors.FailedPrecondition():
            return ErrorReason.UNSUPPORTED_CHANGE
        case errors.AlreadyExists():
            return ErrorReason.CREATE
        case _:
            return ""


# --- provider spec ------------------------------------------------------------------------------


class OperatingSystem(StrEnum):
    """Operating systems of a machine (`operatingSystem`); a provider needs an image for each."""

    UBUNTU = "ubuntu"
    CENTOS = "centos"
    COREOS = "coreos"
    AMAZON_LINUX = "amzn2"
    RHEL = "rhel"
    FLATCAR = "flatcar"
    ROCKY_LINUX = "rockylinux"


CLOUD_PROVIDERS = frozenset(
    {
        "alibaba",
        "anexia",
        "aws",
        "azure",
        "baremetal",
        "digitalocean",
        "edge",
        "equinixmetal",
        "external",
        "fake",
        "gce",
        "hetzner",
        "kubevirt",
        "linode",
        "nutanix",
        "opennebula",
        "openstack",
        "packet",
        "scaleway",
        "sim",
        "stackit",
        "vmware-cloud-director",
        "vsphere",
        "vultr",
    }
)
"""Values of `cloudProvider`: Kubermatic's, `sim` and `stackit`. A daemon serves only its driver's
`provider_names`, which need not be in this set.
"""


class DNSConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """DNS servers of a machine."""

    servers: tuple[str, ...] = ()


class NetworkConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Static network configuration of a machine."""

    cidr: str = ""
    gateway: str = ""
    dns: DNSConfig = DNSConfig()
    ip_family: str = ""


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Content of `spec.providerSpec.value` of a machine.

    Attributes:
        ssh_public_keys: keys in the format of authorized_keys.
        ca_public_key: public key of the CA that certifies SSH users.
        cloud_provider: name of the provider.
        cloud_provider_spec: properties of the instance, in the schema of the provider.
        operating_system: an `OperatingSystem`.
        operating_system_spec: settings of the operating system; None = not set.
        network: static network configuration; None = not set.
        overwrite_cloud_config: kept, but not read, as in Kubermatic.
    """

    ssh_public_keys: tuple[str, ...] = ()
    ca_public_key: str = ""
    cloud_provider: str = ""
    cloud_provider_spec: Mapping[str, Any] = msgspec.field(default_factory=dict)
    operating_system: str = ""
    operating_system_spec: Mapping[str, Any] | None = None
    network: NetworkConfig | None = None
    overwrite_cloud_config: str | None = None


def decode_config(value: Mapping[str, Any] | None, *, strict: bool = True) -> ProviderConfig:
    """Decode `spec.providerSpec.value`. Unknown fields are errors, unless `strict` is False.

    Raises:
        InvalidArgument: the value is missing or invalid; the message names every wrong field.
    """
    if value is None:
        raise errors.InvalidArgument(f"{_WHERE} is missing; set cloudProvider and operatingSystem")
    return decode(value, ProviderConfig, where=_WHERE, strict=strict)


def decode_spec(config: ProviderConfig, declared: type[S], *, strict: bool = True) -> S:
    """Decode `cloudProviderSpec` to a Struct whose fields may be config variables.

    With `strict` False, an invalid field counts as unset.

    Raises:
        InvalidArgument: the spec is invalid; the message names every wrong field.
    """
    where = f"{_WHERE}.cloudProviderSpec"
    return decode(config.cloud_provider_spec, declared, where=where, strict=strict)


_WHERE = "spec.providerSpec.value"


def encode_config(config: ProviderConfig) -> dict[str, Any]:
    """Return a provider spec as JSON, without the fields that have their defaults."""
    return {
        name: value for name, value in to_json(config).items() if value not in ("", None, [], ())
    }


_UPGRADE = {"distUpgradeOnBoot": False}
_FLATCAR = {
    "disableAutoUpdate": False,
    "disableLocksmithD": False,
    "disableUpdateEngine": False,
    "provisioningUtility": "ignition",
}


def default_operating_system(config: ProviderConfig) -> ProviderConfig:
    """Return the config with defaults for `operatingSystemSpec`.

    As in Kubermatic, unknown fields are removed for Flatcar, and kept for other systems.

    Raises:
        OSNotSupported: the operating system is unknown.
    """
    try:
        system = OperatingSystem(config.operating_system)
    except ValueError:
        known = ", ".join(OperatingSystem)
        raise OSNotSupported(
            f"operatingSystem is {config.operating_system!r}; it must be one of {known}"
        ) from None
    spec = config.operating_system_spec
    if system is OperatingSystem.FLATCAR:
        given = {key: value for key, value in (spec or {}).items() if key in _FLATCAR}
        spec = _FLATCAR | {key: value for key, value in given.items() if value not in ("", None)}
    elif spec is None:
        spec = dict(_UPGRADE)
    return msgspec.structs.replace(config, operating_system_spec=spec)


# --- the interface ------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class KubermaticMachineSpec:
    """Spec of a machine.

    Attributes:
        provider_spec: content of `providerSpec.value`; see `decode_config`.
        kubelet_version: version of the kubelet.
        provider_id: provider ID of the instance; empty = not set.
    """

    provider_spec: Mapping[str, Any] | None = None
    kubelet_version: str = ""
    provider_id: str = ""


@dataclass(slots=True, kw_only=True)
class KubermaticMachine:
    """Machine as a provider sees it.

    Attributes:
        name: name of machine, instance and node.
        namespace: namespace of the machine.
        uid: UID of the machine; the instance must carry it.
        spec: spec of the machine.
        provider_status: state of the provider, stored with the machine (`status.providerStatus`).
    """

    name: str
    namespace: str = ""
    uid: str = ""
    spec: KubermaticMachineSpec = field(default_factory=KubermaticMachineSpec)
    provider_status: Any = None


class KubermaticInstanceStatus(StrEnum):
    """State of an instance."""

    RUNNING = "running"
    DELETING = "deleting"
    DELETED = "deleted"
    CREATING = "creating"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubermaticInstance:
    """Instance in the cloud.

    Attributes:
        name: name of the instance.
        id: identifier in the cloud.
        provider_id: `spec.providerID` of the instance's node; empty = unknown.
        addresses: address -> its type (`InternalIP`, `ExternalIP`, `InternalDNS`, `ExternalDNS` or
            `Hostname`).
        status: state of the instance.
    """

    name: str
    id: str = ""
    provider_id: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    status: KubermaticInstanceStatus = KubermaticInstanceStatus.UNKNOWN


Modifier = Callable[[KubermaticMachine], object]
"""Function that changes the machine passed to it."""


class ProviderData:
    """Access to the machine object for a provider during `create` and `cleanup`."""

    def update(self, machine: KubermaticMachine, *modifiers: Modifier) -> None:
        """Apply modifiers to the machine.

        When `create` or `cleanup` has returned or failed, the daemon stores `provider_status`, but
        no other change. A provider needs no finalizers of its own: the daemon records the creation
        before it calls `create`, and repeats `cleanup` until that returns True.
        """
        for modify in modifiers:
            modify(machine)


class KubermaticProvider(Protocol):
    """Interface of a machine provider of Kubermatic's machine-controller.

    Methods may be synchronous, or coroutines; the daemon calls synchronous ones in a thread, except
    `add_defaults`, `get_cloud_config` and `machine_metrics_labels`, which must return at once and
    make no request. Calls about one machine never overlap.

    After a transient error, the call is repeated after five seconds. After any other error, the
    delay is three minutes for a new machine, and ten minutes if quota or capacity is exhausted or
    the machine is being deleted. A change of the spec or of its Secrets ends this delay. Classes of
    errors:

    - `TerminalError`, also as the cause of another error: not transient.
    - `InstanceNotFound`: a result of `get` and `cleanup`. Other methods must not raise it.
    - Errors of `ccm.cloud` keep their class, except that `NotFound` and `Internal` count as
      `Unknown`. `Unavailable`, `DeadlineExceeded`, `Aborted` and `Unknown` are transient;
      `RetryAfter` has its own delay.
    - A `TimeoutError` counts as `DeadlineExceeded`, any other exception as `Unknown`.
    """

    def add_defaults(self, spec: KubermaticMachineSpec) -> KubermaticMachineSpec:
        """Return a copy of the spec with the provider's defaults.

        Called by the admission webhook when a Machine is created or the template of a
        MachineDeployment changes. The result is stored. A webhook reads neither Secrets nor
        ConfigMaps: the resolver raises `Unimplemented` for a reference. If the provider does not
        catch that error, the spec is stored without defaults.

        Raises:
            TerminalError: the spec is invalid; the request is denied, as after any other error
                except `Unimplemented`.
        """

    def validate(self, spec: KubermaticMachineSpec) -> Awaitable[None] | None:
        """Check the spec; may call the cloud.

        Called before `create`, never by a webhook. A result other than a transient error is
        cached for five minutes, and counts for all equal specs with equal Secrets. After any error,
        no instance is created, and the machine's status shows the error.

        Raises:
            TerminalError: the spec is invalid.
            OSNotSupported: there is no image for the operating system.
        """

    def get(self, machine: KubermaticMachine) -> Awaitable[KubermaticInstance] | KubermaticInstance:
        """Return the instance that carries the machine's UID.

        Called before `create`, and whenever the daemon needs the state of the instance.

        Raises:
            InstanceNotFound: the cloud confirms that there is no such instance. For a new machine,
                one is created. A machine that has had an instance is replaced after two such
                errors, unless its node is ready. After any other error, nothing is created or
                replaced.
        """

    def get_cloud_config(self, spec: KubermaticMachineSpec) -> tuple[str, str]:
        """Return the content of the kubelet's cloud config and the name of the in-tree provider.

        Kept for compatibility: the daemon never calls it. Two empty strings = none.
        """

    def create(
        self, machine: KubermaticMachine, data: ProviderData, userdata: str
    ) -> Awaitable[KubermaticInstance] | KubermaticInstance:
        """Create the instance, with the machine's UID in its labels or tags.

        Called after `get` raised `InstanceNotFound`. The creation is recorded on the machine before
        the call. After any error, the instance may exist: `get` looks for it again.

        Raises:
            TerminalError: the cloud cannot create this instance; the machine's status shows the
                error.
        """

    def cleanup(self, machine: KubermaticMachine, data: ProviderData) -> Awaitable[bool] | bool:
        """Delete the instance and everything created with it.

        Returns:
            True: nothing is left, or there was nothing. False: the deletion is in progress; the
            call is repeated after ten seconds.

        Raises:
            InstanceNotFound: counts as True.
            TerminalError: the cloud refuses the deletion; the machine is kept, and its status shows
                the error.
        """

    def machine_metrics_labels(self, machine: KubermaticMachine) -> Mapping[str, str]:
        """Return the labels of the metric that counts machines, including `size`.

        Only the provider spec of `machine` is set: machines with equal specs share the labels. The
        daemon adds the version of the kubelet. After an error, `size` is empty.
        """

    def migrate_uid(self, machine: KubermaticMachine, uid: str) -> Awaitable[None] | None:
        """Replace the machine's UID in the labels or tags of its instance; keep all other labels.

        Called for a machine whose annotation names its former UID; the argument `machine` still has
        that UID. Succeeds if there is no instance. Not called if another instance has the new UID.
        Until the call succeeds, the machine gets no instance, and is not deleted.

        Args:
            machine: the machine with its former UID.
            uid: the new UID.
        """

    def set_metrics_for_machines(
        self, machines: Sequence[KubermaticMachine]
    ) -> Awaitable[None] | None:
        """Update metrics of the provider; called every ten minutes with all its machines.

        An error is only logged.
        """


# --- credentials --------------------------------------------------------------------------------


def credentials_of(found: Mapping[Reference, Mapping[str, bytes] | None]) -> Credentials:
    """Return the data of the referenced objects as credentials of a request.

    Args:
        found: reference -> data of its object; None = the object does not exist.
    """
    data: dict[str, bytes] = {}
    for reference, contents in found.items():
        if contents is None:
            continue
        place = f"{reference.kind}/{reference.namespace}/{reference.name}"
        data[place] = b""
        if reference.key in contents:
            data[f"{place}/{reference.key}"] = contents[reference.key]
    return Credentials(data)


def lookup_in(credentials: Credentials) -> Lookup:
    """Return a `Lookup` that reads credentials made by `credentials_of`."""

    def lookup(reference: Reference) -> Mapping[str, bytes] | None:
        place = f"{reference.kind}/{reference.namespace}/{reference.name}"
        if place not in credentials:
            return None
        value = credentials.get(f"{place}/{reference.key}")
        return {} if value is None else {reference.key: value}

    return lookup


# --- marks of instances -------------------------------------------------------------------------

MACHINE_UID = "machine-uid"
"""Label with which Kubermatic's machine-controller marks an instance; its value is the machine's
UID."""


class KubermaticMarks(Marks):
    """Marks of a VM, and the label `machine-uid` of Kubermatic's machine-controller.

    A VM that has only the label `machine-uid` was created by Kubermatic's machine-controller, and
    belongs to the machine with this UID too.
    """

    def to_labels(self, owner: Identity) -> dict[str, str]:
        """Return an identity as labels."""
        return super().to_labels(owner) | {MACHINE_UID: owner.uid}

    def selector(self, owner: Identity) -> Mapping[str, str]:
        """Return the label by which the resources of an identity are found."""
        return {MACHINE_UID: owner.uid}

    def match(self, labels: Mapping[str, Any] | None, owner: Identity) -> bool:
        """Return whether a VM's labels have the UID of `owner` and do not name another cluster."""
        labels = labels or {}
        is_ours = labels.get(self.cluster, owner.cluster) == owner.cluster
        return bool(owner.uid) and is_ours and labels.get(MACHINE_UID) == owner.uid


# --- from a provider to a driver ----------------------------------------------------------------

MAX_AGE_S = 300.0
"""Seconds for which the result of a validation is cached (Kubermatic: 5 minutes)."""

CLEANUP_RETRY_S = 10.0
"""Delay before an unfinished clean-up is repeated (Kubermatic: 10 s)."""

_MAX_RESULTS = 1024
"""Maximum number of cached validations; a cluster has fewer different specs."""


@dataclass(slots=True)
class _Validation:
    """Result of a validation.

    Attributes:
        count: number of validations so far.
        checked_at: monotonic time of the last validation in seconds; -inf = none, or a transient
            failure.
        failure: error class, message and reason (empty for a transient failure); None = the spec is
            valid.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    checked_at: float = -math.inf
    failure: tuple[type[errors.CloudError], str, str] | None = None

    async def run(self, validate: Callable[[], Awaitable[object]]) -> None:
        """Call `validate`, and store the result. Raises `CloudError` for a transient failure."""
        began = clock.monotonic()
        try:
            await validate()
        except Exception as raised:  # noqa: BLE001 - a provider may raise anything
            error = _to_cloud_error(raised)
            reason = reason_of(error)
            # Calls that waited meanwhile get a transient failure, too; later ones validate again.
            kind = type(error) if reason else errors.Unavailable
            self._store(began if reason else -math.inf, (kind, str(error), reason))
            if not reason:
                raise error from error.__cause__
        else:
            self._store(began, None)

    def _store(
        self, checked_at: float, failure: tuple[type[errors.CloudError], str, str] | None
    ) -> None:
        self.checked_at, self.failure, self.count = checked_at, failure, self.count + 1


class ValidationCache:
    """Cache of the results of `validate`, successes and terminal errors.

    The key covers the whole spec and the contents of its Secrets, so a correction counts at once.
    Many machines have the same spec: concurrent checks of one key share a call.
    """

    def __init__(self) -> None:
        self._results: dict[bytes, _Validation] = {}

    async def check(
        self, spec: Mapping[str, Any], digest: str, validate: Callable[[], Awaitable[object]]
    ) -> None:
        """Validate a spec, or raise the cached error.

        Args:
            spec: the spec.
            digest: digest of the credentials, followed by other values that determine the result.
            validate: validates the spec.

        Raises:
            CloudError: the spec is invalid, or the validation failed.
        """
        key = sha256(digest.encode() + _ORDERED.encode(spec)).digest()
        # Inserted again, so that the newest result is the last.
        result = self._results[key] = self._results.pop(key, _Validation())
        while len(self._results) > _MAX_RESULTS:
            del self._results[next(iter(self._results))]
        before = result.count
        async with result.lock:
            is_old = clock.monotonic() - result.checked_at >= MAX_AGE_S
            if is_old and result.count == before:
                await result.run(validate)
        if result.failure is not None:
            # A new error each time: callers attach the state of their machines to it.
            kind, text, reason = result.failure
            raise kind(text) from TerminalError(reason, text) if reason else None


_ORDERED = msgspec.json.Encoder(order="deterministic")


def _terminal(error: BaseException) -> TerminalError | None:
    """Return the terminal error among an error and its explicit causes; None if there is none."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        if isinstance(current, TerminalError):
            return current
        seen.append(current)
        current = current.__cause__
    return None


def from_kubermatic(
    make: Callable[[Resolver], KubermaticProvider],
    *,
    names: Collection[str],
    environ: Mapping[str, str] | None = None,
) -> FromKubermatic:
    """Adapt a provider with Kubermatic's interface.

    Args:
        make: returns a provider that reads config variables with the given resolver. It is called
            for each request, as by Kubermatic, so share clients and rate limits between the
            providers.
        names: values of `cloudProvider` that the provider serves; at least one.
        environ: environment variables that replace values which a provider spec leaves out;
            None = no variables. The daemon does not notice if such a variable names another
            account after a restart: machines of the former account then count as deleted.

    Raises:
        ValueError: `names` is empty, or is a string instead of a collection.
    """
    if not names or isinstance(names, str):
        raise ValueError(f"names is {names!r}; set a tuple of values of cloudProvider: ('acme',)")
    return FromKubermatic(make, names=names, environ=environ or {})


class FromKubermatic(Driver[Callable[[Resolver], KubermaticProvider]]):
    """`MachineDriver` that delegates to a provider with Kubermatic's interface.

    The provider spec of a request is `spec.providerSpec.value` of a machine. Such a provider cannot
    list its instances, so orphaned instances are not found. An instance belongs to the machine
    whose UID is in the labels or tags of the instance.
    """

    lists_machines = False

    def __init__(
        self,
        make: Callable[[Resolver], KubermaticProvider],
        *,
        names: Collection[str],
        environ: Mapping[str, str],
    ) -> None:
        super().__init__(make)
        self.provider_names = tuple(names)
        self._environ = environ
        self._validations = ValidationCache()

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        """Return the existing instance; if there is none, validate the spec and create one."""
        provider, machine = self._provider(req), to_machine(req)

        async def create() -> KubermaticInstance:
            try:
                instance: KubermaticInstance = await invoke(provider.get, machine)
            except InstanceNotFound:
                await self.check_creation(req)
                text = req.user_data.decode()
                instance = await invoke(provider.create, machine, ProviderData(), text)
            return instance

        return await self._call(machine, create, req)

    async def check_creation(self, req: MachineRequest) -> None:
        """Validate the spec; see `CreationCheck.check_creation`."""
        provider, machine = self._provider(req), to_machine(req)
        with _cloud_errors(machine, req):
            await self._validations.check(
                req.provider_spec,
                req.credentials.digest + req.kubelet_version,
                lambda: invoke(provider.validate, machine.spec),
            )

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        """Return the instance that carries the machine's UID."""
        provider, machine = self._provider(req), to_machine(req)
        return await self._call(machine, lambda: invoke(provider.get, machine), req)

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        """Call `cleanup`; raise `RetryAfter` until it returns True."""
        provider, machine = self._provider(req), to_machine(req)
        with _cloud_errors(machine, req):
            is_gone = await invoke(provider.cleanup, machine, ProviderData())
        if not is_gone:
            text = "the instance is being deleted"
            raise errors.RetryAfter(text, seconds=CLEANUP_RETRY_S).carrying(_partial(machine, req))
        return DeleteMachineResponse(last_known_state=_stored(machine, req))

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        """Raise `Unimplemented`: Kubermatic's interface has no listing."""
        raise errors.Unimplemented(f"a Kubermatic provider cannot list the machines of {req.pool}")

    async def migrate_uid(self, req: MachineRequest, former: str) -> None:
        """Replace the UID `former` in the instance's labels or tags by the UID of the request.

        Raises:
            CloudError: the call failed.
        """
        provider, machine = self._provider(req), to_machine(req)
        machine.uid = former
        with _cloud_errors(machine, req):
            await invoke(provider.migrate_uid, machine, req.identity.uid)

    def add_defaults(self, spec: Mapping[str, Any], kubelet_version: str) -> Mapping[str, Any]:
        """See `KubermaticDefaults.add_defaults`."""
        given = KubermaticMachineSpec(
            provider_spec=deepcopy(dict(spec)), kubelet_version=kubelet_version
        )
        try:
            provider = self.spi(Resolver(_refuse_lookup, self._environ))
            return provider.add_defaults(given).provider_spec or {}
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            failure = _to_cloud_error(error)
            raise failure from failure.__cause__

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """See `MachineMetrics.machine_metrics_labels`."""
        machine = KubermaticMachine(name="", spec=KubermaticMachineSpec(provider_spec=spec))
        try:
            # Without credentials: labels are read at every scrape.
            labels = self.spi(self._resolver(Credentials({}))).machine_metrics_labels(machine)
        except Exception:  # noqa: BLE001 - an unreadable spec must not break the metrics
            labels = {}
        return {"size": "", **labels}

    async def set_metrics_for_machines(self, requests: Sequence[MachineRequest]) -> None:
        """Call the provider with all machines; its resolver reads the credentials of all."""
        found = {key: value for req in requests for key, value in req.credentials.items()}
        provider = self.spi(self._resolver(Credentials(found)))
        machines = await blocking(lambda: [to_machine(req) for req in requests])
        await invoke(provider.set_metrics_for_machines, machines)

    def _provider(self, req: MachineRequest) -> KubermaticProvider:
        return self.spi(self._resolver(req.credentials))

    def _resolver(self, credentials: Credentials) -> Resolver:
        return Resolver(lookup_in(credentials), self._environ)

    async def _call(
        self,
        machine: KubermaticMachine,
        call: Callable[[], Awaitable[KubermaticInstance]],
        req: MachineRequest,
    ) -> MachineInfo:
        with _cloud_errors(machine, req):
            instance = await call()
        made_up = f"{MADE_UP_ID}{self.name_of(req)}/{machine.uid}"
        info = MachineInfo(
            provider_id=instance.provider_id or made_up,
            node_name=instance.name,
            addresses=tuple(
                NodeAddress(type=kind, address=address)
                for address, kind in instance.addresses.items()
            ),
            phase=_PHASES.get(instance.status, Phase.UNKNOWN),
            last_known_state=_stored(machine, req),
        )
        return _keep_made_up_id(info, req)

    def name_of(self, req: MachineRequest) -> str:
        """Return the name of the provider in a request's spec."""
        return str(req.provider_spec.get("cloudProvider", "")) or next(iter(self.provider_names))


def _refuse_lookup(reference: Reference) -> Mapping[str, bytes] | None:
    raise errors.Unimplemented(f"{reference} is not read by a webhook")


_PHASES = {
    KubermaticInstanceStatus.RUNNING: Phase.RUNNING,
    KubermaticInstanceStatus.CREATING: Phase.CREATING,
    KubermaticInstanceStatus.DELETING: Phase.DELETING,
    KubermaticInstanceStatus.DELETED: Phase.DELETING,
}


MADE_UP_ID = "kubermatic://"
"""Prefix of the provider IDs that Kubermatic's machine-controller sets on machines and nodes of a
cluster without a cloud-controller-manager: `kubermatic://<cloudProvider>/<UID of the machine>`."""


def _keep_made_up_id(info: MachineInfo, req: MachineRequest) -> MachineInfo:
    """Return the data about a VM, with the machine's provider ID if that is made up (`MADE_UP_ID`).

    The VM was found by UID, and the ID on machine and node cannot change.
    """
    is_made_up = req.provider_id.startswith(MADE_UP_ID)
    return replace(info, provider_id=req.provider_id) if is_made_up else info


def to_machine(req: MachineRequest) -> KubermaticMachine:
    """Return the `KubermaticMachine` for a request to the driver."""
    identity, state = req.identity, req.last_known_state
    return KubermaticMachine(
        name=identity.name,
        namespace=identity.namespace,
        uid=identity.uid,
        spec=KubermaticMachineSpec(
            provider_spec=deepcopy(dict(req.provider_spec)),
            kubelet_version=req.kubelet_version,
            provider_id=req.provider_id,
        ),
        provider_status=_provider_status(state),
    )


def _provider_status(state: str) -> Any:
    try:
        return msgspec.json.decode(state) if state else None
    except msgspec.DecodeError:
        return state  # a string that is no JSON is stored as it is


def _stored(machine: KubermaticMachine, req: MachineRequest) -> str | None:
    """Return the provider's state to store with the machine; None = unchanged."""
    status = machine.provider_status
    state = status or "" if isinstance(status, str | None) else _ORDERED.encode(status).decode()
    if isinstance(status, str) and state and _provider_status(state) != status:
        # Text such as 42 would be decoded to a number.
        state = _ORDERED.encode(status).decode()
    return None if state == req.last_known_state else state


@contextmanager
def _cloud_errors(machine: KubermaticMachine, req: MachineRequest) -> Iterator[None]:
    """Convert the exceptions of a provider; each error carries the provider's state."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a provider may raise anything
        failure = _to_cloud_error(error).carrying(_partial(machine, req))
        raise failure from failure.__cause__


def _partial(machine: KubermaticMachine, req: MachineRequest) -> MachineInfo:
    state = _stored(machine, req)
    # After most errors, the controller deletes a stored state that the error does not carry.
    return MachineInfo(last_known_state=req.last_known_state if state is None else state)


def _to_cloud_error(error: Exception) -> errors.CloudError:
    """Convert a provider's exception to a `CloudError`; a new error has the exception as cause."""
    cloud_error: errors.CloudError
    if isinstance(error, InstanceNotFound):
        cloud_error = errors.NotFound(str(error) or "no instance has the machine's UID")
    elif terminal := _terminal(error):
        kind = _KINDS.get(terminal.reason)
        # `errorReason` cannot be a reason of the provider: the message has it.
        cloud_error = kind(terminal.message) if kind else errors.FailedPrecondition(str(terminal))
        error = terminal
    else:
        normal = errors.normalize(error)
        if not isinstance(normal, errors.NotFound | errors.Internal):
            return normal
        # Only InstanceNotFound reports absence; an outage must not look like absence. All other
        # exceptions are transient in this interface, but Internal is not.
        cloud_error = errors.Unknown(str(normal))
    cloud_error.__cause__ = error
    return cloud_error


# --- from a driver to a provider ----------------------------------------------------------------


@runtime_checkable
class KubermaticDefaults(Protocol):
    """Optional interface of the driver `Cloud.kubermatic`: defaults of provider specs."""

    def add_defaults(self, spec: Mapping[str, Any], kubelet_version: str) -> Mapping[str, Any]:
        """Return `spec.providerSpec.value` of a machine with the provider's defaults; no I/O.

        Raises:
            Unimplemented: the defaults depend on a Secret or ConfigMap.
            TerminalError, CloudError: the spec is invalid.
        """


@runtime_checkable
class KubermaticSpecs(Protocol):
    """Optional interface of a `MachineDriver`: the driver serves Kubermatic's machines too.

    Attributes:
        location_fields: fields of `cloudProviderSpec` that say where a VM is. Only their values and
            the credentials are needed for a lookup or a deletion: a missing Secret or ConfigMap of
            another field blocks neither.
    """

    location_fields: Collection[str]

    def add_kubermatic_defaults(self, config: ProviderConfig) -> ProviderConfig:
        """Return the config with the driver's defaults; no I/O.

        Raises:
            TerminalError: the spec is invalid.
        """

    def kubermatic_spec(
        self, config: ProviderConfig, resolver: Resolver, *, strict: bool
    ) -> Mapping[str, Any]:
        """Return the provider spec in the driver's own schema; no I/O.

        With `strict` False, the spec is needed for a lookup or a deletion: leave out invalid
        fields. After an error, this method is called again with the `location_fields` only.

        The caller has checked that the operating system is an `OperatingSystem`.

        Raises:
            TerminalError: the spec is invalid.
            OSNotSupported: there is no image for the operating system.
            CloudError: a config variable cannot be read.
        """

    def kubermatic_credentials(self, spec: Mapping[str, Any], resolver: Resolver) -> Credentials:
        """Return the credentials in `cloudProviderSpec`; no I/O.

        Other fields of the spec may be invalid: instances with an older spec must be found and
        deleted.

        Raises:
            CloudError: a config variable cannot be read.
        """

    async def migrate_uid(self, req: MachineRequest, former: str) -> None:
        """Replace the UID `former` in the labels or tags of a VM by the UID of the request.

        All other labels stay. Succeeds if there is no such VM.
        """


class DeclaredSpec:
    """Base class of drivers with `KubermaticSpecs` that have no defaults.

    Attributes:
        declared: Struct that declares `cloudProviderSpec`.
    """

    declared: ClassVar[type[msgspec.Struct]]

    def add_kubermatic_defaults(self, config: ProviderConfig) -> ProviderConfig:
        """Return the config unchanged. Raises `InvalidArgument` for an invalid spec."""
        decode_spec(config, self.declared)
        return config


class KubermaticDriver(Driver[Any]):
    """`MachineDriver` for Kubermatic's machines on top of a driver with `KubermaticSpecs`.

    Each request is passed on with the provider spec and the credentials converted. Before a
    creation, the spec is validated (`SpecValidation`, live), and the result cached. If the machine
    has a made-up provider ID (`MADE_UP_ID`), the driver gets a request without provider ID and
    finds the VM by the machine's UID. `get_machine_status` then returns the made-up provider ID.

    Args:
        driver: the driver; implements `KubermaticSpecs`.
        environ: environment variables for config variables.
    """

    def __init__(self, driver: Any, environ: Mapping[str, str]) -> None:
        super().__init__(driver)
        self._validations = ValidationCache()
        self._location_fields = driver.location_fields
        self.provider_names = driver.provider_names
        self.csi_driver = driver.csi_driver
        self.finds_by_name = driver.finds_by_name
        self.lists_machines = driver.lists_machines
        self._environ = environ
        if isinstance(driver, MachineMetricsUpdate):
            # An attribute: the wrapper has the optional interface only if the driver has it.
            self.set_metrics_for_machines = self._set_metrics_for_machines
        if isinstance(driver, JournalParts):
            self.find_part, self.delete_part = self._find_part, self._delete_part
        if isinstance(driver, MachineAccounts):
            self.machine_account = self._machine_account

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        """See `MachineDriver.create_machine`; an invalid spec creates nothing."""
        await self.check_creation(req)
        info: MachineInfo = await self.spi.create_machine(self.converted(req, strict=True))
        return info

    async def check_creation(self, req: MachineRequest) -> None:
        """Validate the spec; see `CreationCheck.check_creation`."""
        spec, credentials = req.provider_spec, req.credentials

        async def validate() -> None:
            if problems := await self.validate_spec(spec, credentials, live=True):
                raise errors.InvalidArgument("; ".join(map(str, problems)))

        await self._validations.check(spec, credentials.digest, validate)

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        """See `MachineDriver.initialize_machine`."""
        info: MachineInfo = await self.spi.initialize_machine(self.converted(req, strict=True))
        return info

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        """See `MachineDriver.delete_machine`."""
        response: DeleteMachineResponse = await self.spi.delete_machine(self.converted(req))
        return response

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        """See `MachineDriver.get_machine_status`."""
        try:
            info: MachineInfo = await self.spi.get_machine_status(self.converted(req))
        except errors.Uninitialized as error:
            error.carrying(_keep_made_up_id(partial_info(error), req))
            raise
        return _keep_made_up_id(info, req)

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        """See `MachineDriver.list_machines`."""
        records: Sequence[MachineRecord] = await self.spi.list_machines(self.converted(req))
        return records

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: Credentials, live: bool
    ) -> Sequence[Problem]:
        """See `SpecValidation.validate_spec`."""
        try:
            converted = self._spec(spec, credentials, strict=True)
            own = self.spi.kubermatic_credentials(_native(spec), self._resolver(credentials))
        except (TerminalError, errors.CloudError) as error:
            return [Problem(field="", message=str(error))]
        if not isinstance(self.spi, SpecValidation):
            return []
        return await self.spi.validate_spec(converted, own, live)

    async def get_volume_ids(self, req: GetVolumeIDsRequest) -> Sequence[str]:
        """See `MachineDriver.get_volume_ids`."""
        ids: Sequence[str] = await self.spi.get_volume_ids(req)
        return ids

    async def migrate_uid(self, req: MachineRequest, former: str) -> None:
        """See `KubermaticSpecs.migrate_uid`."""
        await self.spi.migrate_uid(self.converted(req), former)

    def add_defaults(
        self,
        spec: Mapping[str, Any],
        kubelet_version: str,  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """See `KubermaticDefaults.add_defaults`; fields without a new value stay as they are."""
        config = decode_config(spec)
        before = encode_config(config)
        after = encode_config(self.spi.add_kubermatic_defaults(config))
        kept = {name: value for name, value in spec.items() if name not in before or name in after}
        return kept | {name: after[name] for name in after if after[name] != before.get(name)}

    def used_variables(
        self, spec: Mapping[str, Any], credentials: Credentials
    ) -> Mapping[str, str]:
        """See `used_variables`."""
        resolver = self._resolver(credentials)
        # A driver may raise anything; the requests of the machine report it.
        with suppress(Exception):
            self.spi.kubermatic_credentials(_native(spec), resolver)
        return resolver.used_variables

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """See `MachineMetrics.machine_metrics_labels`."""
        try:
            # Without credentials: labels are read at every scrape.
            native = self._spec(spec, Credentials({}), strict=True)
        except (TerminalError, errors.CloudError):
            return {"size": ""}
        if not isinstance(self.spi, MachineMetrics):
            return {"size": ""}
        return self.spi.machine_metrics_labels(native)

    async def _find_part(self, req: PartRequest) -> str | None:
        part: str | None = await self.spi.find_part(self.converted(req))
        return part

    async def _delete_part(self, req: PartRequest) -> None:
        await self.spi.delete_part(self.converted(req))

    def _machine_account(self, req: MachineRequest) -> str:
        return str(self.spi.machine_account(self.converted(req)))

    async def _set_metrics_for_machines(self, requests: Sequence[MachineRequest]) -> None:
        converted = []
        for req in requests:
            with suppress(errors.CloudError):
                converted.append(self.converted(req))
        await self.spi.set_metrics_for_machines(converted)

    def converted(self, req: R, *, strict: bool = False) -> R:
        """Return a request in the schema of the driver.

        Args:
            req: the request.
            strict: whether an invalid spec is an error. Otherwise the converted spec lacks invalid
                fields; if a config variable cannot be read, the spec has only the
                `location_fields`.

        Raises:
            CloudError: the spec is invalid, or its credentials or location cannot be read.
        """
        resolver = self._resolver(req.credentials)
        credentials = self.spi.kubermatic_credentials(_native(req.provider_spec), resolver)
        try:
            spec = self._spec(req.provider_spec, req.credentials, strict=strict)
        except TerminalError as error:
            raise _to_cloud_error(error) from error
        fields: dict[str, Any] = {"provider_spec": spec, "credentials": credentials}
        if getattr(req, "provider_id", "").startswith(MADE_UP_ID):
            fields["provider_id"] = ""
        return replace(req, **fields)

    def _spec(
        self, spec: Mapping[str, Any], credentials: Credentials, *, strict: bool
    ) -> Mapping[str, Any]:
        config, resolver = decode_config(spec, strict=strict), self._resolver(credentials)
        if strict:
            default_operating_system(config)  # raises for an unknown operating system
        native: Mapping[str, Any]
        try:
            native = self.spi.kubermatic_spec(config, resolver, strict=strict)
        except (TerminalError, errors.InvalidArgument):
            if strict:
                raise
            # Values that only a creation needs must not block a deletion.
            given = config.cloud_provider_spec
            location = {name: given[name] for name in given if name in self._location_fields}
            config = msgspec.structs.replace(config, cloud_provider_spec=location)
            native = self.spi.kubermatic_spec(config, resolver, strict=False)
        return native

    def _resolver(self, credentials: Credentials) -> Resolver:
        return Resolver(lookup_in(credentials), self._environ)


def _native(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `cloudProviderSpec`; empty if it is missing or invalid."""
    native = spec.get("cloudProviderSpec")
    return native if isinstance(native, Mapping) else {}


def used_variables(
    driver: object, spec: Mapping[str, Any], credentials: Credentials
) -> Mapping[str, str]:
    """Return the environment variables that are credentials of a machine; no I/O.

    Empty if spec, Secrets and ConfigMaps have all credentials, or `driver` is no
    `KubermaticDriver`.

    Args:
        driver: driver of the machine.
        spec: `spec.providerSpec.value` of the machine.
        credentials: credentials of the machine's requests.
    """
    if not isinstance(driver, KubermaticDriver):
        return {}
    return driver.used_variables(spec, credentials)


def to_kubermatic(
    driver: Any, lookup: Lookup, environ: Mapping[str, str], *, cluster: str
) -> ToKubermatic:
    """Adapt a driver with `KubermaticSpecs` to Kubermatic's provider interface.

    Args:
        driver: the driver.
        lookup: returns the data of Secrets and ConfigMaps.
        environ: environment variables for config variables.
        cluster: marker of the cluster in the labels or tags of VMs.
    """
    return ToKubermatic(KubermaticDriver(driver, environ), lookup, cluster=cluster)


class ToKubermatic:
    """`KubermaticProvider` that delegates to a machine driver; see `to_kubermatic`."""

    def __init__(self, driver: KubermaticDriver, lookup: Lookup, *, cluster: str) -> None:
        self._driver = driver
        self._lookup = lookup
        self._cluster = cluster

    def add_defaults(self, spec: KubermaticMachineSpec) -> KubermaticMachineSpec:
        """See `KubermaticProvider.add_defaults`."""
        config = self._driver.spi.add_kubermatic_defaults(decode_config(spec.provider_spec))
        return replace(spec, provider_spec=encode_config(config))

    async def validate(self, spec: KubermaticMachineSpec) -> None:
        """See `KubermaticProvider.validate`."""
        req = self._request(KubermaticMachine(name="validation", spec=spec))
        problems = await self._driver.validate_spec(req.provider_spec, req.credentials, live=True)
        if problems:
            text = "; ".join(map(str, problems))
            raise TerminalError(ErrorReason.INVALID_CONFIGURATION, text)

    async def get(self, machine: KubermaticMachine) -> KubermaticInstance:
        """See `KubermaticProvider.get`."""
        try:
            info = await self._driver.get_machine_status(self._request(machine))
        except errors.Uninitialized as error:
            info = partial_info(error)
        except errors.NotFound as error:
            raise InstanceNotFound(str(error)) from error
        except errors.CloudError as error:
            raise _to_provider_error(error) from error
        return _instance(machine, info)

    def get_cloud_config(self, spec: KubermaticMachineSpec) -> tuple[str, str]:  # noqa: ARG002
        """Return empty strings: the cloud has no provider in the kubelet."""
        return "", ""

    async def create(
        self, machine: KubermaticMachine, data: ProviderData, userdata: str
    ) -> KubermaticInstance:
        """See `KubermaticProvider.create`; the VM is initialised, too."""
        req = self._request(machine, userdata.encode())
        try:
            info = await self._driver.create_machine(req)
            data.update(machine, lambda changed: _keep(changed, info))
            stored = replace(req, provider_id=info.provider_id)
            with suppress(errors.Unimplemented):
                info = await self._driver.initialize_machine(stored)
        except errors.CloudError as error:
            raise _to_provider_error(error) from error
        return _instance(machine, info)

    async def cleanup(self, machine: KubermaticMachine, data: ProviderData) -> bool:
        """See `KubermaticProvider.cleanup`."""
        try:
            response = await self._driver.delete_machine(self._request(machine))
        except errors.NotFound:
            return True
        except errors.RetryAfter as error:
            info = partial_info(error)
            data.update(machine, lambda changed: _keep(changed, info))
            return False
        except errors.CloudError as error:
            raise _to_provider_error(error) from error
        info = MachineInfo(last_known_state=response.last_known_state)
        data.update(machine, lambda changed: _keep(changed, info))
        return True

    def machine_metrics_labels(self, machine: KubermaticMachine) -> Mapping[str, str]:
        """See `KubermaticProvider.machine_metrics_labels`."""
        return self._driver.machine_metrics_labels(machine.spec.provider_spec or {})

    async def migrate_uid(self, machine: KubermaticMachine, uid: str) -> None:
        """See `KubermaticProvider.migrate_uid`."""
        former = machine.uid
        req = self._request(replace(machine, uid=uid))
        try:
            await self._driver.migrate_uid(req, former)
        except errors.CloudError as error:
            raise _to_provider_error(error) from error

    async def set_metrics_for_machines(self, machines: Sequence[KubermaticMachine]) -> None:
        """See `KubermaticProvider.set_metrics_for_machines`."""
        if isinstance(self._driver, MachineMetricsUpdate):
            await self._driver.set_metrics_for_machines(
                [self._request(machine) for machine in machines]
            )

    def _request(self, machine: KubermaticMachine, user_data: bytes = b"") -> MachineRequest:
        state = machine.provider_status
        spec = machine.spec.provider_spec or {}
        return MachineRequest(
            identity=Identity(
                cluster=self._cluster,
                namespace=machine.namespace,
                pool="machines",  # some drivers label shared resources with it
                name=machine.name,
                uid=machine.uid,
            ),
            provider_spec=spec,
            credentials=credentials_of({ref: self._lookup(ref) for ref in references(spec)}),
            user_data=user_data,
            provider_id=machine.spec.provider_id,
            last_known_state=state if isinstance(state, str) else "",
            creation_started=True,
            kubelet_version=machine.spec.kubelet_version,
        )


def _keep(machine: KubermaticMachine, info: MachineInfo) -> None:
    if info.last_known_state is not None:
        machine.provider_status = info.last_known_state or None


def _instance(machine: KubermaticMachine, info: MachineInfo) -> KubermaticInstance:
    statuses = {phase: status for status, phase in reversed(_PHASES.items())}
    return KubermaticInstance(
        name=info.node_name or machine.name,
        id=info.provider_id.rpartition("/")[2],
        provider_id=info.provider_id,
        addresses={address.address: address.type for address in info.addresses},
        status=statuses.get(info.phase, KubermaticInstanceStatus.UNKNOWN),
    )


def _to_provider_error(error: errors.CloudError) -> Exception:
    """Return a `TerminalError` if the error has a reason (`reason_of`), else the error itself."""
    reason = reason_of(error)
    return TerminalError(reason, str(error)) if reason else error
