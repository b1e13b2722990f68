"""Kubermatic's provider interface: specs, errors, and the adapters in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.cloud import errors, kubermatic
from ccm.cloud.configvar import ConfigVarString, Reference, Resolver
from ccm.cloud.kubermatic import (
    ErrorReason,
    InstanceNotFound,
    KubermaticDriver,
    KubermaticInstance,
    KubermaticInstanceStatus,
    KubermaticMachine,
    KubermaticMachineSpec,
    OSNotSupported,
    ProviderConfig,
    ProviderData,
    TerminalError,
    ValidationCache,
    credentials_of,
    decode_config,
    decode_spec,
    default_operating_system,
    encode_config,
    from_kubermatic,
    to_kubermatic,
)
from ccm.cloud.machines import (
    CreationCheck,
    Credentials,
    Identity,
    MachineInfo,
    MachineRequest,
    partial_info,
)
from ccm.testing.clock import advance, settle

pytestmark = pytest.mark.virtual_time

REFERENCE = {"namespace": "kube-system", "name": "acme", "key": "token"}
TOKEN = Reference(kind="Secret", **REFERENCE)
SECRET = {"token": b"t0k3n"}
SPEC: dict[str, Any] = {
    "cloudProvider": "acme",
    "cloudProviderSpec": {"token": {"secretKeyRef": REFERENCE}, "size": "big"},
    "operatingSystem": "ubuntu",
}
IMAGES = {"ubuntu": "ubuntu-26.04"}


class AcmeSpec(msgspec.Struct, frozen=True, kw_only=True):
    size: ConfigVarString
    token: ConfigVarString = ConfigVarString()
    zone: ConfigVarString = ConfigVarString()


class AcmeCloud:
    """A cloud with servers by UID."""

    def __init__(self) -> None:
        self.servers: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.failure: Exception | None = None

    def call(self, name: str, token: str) -> None:
        self.calls.append(name)
        assert token == "t0k3n"
        if self.failure is not None:
            raise self.failure


class Acme:
    """A provider as an author outside of this project writes it, partly synchronous."""

    def __init__(self, account: AcmeCloud, resolver: Resolver) -> None:
        self._account = account
        self._resolver = resolver

    def add_defaults(self, spec: KubermaticMachineSpec) -> KubermaticMachineSpec:
        config = decode_config(spec.provider_spec)
        native = {"zone": "north", **config.cloud_provider_spec}
        config = msgspec.structs.replace(config, cloud_provider_spec=native)
        return replace(spec, provider_spec=encode_config(default_operating_system(config)))

    async def validate(self, spec: KubermaticMachineSpec) -> None:
        config, native = self._read(spec)
        self._account.call("validate", self._resolver.get_string_value(native.token))
        if config.operating_system not in IMAGES:
            raise OSNotSupported(f"no image for {config.operating_system}")
        if self._resolver.get_string_value(native.size) == "taken":
            raise TerminalError(ErrorReason.CREATE, "the name is taken")
        if self._resolver.get_string_value(native.size) == "odd":
            raise TerminalError("OddSize", "order another size")
        if self._resolver.get_string_value(native.size) == "huge":
            try:
                raise TerminalError(ErrorReason.INSUFFICIENT_RESOURCES, "no huge servers left")
            except TerminalError as error:
                raise RuntimeError("the order failed") from error

    def get(self, machine: KubermaticMachine) -> KubermaticInstance:
        _, native = self._read(machine.spec)
        self._account.call("get", self._resolver.get_string_value(native.token))
        if machine.uid not in self._account.servers:
            raise InstanceNotFound
        return self._shown(machine.uid)

    def get_cloud_config(self, spec: KubermaticMachineSpec) -> tuple[str, str]:
        return "", ""

    async def create(
        self, machine: KubermaticMachine, data: ProviderData, userdata: str
    ) -> KubermaticInstance:
        data.update(machine, lambda changed: setattr(changed, "provider_status", {"step": 1}))
        self._account.call("create", "t0k3n")
        server = {"name": machine.name, "userdata": userdata, "labels": {"team": "a"}}
        self._account.servers[machine.uid] = server
        return self._shown(machine.uid)

    async def cleanup(self, machine: KubermaticMachine, data: ProviderData) -> bool:
        self._account.call("cleanup", "t0k3n")
        server = self._account.servers.get(machine.uid)
        if server is None:
            return True
        if server.get("deleting"):
            del self._account.servers[machine.uid]
        server["deleting"] = True
        return False

    def machine_metrics_labels(self, machine: KubermaticMachine) -> Mapping[str, str]:
        _, native = self._read(machine.spec)
        return {"size": self._resolver.get_string_value(native.size)}

    async def migrate_uid(self, machine: KubermaticMachine, uid: str) -> None:
        if machine.uid in self._account.servers:
            self._account.servers[uid] = self._account.servers.pop(machine.uid)

    def set_metrics_for_machines(self, machines: Sequence[KubermaticMachine]) -> None:
        pass

    def _read(self, spec: KubermaticMachineSpec) -> tuple[ProviderConfig, AcmeSpec]:
        config = decode_config(spec.provider_spec)
        return config, decode_spec(config, AcmeSpec)

    def _shown(self, uid: str) -> KubermaticInstance:
        return KubermaticInstance(
            name=self._account.servers[uid]["name"],
            id=uid,
            provider_id=f"acme://{uid}",
            addresses={"10.0.0.1": "InternalIP", "m-1": "Hostname"},
            status=KubermaticInstanceStatus.RUNNING,
        )


def asking(uid: str = "u-1", **fields: Any) -> MachineRequest:
    given = {"provider_spec": SPEC, "credentials": credentials_of({TOKEN: SECRET}), **fields}
    identity = Identity(cluster="c1", namespace="default", pool="workers", name="m-1", uid=uid)
    return MachineRequest(identity=identity, user_data=b"#!/bin/sh", **given)


def sized(size: str, **fields: Any) -> dict[str, Any]:
    return {**SPEC, "cloudProviderSpec": {**SPEC["cloudProviderSpec"], "size": size}, **fields}


@pytest.fixture
def account() -> AcmeCloud:
    return AcmeCloud()


@pytest.fixture
def driver(account: AcmeCloud) -> kubermatic.FromKubermatic:
    return from_kubermatic(lambda resolver: Acme(account, resolver), names=("acme",))


# --- provider to driver -------------------------------------------------------------------------


@pytest.mark.row("kubermatic-provider-01", "kubermatic-provider-07")
async def test_machine_lives_from_creation_to_deletion(
    driver: kubermatic.FromKubermatic, account: AcmeCloud
) -> None:
    with pytest.raises(errors.NotFound):
        await driver.get_machine_status(asking())

    info = await driver.create_machine(asking(creation_started=True))
    again = await driver.create_machine(asking(creation_started=True))

    assert info == again or replace(info, last_known_state=None) == again
    assert (info.provider_id, info.node_name) == ("acme://u-1", "m-1")
    assert [(one.type, one.address) for one in info.addresses] == [
        ("InternalIP", "10.0.0.1"),
        ("Hostname", "m-1"),
    ]
    assert info.last_known_state == '{"step":1}'
    assert account.servers["u-1"]["userdata"] == "#!/bin/sh"
    for _ in range(2):
        with pytest.raises(errors.RetryAfter) as raised:
            await driver.delete_machine(asking())
        assert raised.value.seconds == 10
    await driver.delete_machine(asking())
    await driver.delete_machine(asking())
    assert account.servers == {}
    assert account.calls.count("create") == 1
    assert account.calls[1:4] == ["get", "validate", "create"]


@pytest.mark.row("kubermatic-provider-06")
async def test_state_is_stored_if_it_changes_and_shown_to_the_next_call(account: AcmeCloud) -> None:
    """A modifier applies at once; a change of anything else is not stored."""
    seen: list[Any] = []

    class Stateful(Acme):
        def get(self, machine: KubermaticMachine) -> KubermaticInstance:
            seen.append(machine.provider_status)
            return super().get(machine)

        async def cleanup(self, machine: KubermaticMachine, data: ProviderData) -> bool:
            data.update(machine)
            data.update(machine, lambda changed: setattr(changed, "name", "other"))
            is_gone = await super().cleanup(machine, data)
            if machine.provider_status == {"step": 1}:
                data.update(machine, lambda changed: setattr(changed, "provider_status", "goes"))
                seen.append(machine.provider_status)
            return is_gone

    driver = from_kubermatic(lambda resolver: Stateful(account, resolver), names=("acme",))
    made = await driver.create_machine(asking())
    assert made.last_known_state is not None
    known = await driver.get_machine_status(asking(last_known_state=made.last_known_state))
    deletions = []
    for state in (made.last_known_state, "goes"):
        with pytest.raises(errors.RetryAfter) as raised:
            await driver.delete_machine(asking(last_known_state=state))
        deletions.append(partial_info(raised.value).last_known_state)
    done = await driver.delete_machine(asking(last_known_state="goes"))

    assert known.last_known_state is None, "unchanged"
    assert deletions == ["goes", "goes"]
    assert done.last_known_state is None
    assert seen == [None, {"step": 1}, "goes"]


@pytest.mark.row("kubermatic-provider-06")
async def test_state_is_kept_when_the_creation_fails(
    driver: kubermatic.FromKubermatic, account: AcmeCloud
) -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Acme, "create", _failing_after_update)
        with pytest.raises(errors.Unknown) as raised:
            await driver.create_machine(asking(last_known_state='{"step":0}'))

    assert partial_info(raised.value).last_known_state == '{"step":1}'


@pytest.mark.row("kubermatic-provider-06")
@pytest.mark.parametrize(
    "status",
    [
        *("42", "4e5", " 7", "true", "null", '"x"', '{"a":1}', "[]"),
        *("abc", "0123", "", None, 42, True, 0, {"a": "1"}, ["x"], {}),
    ],
)
async def test_state_keeps_its_type(account: AcmeCloud, status: object) -> None:
    class Stateful(Acme):
        async def create(
            self, machine: KubermaticMachine, data: ProviderData, userdata: str
        ) -> KubermaticInstance:
            instance = await super().create(machine, data, userdata)
            data.update(machine, lambda changed: setattr(changed, "provider_status", status))
            return instance

        def get(self, machine: KubermaticMachine) -> KubermaticInstance:
            seen.append(machine.provider_status)
            return super().get(machine)

    seen: list[object] = []
    driver = from_kubermatic(lambda resolver: Stateful(account, resolver), names=("acme",))
    made = await driver.create_machine(asking())
    stored = made.last_known_state or ""
    again = await driver.get_machine_status(asking(last_known_state=stored))

    expected = None if status == "" else status
    assert (seen[-1], type(seen[-1])) == (expected, type(expected))
    assert again.last_known_state is None, "unchanged"


async def _failing_after_update(
    _: Acme, machine: KubermaticMachine, data: ProviderData, __: str
) -> KubermaticInstance:
    data.update(machine, lambda changed: setattr(changed, "provider_status", {"step": 1}))
    raise RuntimeError("lost")


@pytest.mark.row("kubermatic-provider-04")
@pytest.mark.parametrize(
    ("spec", "kind", "reason"),
    [
        (sized("big", operatingSystem="flatcar"), errors.InvalidArgument, "InvalidConfiguration"),
        (sized("huge"), errors.ResourceExhausted, "InsufficientResources"),
        (sized("taken"), errors.AlreadyExists, "CreateError"),
        (sized("big", unknown=1), errors.InvalidArgument, "InvalidConfiguration"),
        (sized("odd"), errors.FailedPrecondition, "OddSize"),
    ],
)
async def test_terminal_error_keeps_its_reason_and_nothing_is_created(
    driver: kubermatic.FromKubermatic,
    account: AcmeCloud,
    spec: dict[str, Any],
    kind: type[errors.CloudError],
    reason: str,
) -> None:
    """The reason is kept when the error is the cause of another error, too."""
    with pytest.raises(kind) as raised:
        await driver.create_machine(asking(provider_spec=spec, last_known_state='{"step":0}'))

    assert kubermatic.reason_of(raised.value) == reason
    assert partial_info(raised.value).last_known_state == '{"step":0}', "the state is kept"
    assert "create" not in account.calls
    # `errorReason` has no reasons of providers.
    assert ("OddSize: " in str(raised.value)) is (reason == "OddSize")


@pytest.mark.row("kubermatic-provider-04")
async def test_terminal_error_of_get_keeps_its_reason_and_nothing_is_created(
    driver: kubermatic.FromKubermatic, account: AcmeCloud
) -> None:
    account.failure = TerminalError(ErrorReason.INVALID_CONFIGURATION, "the token is expired")

    with pytest.raises(errors.InvalidArgument, match="the token is expired") as raised:
        await driver.create_machine(asking())

    assert kubermatic.reason_of(raised.value) == "InvalidConfiguration"
    assert account.calls == ["get"]


@pytest.mark.row("kubermatic-provider-05")
async def test_validation_is_cached_until_spec_or_secret_changes(
    driver: kubermatic.FromKubermatic, account: AcmeCloud
) -> None:
    bad = sized("big", operatingSystem="flatcar")

    async def validations(request: MachineRequest) -> int:
        account.servers.clear()
        with suppress(errors.InvalidArgument):
            await driver.create_machine(request)
        return account.calls.count("validate")

    assert [await validations(asking()) for _ in range(2)] == [1, 1]
    assert [await validations(asking(provider_spec=bad)) for _ in range(2)] == [2, 2]
    other = credentials_of({TOKEN: SECRET, replace(TOKEN, key="user"): {"user": b"x"}})
    assert await validations(asking(provider_spec=bad, credentials=other)) == 3
    await advance(kubermatic.MAX_AGE_S)
    assert await validations(asking()) == 4


@pytest.mark.row("kubermatic-provider-05")
async def test_outage_during_validation_is_not_cached(
    driver: kubermatic.FromKubermatic, account: AcmeCloud
) -> None:
    async def outage(_: Acme, __: KubermaticMachineSpec) -> None:
        raise TimeoutError

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Acme, "validate", outage)
        with pytest.raises(errors.DeadlineExceeded):
            await driver.create_machine(asking())

    assert (await driver.create_machine(asking())).provider_id == "acme://u-1"


@pytest.mark.row("kubermatic-provider-05")
async def test_concurrent_checks_of_one_spec_share_a_validation() -> None:
    """A transient failure counts for those that waited for it, and for no later check."""
    cache, answers = ValidationCache(), [errors.RetryAfter("busy", seconds=1), None]
    calls: list[int] = []

    async def validate() -> None:
        calls.append(1)
        await asyncio.sleep(1)
        if failure := answers[len(calls) - 1]:
            raise failure

    async def check_all() -> list[BaseException | None]:
        checks = [cache.check({"size": "big"}, "digest", validate) for _ in range(3)]
        results = asyncio.gather(*checks, return_exceptions=True)
        await advance(1)
        return await results

    first = await check_all()
    assert [type(one) for one in first] == [
        errors.RetryAfter,
        errors.Unavailable,
        errors.Unavailable,
    ]
    assert await check_all() == [None] * 3
    assert len(calls) == 2


@pytest.mark.row("kubermatic-provider-05")
async def test_cancelled_validation_is_no_result() -> None:
    cache = ValidationCache()

    async def hang() -> None:
        await asyncio.Event().wait()

    async def fail() -> None:
        raise TerminalError(ErrorReason.INVALID_CONFIGURATION, "no")

    first = asyncio.create_task(cache.check({}, "", hang))
    second = asyncio.create_task(cache.check({}, "", fail))
    await settle()
    first.cancel()

    with pytest.raises(errors.InvalidArgument):
        await second


@pytest.mark.row("kubermatic-provider-06")
async def test_cached_error_carries_the_state_of_one_machine_only(
    driver: kubermatic.FromKubermatic,
) -> None:
    """Two machines with the same invalid spec get two errors."""
    failures = []
    for state in ("one", "two"):
        with pytest.raises(errors.InvalidArgument) as raised:
            await driver.create_machine(
                asking(provider_spec=sized("big", operatingSystem="flatcar"))
            )
        failures.append(raised.value.carrying(state))

    assert [one.partial for one in failures] == ["one", "two"]


@pytest.mark.row("kubermatic-provider-03")
@pytest.mark.parametrize("failure", [RuntimeError("broken"), errors.NotFound("no project")])
async def test_only_instance_not_found_is_absence(
    driver: kubermatic.FromKubermatic, account: AcmeCloud, failure: Exception
) -> None:
    failure.__cause__ = InstanceNotFound()
    account.failure = failure

    with pytest.raises(errors.Unknown):
        await driver.get_machine_status(asking())


@pytest.mark.row("kubermatic-provider-12")
@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (RuntimeError("broken"), errors.Unknown),
        (errors.Internal("broken"), errors.Unknown),
        (TimeoutError(), errors.DeadlineExceeded),
        (errors.Unauthenticated("no"), errors.Unauthenticated),
        (errors.RetryAfter("busy", seconds=7), errors.RetryAfter),
        (InstanceNotFound(), errors.NotFound),
        (TerminalError("own", "no"), errors.FailedPrecondition),
    ],
)
async def test_class_of_an_error_of_a_provider(
    driver: kubermatic.FromKubermatic,
    account: AcmeCloud,
    failure: Exception,
    kind: type[errors.CloudError],
) -> None:
    account.failure = failure

    for call in (driver.get_machine_status, driver.delete_machine):
        with pytest.raises(errors.CloudError) as raised:
            await call(asking())
        assert type(raised.value) is kind


@pytest.mark.parametrize("names", [(), "acme"])
def test_provider_without_names_is_an_error(account: AcmeCloud, names: Any) -> None:
    with pytest.raises(ValueError, match="set a tuple of values of cloudProvider"):
        from_kubermatic(lambda resolver: Acme(account, resolver), names=names)


@pytest.mark.row("kubermatic-provider-13")
async def test_provider_gets_the_version_of_the_kubelet(account: AcmeCloud) -> None:
    """Machines of another version do not share a validation."""
    seen: list[str] = []

    class Versioned(Acme):
        async def validate(self, spec: KubermaticMachineSpec) -> None:
            seen.append(spec.kubelet_version)

    driver = from_kubermatic(lambda resolver: Versioned(account, resolver), names=("acme",))
    for number, version in enumerate(("1.35.1", "1.35.1", "1.36.0")):
        await driver.create_machine(asking(f"u-{number}", kubelet_version=version))

    assert seen == ["1.35.1", "1.36.0"]


@pytest.mark.row("kubermatic-machine-20")
async def test_made_up_provider_id_is_kept(driver: kubermatic.FromKubermatic) -> None:
    """Otherwise the instance would count as that of another machine."""
    await driver.create_machine(asking())
    info = await driver.get_machine_status(asking(provider_id="kubermatic://acme/u-1"))

    assert info.provider_id == "kubermatic://acme/u-1"


async def test_missing_secret_is_named(driver: kubermatic.FromKubermatic) -> None:
    with pytest.raises(errors.InvalidArgument, match="Secret kube-system/acme does not exist"):
        await driver.get_machine_status(asking(credentials=credentials_of({TOKEN: None})))
    with pytest.raises(errors.InvalidArgument, match="lacks the key token"):
        await driver.get_machine_status(asking(credentials=credentials_of({TOKEN: {"a": b""}})))


@pytest.mark.row("kubermatic-provider-08")
async def test_uid_is_migrated_and_other_labels_stay(
    driver: kubermatic.FromKubermatic, account: AcmeCloud
) -> None:
    await driver.create_machine(asking("u-1"))

    await driver.migrate_uid(asking("u-2"), "u-1")
    await driver.migrate_uid(asking("u-3"), "u-none")

    assert (await driver.get_machine_status(asking("u-2"))).provider_id == "acme://u-2"
    assert account.servers["u-2"]["labels"] == {"team": "a"}


@pytest.mark.row("kubermatic-provider-14")
@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ("running", cloud.Phase.RUNNING),
        ("creating", cloud.Phase.CREATING),
        ("deleting", cloud.Phase.DELETING),
        ("deleted", cloud.Phase.DELETING),
        ("unknown", cloud.Phase.UNKNOWN),
    ],
)
async def test_instance_without_provider_id_gets_that_of_the_reference(
    account: AcmeCloud, status: str, phase: cloud.Phase
) -> None:
    class Anonymous(Acme):
        def _shown(self, uid: str) -> KubermaticInstance:
            state = KubermaticInstanceStatus(status)
            return replace(super()._shown(uid), provider_id="", status=state)

    driver = from_kubermatic(lambda resolver: Anonymous(account, resolver), names=("acme",))

    info = await driver.create_machine(asking())

    assert (info.provider_id, info.phase) == ("kubermatic://acme/u-1", phase)


@pytest.mark.row("kubermatic-provider-09")
def test_metrics_labels_have_a_size_without_secrets(driver: kubermatic.FromKubermatic) -> None:
    assert driver.machine_metrics_labels(SPEC) == {"size": "big"}
    assert driver.machine_metrics_labels({"cloudProvider": 5}) == {"size": ""}


# --- provider specs -----------------------------------------------------------------------------


@pytest.mark.row("kubermatic-spec-01")
def test_config_names_every_wrong_field() -> None:
    with pytest.raises(errors.InvalidArgument) as raised:
        decode_config({"cloudProvider": 5, "sshPublicKeys": "key", "opratingSystem": "ubuntu"})

    for field in ("cloudProvider", "sshPublicKeys", "opratingSystem"):
        assert f"spec.providerSpec.value.{field}: " in str(raised.value)
    with pytest.raises(errors.InvalidArgument, match=r"spec\.providerSpec\.value is missing"):
        decode_config(None)


@pytest.mark.row("kubermatic-spec-02")
def test_nulls_and_empty_config_are_accepted() -> None:
    assert decode_config({}) == ProviderConfig()
    assert decode_config({"network": None, "sshPublicKeys": None}) == ProviderConfig()


@pytest.mark.row("kubermatic-spec-03")
@pytest.mark.parametrize(
    ("system", "given", "wanted"),
    [
        *(
            (system, None, {"distUpgradeOnBoot": False})
            for system in ("ubuntu", "centos", "coreos", "amzn2", "rhel", "rockylinux")
        ),
        ("rockylinux", {"own": 1}, {"own": 1}),
        (
            "flatcar",
            {"disableAutoUpdate": True, "own": 1},
            {
                "disableAutoUpdate": True,
                "disableLocksmithD": False,
                "disableUpdateEngine": False,
                "provisioningUtility": "ignition",
            },
        ),
        (
            "flatcar",
            {"provisioningUtility": "cloud-init", "disableLocksmithD": None},
            {
                "disableAutoUpdate": False,
                "disableLocksmithD": False,
                "disableUpdateEngine": False,
                "provisioningUtility": "cloud-init",
            },
        ),
    ],
)
def test_operating_system_spec_has_defaults(
    system: str, given: dict[str, Any] | None, wanted: dict[str, Any]
) -> None:
    config = ProviderConfig(operating_system=system, operating_system_spec=given)

    assert default_operating_system(config).operating_system_spec == wanted


@pytest.mark.row("kubermatic-spec-04")
def test_unknown_operating_system_is_not_supported() -> None:
    with pytest.raises(OSNotSupported, match="operatingSystem is 'beos'; it must be one of ubuntu"):
        default_operating_system(ProviderConfig(operating_system="beos"))


# --- driver to provider -------------------------------------------------------------------------


class Native(cloud.Driver[AcmeCloud]):
    """A driver of the same cloud that serves Kubermatic's machines."""

    provider_names = ("acme",)
    location_fields = ()

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        self._check(req)
        if req.provider_spec["size"] == "huge":
            raise errors.ResourceExhausted("no huge servers left")
        server = {"name": req.identity.name, "userdata": req.user_data.decode(), "state": "new"}
        self.spi.servers.setdefault(req.identity.uid, server)
        return MachineInfo(provider_id=f"acme://{req.identity.uid}", last_known_state="ordered")

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        assert req.provider_id
        self.spi.servers[req.identity.uid]["state"] = "ready"
        return await self.get_machine_status(req)

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        self._check(req)
        if req.identity.uid not in self.spi.servers:
            raise errors.NotFound("no such server")
        return MachineInfo(
            provider_id=f"acme://{req.identity.uid}",
            node_name=req.identity.name,
            addresses=(cloud.NodeAddress(type="InternalIP", address="10.0.0.1"),),
            phase=cloud.Phase.RUNNING,
        )

    async def delete_machine(self, req: MachineRequest) -> cloud.DeleteMachineResponse:
        self._check(req)
        if self.spi.servers.pop(req.identity.uid, None):
            raise errors.RetryAfter("in progress", seconds=2)
        return cloud.DeleteMachineResponse()

    async def list_machines(self, req: cloud.ListMachinesRequest) -> Sequence[cloud.MachineRecord]:
        raise NotImplementedError

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: Credentials, live: bool
    ) -> Sequence[cloud.Problem]:
        assert live
        assert dict(credentials) == SECRET
        bad = spec["size"] == "none"
        return [cloud.Problem(field="size", message="'none' is no size")] if bad else []

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        return {"size": str(spec["size"])}

    def add_kubermatic_defaults(self, config: ProviderConfig) -> ProviderConfig:
        native = {"zone": "north", **config.cloud_provider_spec}
        return msgspec.structs.replace(config, cloud_provider_spec=native)

    def kubermatic_spec(
        self, config: ProviderConfig, resolver: Resolver, *, strict: bool
    ) -> Mapping[str, Any]:
        if strict and config.operating_system not in IMAGES:
            raise OSNotSupported(f"no image for {config.operating_system!r}")
        spec = decode_spec(config, AcmeSpec, strict=strict)
        return {"size": resolver.get_string_value(spec.size), "image": IMAGES["ubuntu"]}

    def kubermatic_credentials(self, spec: Mapping[str, Any], resolver: Resolver) -> Credentials:
        return Credentials({"token": resolver.get_credential(spec, "token", "ACME_TOKEN")})

    async def migrate_uid(self, req: MachineRequest, former: str) -> None:
        self.spi.servers[req.identity.uid] = self.spi.servers.pop(former)

    def _check(self, req: MachineRequest) -> None:
        assert dict(req.credentials) == SECRET


