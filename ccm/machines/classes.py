"""Classes of machines with what their Secrets hold now. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from ccm.base.credentials import MOST_BYTES
from ccm.cloud.machines import SPEC_USER_DATA, Credentials
from ccm.machines import reasons
from ccm.model import ObjectMeta, Secret
from ccm.model.machines import MachineClass
from ccm.model.names import STATUS_FALSE

USER_DATA = "userData"
"""Key of the user data in the Secret of a class."""

_ORDERED = msgspec.json.Encoder(order="deterministic")


class ResolvedClass(MachineClass, frozen=True, kw_only=True):
    """A class with its credentials.

    Attributes:
        credentials: credentials for the driver.
        user_data: user data of the VMs, with placeholders.
        faults: reasons for which no VM can be created now; the status of machines shows them.
        lacking: the faults for which the cloud cannot be asked about a VM either.
        origin: mark that differs where VMs may be in another place: other credentials or region.
        version: value that differs when any of this does.
    """

    credentials: Credentials
    user_data: bytes = b""
    faults: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    origin: str = ""
    version: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # User data are secret.
        return f"ResolvedClass({self.key})"

    @property
    def spec_user_data(self) -> bytes:
        """User data in the provider spec, where some drivers look for them first."""
        found = self.provider_spec.get(SPEC_USER_DATA)
        return found.encode() if isinstance(found, str) else b""


def resolve(
    obj: MachineClass,
    secret: Callable[[str, str], Secret | None],
    *,
    providers: Collection[str],
) -> ResolvedClass:
    """Return a class with what its Secrets hold.

    Args:
        obj: the class.
        secret: finds a Secret by namespace and name.
        providers: values of `provider` that the driver accepts.
    """
    data: dict[str, bytes] = {}
    lacking: list[str] = []
    for namespace, name in obj.secrets:
        who = f"Secret {namespace}/{name}, to which MachineClass {obj.name} refers,"
        found = secret(namespace, name)
        if namespace != obj.namespace:
            lacking.append(f"{who} has to be in the namespace of the class, {obj.namespace}")
        elif found is None:
            lacking.append(f"{who} does not exist; create it")
        else:
            given = found.data or {}
            data |= given
            lacking += (
                f"{who} has {len(value)} bytes in {key}; a credential has at most {MOST_BYTES}"
                for key, value in given.items()
                if key != USER_DATA and len(value) > MOST_BYTES
            )
    faults = (*_provider_faults(obj, providers), *obj.gaps, *lacking)
    # User data are among them, as drivers of the origin know them.
    credentials = Credentials(data)
    spec = _ORDERED.encode(obj.provider_spec).decode()
    return ResolvedClass(
        **msgspec.structs.asdict(obj),
        credentials=credentials,
        user_data=data.get(USER_DATA, b""),
        faults=faults,
        lacking=tuple(lacking),
        origin=_origin(obj, data),
        # Not that of the object: what we write on it ourselves is nothing new.
        version=(obj.uid, spec, credentials.digest, *sorted(obj.imports), *faults),
    )


def no_class(name: str, namespace: str) -> ResolvedClass:
    """Return what stands for a class that does not exist."""
    fault = f"MachineClass {namespace}/{name} does not exist; create it, or correct spec.class.name"
    if not name:
        fault = "spec.class needs the kind MachineClass and a name"
    return ResolvedClass(
        metadata=ObjectMeta(name=name, namespace=namespace),
        credentials=Credentials({}),
        faults=(fault,),
        lacking=(fault,),
    )


def refusals(obj: MachineClass) -> list[str]:
    """Return what the driver refuses about a class, as its condition says."""
    return [
        one.message
        for one in obj.conditions
        if (one.type, one.status) == (reasons.CONDITION_SPEC_VALID, STATUS_FALSE)
    ]


def _provider_faults(obj: MachineClass, providers: Collection[str]) -> Iterator[str]:
    if obj.provider and obj.provider.casefold() not in map(str.casefold, providers):
        accepted = " or ".join(repr(one) for one in sorted(providers))
        yield (
            f"MachineClass {obj.name}: provider is {obj.provider!r}, and the driver in use serves "
            f"{accepted}; correct the field, or remove it"
        )


def _origin(obj: MachineClass, data: Mapping[str, bytes]) -> str:
    # Four digits tell that something is another, and not what it is.
    region = f"{obj.region}/{obj.provider_spec.get('region', '')}"
    where = {key: value for key, value in data.items() if key != USER_DATA}
    return Credentials({**where, "": region.encode()}).digest[:4]
