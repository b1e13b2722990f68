"""Machine classes with the contents of their Secrets. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from ccm.base.credentials import MAX_BYTES
from ccm.cloud.configvar import SECRET, Reference
from ccm.cloud.kubermatic import credentials_of
from ccm.cloud.machines import SPEC_USER_DATA, Credentials
from ccm.machines import reasons
from ccm.model import ConfigMap, ObjectMeta, Secret
from ccm.model.machines import MachineClass
from ccm.model.names import STATUS_FALSE

USER_DATA = "userData"
"""Key of the user data in the Secret of a class."""

Variables = Callable[[Mapping[str, Any], Credentials], Mapping[str, str]]
"""Returns the environment variables of the daemon that the driver uses as credentials, by provider
spec and credentials of the class."""

_ORDERED = msgspec.json.Encoder(order="deterministic")


class ResolvedClass(MachineClass, frozen=True, kw_only=True):
    """A class with its credentials.

    Attributes:
        credentials: credentials for the driver.
        user_data: user data of the VMs, with placeholders.
        faults: reasons why no VM can be created; the status of the machines shows them.
        access_faults: the faults that also prevent every other call to the cloud.
        origin: short hash of region and credentials, including those in environment variables of
            the daemon. A VM created with another origin may be in another project of the cloud.
        version: value that changes with UID, provider spec, Secret data, imports or faults.
    """

    credentials: Credentials
    user_data: bytes = b""
    faults: tuple[str, ...] = ()
    access_faults: tuple[str, ...] = ()
    origin: str = ""
    version: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # Credentials and user data are secret.
        return f"ResolvedClass({self.key})"

    @property
    def spec_user_data(self) -> bytes:
        """User data in the provider spec, where some drivers look first."""
        user_data = self.provider_spec.get(SPEC_USER_DATA)
        return user_data.encode() if isinstance(user_data, str) else b""


def resolve(
    obj: MachineClass,
    secret: Callable[[str, str], Secret | None],
    *,
    config_map: Callable[[str, str], ConfigMap | None] = lambda _namespace, _name: None,
    variables: Variables = lambda _spec, _credentials: {},
    providers: Collection[str],
) -> ResolvedClass:
    """Return a class with the values that it refers to in Secrets and ConfigMaps.

    Args:
        obj: the class.
        secret: returns a Secret by namespace and name.
        config_map: returns a ConfigMap by namespace and name.
        variables: see `Variables`.
        providers: values of `provider` that the driver accepts.
    """
    data: dict[str, bytes] = {}
    lacking: list[str] = []
    found: dict[Reference, Mapping[str, bytes] | None] = {}
    for reference in obj.references:
        if reference.namespace != obj.namespace:
            # Otherwise each user who may create a machine could read every Secret.
            lacking.append(f"{reference} must be in the namespace of the Machine, {obj.namespace}")
        elif reference.kind == SECRET:
            credentials_secret = secret(reference.namespace, reference.name)
            found[reference] = None if credentials_secret is None else credentials_secret.data or {}
        else:
            values = config_map(reference.namespace, reference.name)
            texts = None if values is None else values.data or {}
            found[reference] = (
                None if texts is None else {key: text.encode() for key, text in texts.items()}
            )
    # A missing object is no fault here: the driver may have another source of the credentials.
    data |= credentials_of(found)
    for namespace, name in obj.secrets:
        prefix = f"Secret {namespace}/{name} of MachineClass {obj.name}"
        credentials_secret = secret(namespace, name)
        if namespace != obj.namespace:
            lacking.append(f"{prefix} must be in the namespace of the class, {obj.namespace}")
        elif credentials_secret is None:
            lacking.append(f"{prefix} does not exist; create it")
        else:
            contents = credentials_secret.data or {}
            data |= contents
            lacking += (
                f"{prefix} has {len(value)} bytes in {key}; a credential has at most {MAX_BYTES}"
                for key, value in contents.items()
                if key != USER_DATA and len(value) > MAX_BYTES
            )
    faults = (*_provider_faults(obj, providers), *obj.gaps, *lacking)
    # The credentials include the user data, as in Gardener's machine-controller-manager.
    credentials = Credentials(data)
    spec = _ORDERED.encode(obj.provider_spec).decode()
    return ResolvedClass(
        **msgspec.structs.asdict(obj),
        credentials=credentials,
        user_data=data.get(USER_DATA, b""),
        faults=faults,
        access_faults=tuple(lacking),
        origin=_origin(obj, data, variables(obj.provider_spec, credentials)),
        # Without the resourceVersion, because our own writes to the object change it, too.
        version=(obj.uid, spec, credentials.digest, *sorted(obj.imports), *faults),
    )


def missing_class(name: str, namespace: str) -> ResolvedClass:
    """Return a substitute for a missing class, with a fault that says that it is missing."""
    fault = f"MachineClass {namespace}/{name} does not exist; create it, or correct spec.class.name"
    if not name:
        fault = "spec.class must have the kind MachineClass and a name"
    return ResolvedClass(
        metadata=ObjectMeta(name=name, namespace=namespace),
        credentials=Credentials({}),
        faults=(fault,),
        access_faults=(fault,),
    )


def driver_faults(obj: MachineClass) -> list[str]:
    """Return the faults that the driver found in a class, from the condition `SpecValid`."""
    return [
        condition.message
        for condition in obj.conditions
        if (condition.type, condition.status) == (reasons.CONDITION_SPEC_VALID, STATUS_FALSE)
    ]


def _provider_faults(obj: MachineClass, providers: Collection[str]) -> Iterator[str]:
    if obj.provider and obj.provider.casefold() not in map(str.casefold, providers):
        accepted = " or ".join(repr(provider) for provider in sorted(providers))
        where = obj.provider_field or f"MachineClass {obj.name}: provider"
        advice = "correct it" if obj.provider_field else "correct the field, or remove it"
        yield f"{where} is {obj.provider!r}, but the driver accepts {accepted}; {advice}"


def _origin(obj: MachineClass, data: Mapping[str, bytes], variables: Mapping[str, str]) -> str:
    # Four digits are enough to detect a change, and reveal nothing about the credentials.
    region = f"{obj.region}/{obj.provider_spec.get('region', '')}"
    where = {key: value for key, value in data.items() if key != USER_DATA}
    for name, value in variables.items():
        where[f"environment/{name}"] = value.encode(errors="surrogateescape")
    return Credentials({**where, "": region.encode()}).digest[:4]