@pytest.fixture
def provider(account: AcmeCloud) -> kubermatic.ToKubermatic:
    return to_kubermatic(Native(account), lambda _: SECRET, {}, cluster="c1")


def machine(uid: str = "u-1", spec: Mapping[str, Any] = SPEC) -> KubermaticMachine:
    return KubermaticMachine(
        name="m-1", namespace="default", uid=uid, spec=KubermaticMachineSpec(provider_spec=spec)
    )


@pytest.mark.row("kubermatic-provider-02")
async def test_driver_serves_the_provider_interface(
    provider: kubermatic.ToKubermatic, account: AcmeCloud
) -> None:
    own, data = machine(), ProviderData()
    with pytest.raises(InstanceNotFound):
        await provider.get(own)
    await provider.validate(own.spec)

    made = await provider.create(own, data, "#!")
    found = await provider.get(own)

    assert made == found
    assert (made.id, made.provider_id) == ("u-1", "acme://u-1")
    assert made.status is KubermaticInstanceStatus.RUNNING
    assert own.provider_status == "ordered"
    assert account.servers["u-1"] == {"name": "m-1", "userdata": "#!", "state": "ready"}
    await provider.migrate_uid(own, "u-2")
    moved = machine("u-2")
    assert [await provider.cleanup(moved, data) for _ in range(3)] == [False, True, True]
    assert provider.machine_metrics_labels(own) == {"size": "big"}
    assert provider.get_cloud_config(own.spec) == ("", "")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (sized("huge"), "InsufficientResources"),
        (sized("big", operatingSystem="beos"), "InvalidConfiguration"),
    ],
)
async def test_error_of_the_driver_is_terminal_for_the_provider(
    provider: kubermatic.ToKubermatic, spec: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TerminalError) as raised:
        await provider.create(machine(spec=spec), ProviderData(), "")

    assert raised.value.reason == reason


@pytest.mark.row("kubermatic-provider-10")
async def test_driver_validates_a_spec_before_it_creates(account: AcmeCloud) -> None:
    """The result is cached. A lookup or a deletion needs no valid spec."""
    native, calls = Native(account), 0
    validated = native.validate_spec

    async def validate(*given: Any) -> Sequence[cloud.Problem]:
        nonlocal calls
        calls += 1
        return await validated(*given)

    native.validate_spec = validate  # type: ignore[method-assign,assignment]
    driver = KubermaticDriver(native, {})
    for _ in range(2):
        with pytest.raises(errors.InvalidArgument, match="size: 'none' is no size"):
            await driver.create_machine(asking(provider_spec=sized("none")))
    assert account.servers == {}
    assert calls == 1

    await driver.create_machine(asking("u-1"))
    await driver.create_machine(asking("u-2"))
    assert calls == 2
    bad = asking("u-1", provider_spec=sized("none"))
    assert (await driver.get_machine_status(bad)).provider_id == "acme://u-1"
    with suppress(errors.RetryAfter):
        await driver.delete_machine(bad)
    assert [*account.servers] == ["u-2"]


@pytest.mark.row("kubermatic-provider-10", "kubermatic-command-07")
@pytest.mark.parametrize("is_native", [True, False])
async def test_creation_can_be_checked_without_one(is_native: bool, account: AcmeCloud) -> None:
    driver: Any = from_kubermatic(lambda resolver: Acme(account, resolver), names=("acme",))
    if is_native:
        driver = KubermaticDriver(Native(account), {})
    bad = asking(provider_spec=sized("big", operatingSystem="flatcar"))

    await driver.check_creation(asking())
    with pytest.raises(errors.InvalidArgument, match="no image for") as checked:
        await driver.check_creation(bad)
    with pytest.raises(errors.InvalidArgument) as created:
        await driver.create_machine(bad)

    assert str(checked.value) == str(created.value)
    assert account.servers == {}
    assert isinstance(driver, CreationCheck)


def test_wrapper_tells_the_account_of_a_machine_if_its_driver_does(account: AcmeCloud) -> None:
    class Located(Native):
        def machine_account(self, req: MachineRequest) -> str:
            return f"account {req.provider_spec['size']}"

    assert not isinstance(KubermaticDriver(Native(account), {}), cloud.MachineAccounts)
    driver: Any = KubermaticDriver(Located(account), {})
    assert isinstance(driver, cloud.MachineAccounts)
    assert driver.machine_account(asking(provider_spec=sized("big"))) == "account big"


@pytest.mark.row("kubermatic-spec-04")
async def test_unknown_operating_system_creates_nothing(account: AcmeCloud) -> None:
    """Whatever the driver accepts."""
    native = Native(account)
    native.kubermatic_spec = lambda *_, **__: {"size": "big"}  # type: ignore[method-assign]
    request = asking(provider_spec=sized("big", operatingSystem="beos"))

    with pytest.raises(errors.InvalidArgument, match="operatingSystem is 'beos'"):
        await KubermaticDriver(native, {}).create_machine(request)

    assert account.servers == {}


async def test_problems_of_the_driver_are_terminal(provider: kubermatic.ToKubermatic) -> None:
    with pytest.raises(TerminalError, match="size: 'none' is no size"):
        await provider.validate(machine(spec=sized("none")).spec)


@pytest.mark.row("kubermatic-spec-05")
async def test_invalid_spec_never_blocks_a_lookup_or_deletion(
    provider: kubermatic.ToKubermatic, account: AcmeCloud
) -> None:
    await provider.create(machine(), ProviderData(), "")
    broken = machine(spec=sized("big", operatingSystem="beos", opratingSystem=1))

    assert (await provider.get(broken)).id == "u-1"
    assert await provider.cleanup(broken, ProviderData()) is False
    assert account.servers == {}


@pytest.mark.row("kubermatic-config-06")
@pytest.mark.parametrize("data", [None, {"other": b"x"}])
async def test_missing_secret_never_selects_the_account_of_the_daemon(
    account: AcmeCloud, data: Mapping[str, bytes] | None
) -> None:
    """The VM of a creation without a response is in the account of the Secret."""
    driver = KubermaticDriver(Native(account), {"ACME_TOKEN": SECRET["token"].decode()})
    req = asking(credentials=credentials_of({TOKEN: data}))

    for call in (driver.delete_machine, driver.create_machine, driver.get_machine_status):
        with pytest.raises(errors.InvalidArgument, match=r"^token: Secret .*/acme .* key"):
            await call(req)

    assert account.servers == {}


@pytest.mark.row("kubermatic-machine-24")
@pytest.mark.parametrize(
    ("token", "names"),
    [
        (None, {"ACME_TOKEN"}),
        ("", {"ACME_TOKEN"}),
        ("inline", set()),
        ({"secretKeyRef": REFERENCE}, set()),
        # No credentials: the requests of the machine report the error.
        ({"secretKeyRef": {**REFERENCE, "name": "absent"}}, set()),
        ([], set()),
    ],
)
def test_driver_tells_the_variables_with_credentials(
    account: AcmeCloud, token: object, names: set[str]
) -> None:
    environ = {"ACME_TOKEN": "of the daemon", "ACME_UNUSED": "x"}
    driver = KubermaticDriver(Native(account), environ)
    spec = {"cloudProvider": "acme", "cloudProviderSpec": {"token": token}}
    secrets = credentials_of({TOKEN: SECRET})

    found = kubermatic.used_variables(driver, spec, secrets)

    assert found == {name: environ[name] for name in names}
    assert kubermatic.used_variables(Native(account), spec, secrets) == {}


def test_defaults_are_visible_in_the_spec(provider: kubermatic.ToKubermatic) -> None:
    spec = provider.add_defaults(machine().spec)

    assert spec.provider_spec is not None
    assert spec.provider_spec["cloudProviderSpec"] == {
        "zone": "north",
        "token": {"secretKeyRef": REFERENCE},
        "size": "big",
    }


# --- metrics of the provider --------------------------------------------------------------------


@pytest.mark.row("kubermatic-metrics-05")
@pytest.mark.parametrize("is_async", [False, True])
async def test_provider_updates_metrics_of_all_machines_with_all_secrets(
    account: AcmeCloud, is_async: bool
) -> None:
    seen: list[tuple[list[str], list[str]]] = []

    class Measuring(Acme):
        def set_metrics_for_machines(self, machines: Sequence[KubermaticMachine]) -> Any:
            specs = [decode_config(one.spec.provider_spec) for one in machines]
            tokens = [ConfigVarString.decode(one.cloud_provider_spec["token"]) for one in specs]
            texts = [self._resolver.get_string_value(token) for token in tokens]
            seen.append(([one.uid for one in machines], texts))
            return asyncio.sleep(0) if is_async else None

    driver = from_kubermatic(lambda resolver: Measuring(account, resolver), names=("acme",))
    other = {**REFERENCE, "name": "other"}
    spec = {**SPEC, "cloudProviderSpec": {"token": {"secretKeyRef": other}, "size": "big"}}
    secret = credentials_of({Reference(kind="Secret", **other): {"token": b"second"}})
    second = asking("u-2", provider_spec=spec, credentials=secret)

    await driver.set_metrics_for_machines([asking("u-1"), second])

    assert seen == [(["u-1", "u-2"], ["t0k3n", "second"])]


@pytest.mark.row("kubermatic-metrics-05")
async def test_driver_has_metrics_for_machines_only_if_it_implements_them(
    account: AcmeCloud,
) -> None:
    seen: list[Sequence[MachineRequest]] = []

    class Measuring(Native):
        async def set_metrics_for_machines(self, requests: Sequence[MachineRequest]) -> None:
            seen.append(requests)

    wrapped = kubermatic.KubermaticDriver(Measuring(account), {})
    unreadable = asking("u-2", credentials=credentials_of({TOKEN: None}))
    await wrapped.set_metrics_for_machines([asking(), unreadable])
    provider = to_kubermatic(Measuring(account), lambda _: SECRET, {}, cluster="c1")
    await provider.set_metrics_for_machines([machine("u-3")])

    assert [[req.identity.uid for req in requests] for requests in seen] == [["u-1"], ["u-3"]]
    assert [dict(req.credentials) for (req, *_) in seen] == [SECRET] * 2
    plain = kubermatic.KubermaticDriver(Native(account), {})
    assert not hasattr(plain, "set_metrics_for_machines")
    silent = to_kubermatic(Native(account), lambda _: SECRET, {}, cluster="c1")
    await silent.set_metrics_for_machines([machine()])


def test_driver_keeps_the_abilities_of_the_wrapped_driver(account: AcmeCloud) -> None:
    class Nameless(Native):
        finds_by_name = True
        lists_machines = False
        machine_metrics_labels = None  # type: ignore[assignment]

    wrapped = kubermatic.KubermaticDriver(Nameless(account), {})

    assert (wrapped.finds_by_name, wrapped.lists_machines) == (True, False)
    assert wrapped.machine_metrics_labels(
        sized("big") | {"cloudProviderSpec": {"size": "big"}}
    ) == {"size": ""}
