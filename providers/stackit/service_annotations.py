"""The Service annotations of STACKIT, as one schema; names are the vendor's.

Those below `yawol.stackit.cloud/` are older. Some say what a newer one says: a Service may have
both, if they agree. Of the older ones a truth or a duration that is none is passed over, as ever.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from ccm import cloud
from ccm.base import parsing
from ccm.base.parsing import parse_digits
from ccm.cloud.annotations import markdown, truth

from . import config

PLANS = ("p10", "p50", "p250", "p750")
"""Service plans, the smallest first."""

_BY_PLAN: Mapping[str, str] = {
    "p10": """
        85f57dd5-712b-489d-a0e3-4898c3962930 25129382-dbe8-43eb-b71b-72253dd69452
        22b37153-8817-4c85-9805-92426b2f903c osAyv1W3z2TU5D6h
    """,
    "p50": """
        cd49f4fd-1e48-497f-91ad-79894c8b95e4 2faeefeb-efe7-4f8b-9e52-3246a5d709f0
        7d1572e1-11c9-4872-8ce8-4b953cdf6fb3 5fe737c2-18d8-43c6-bb11-dc9c97ff9515
        6f65263f-0902-47ca-8761-6e449648c8f0 a9704593-dc26-45b7-8b1c-a37bf42d253e
        ef66543f-3225-48b0-ab42-4cfda07668b8 0c69d386-ca5e-4720-8812-225bbf4d4879
        64d695be-04b8-4f14-b020-712ef0e30a6b 17837ed5-515a-457f-b36b-531fdb861b8a
        8d811c25-a261-4cbe-aadf-6c2d9667c842 474e2367-9c96-4fc0-ac41-eac7f59a1c7b
        410cc4c1-0684-47fa-9e72-866f1044a330 04b9be2d-afee-4f32-874b-8356b96ebb0b
        a24a1a07-4c66-4030-bbfd-68368e4bb8be aa603f7b-4214-486c-81ce-369535cef8ed
        d651f154-7fc9-4bf6-a34a-a32e3dd57c5d 8b2c5d9f-e7da-4cd2-a359-e652817845fe
    """,
    "p250": """
        72f11e14-2825-471d-a237-b1afa775fdad 75e8134a-e1de-4052-b3be-75c5157c47c6
        49902b99-b428-4e6a-ad34-d8b9e719390f 882a98ba-d47f-4a52-bd85-ccbc2b08f8f8
        8512c5f9-4426-47f1-a9dc-5c5a5a798b54 d04236f9-4740-4058-9695-0a80a9b3a9b0
        a03cf8cd-f5e4-4897-b639-41b4a1a46dc6 3b11b27e-6c73-470d-b595-1d85b95a8cdf
        028a4cf9-d9de-4706-a6d2-3ec9a456a736 c6b4adc7-d101-48d4-a2ea-d77cbaa63768
        c995089f-8d81-4085-be7b-dc2f7ad3f05f 8a7bd5b4-7ac6-414b-ac62-a6c43229038a
        e3abfbba-b9fe-4973-ac92-2856f489d09a b7aa1635-3726-4924-9d73-18b9683fb67a
        79021845-f6de-46f0-be07-17835930d030 8d705710-c7a8-4e64-aa96-87add166f42d
        88883131-9afa-43ad-bc4e-77b79494e89f 39d1344f-91dc-412a-a3b4-72e61b6c6eaa
        d61f0a42-a3e0-4723-b78a-d51d3d719ade b4be83e0-475c-4255-a5ef-e6876c413a09
        709d7f73-41f0-4295-94d5-0f0cf351c93b
    """,
    "p750": """
        53408825-7086-48c2-9126-cafdeb2d35d6 9b6bfa7b-bb80-4da8-aa10-ddd4cfaaa1a1
        8936d6a5-30bb-4012-834c-29c599800e53 1493fabc-3e5c-4992-82fc-d43e2c33902a
        f77046c4-6c41-452c-9983-7264151252fa f778f21f-b0a7-4ae0-88e9-917f01d6fb52
        ce99338f-afc2-4966-89e2-34e494d89e4b 2e364c23-ee61-451c-841c-8fa25573ae9d
        c1e2def6-e182-4bf6-a0f9-9b5b453eb55a fda4f402-6d43-4db5-bcf1-384596f237bb
        704c07a3-1308-4cdd-b8f3-0892589cb99c 696d8b7a-6aaa-456c-853b-11a7ba490b66
        8b46ca04-e7ec-4f01-a2ed-67e75e3fe04f 6c1b79d7-b344-407e-808d-476187c7dcd6
        013451f5-4c26-4464-84e6-cc5f1c8b0f8a 2787f539-a8b9-40d3-873d-6db51a2edb41
        7bd9d46f-7c3b-4089-88e5-fca17581295e 562af0ba-2540-4b49-943e-0beb6c9afa04
        a09e6576-4f74-4a4d-963a-05ec49e27f18 ecb39de6-8b6c-431e-8455-9d857639be92
        442e31fa-654a-4f76-b7c2-4802592f9cc7 cac16b39-a179-43c5-b5e5-ad22eca1c87c
        381b5633-b064-41aa-af78-cd1bd318a0e1 cee66b47-8465-469d-bb61-7a23073c3488
        5fa8e67c-4259-4353-8e29-dece88c3a394 21ff0965-d385-4e90-9ae4-e1ac8ca8f569
        d1f51f86-3fa3-46a1-9e9f-b8b1308f039e cfd6f5f6-b2da-49db-9f1c-4f2ef4c8e831
        816c3d62-3526-47c6-90b4-7c47318f7526 84a73cca-db0b-4d56-837f-5e5422520d51
        b9f4c5f0-49d7-48a1-ab41-34000f00664b f5bfad0d-22d2-4e47-a807-8413e6d0818f
        396a0814-b339-4e9f-8d2f-ccef53937541 a98b686a-4207-4bc2-902a-6f303da7b043
        9c0a9d2d-79e9-4b99-a72f-e15c0d987e7d f6303887-f07c-4976-9198-0eb0dd964b18
        b1ca70ea-4da7-441d-8aef-8337c5f81fb2 901a56b3-4c98-4725-986a-2aa081b9c955
        baa5374c-cb97-47b9-be8c-e79103b3d097 ccd8f298-d885-4c8b-bf40-414ee8f39967
        acd9945a-f94a-4e64-a4a3-81f587b596cf 27b97158-43d6-44a1-8cf2-d95989f2cc07
        9d76cf5e-1354-446f-8ca1-0d704bee89ca e6897bc6-6a21-451c-b6cb-d80725781446
        6fedeb8b-0536-4fbb-80b3-3791d00346b2 e772e068-6400-4664-8813-811e835b169e
        ae6ea4bb-f26c-41c1-a974-ff422601c0b6 79b7b9a7-a062-4aab-9861-ba93c1935a68
        309471e2-21e8-4384-8ad9-484bf56372b3 c4d49baf-fcfa-4ec1-8160-9ec7e57123fc
        178cf1ad-abcb-46c2-a045-73bc935f100e 482434d3-3604-4f72-98d8-2af2c654d4e9
        6f04a265-3a9f-4b99-bb66-944ac848af22 4b4891d6-860b-4c70-b48e-d261e9751b56
        396671f4-6f19-4531-98d0-127272916cee 0c85bbb2-5c85-465c-abf9-71261b8fbcd4
        a7c5c538-aef1-4f40-8c8d-1366c5b80271
    """,
}

FLAVORS: Mapping[str, str] = {
    flavor: plan for plan, flavors in _BY_PLAN.items() for flavor in flavors.split()
}
"""ID of a flavor -> plan."""


T = TypeVar("T")

PREFIX = "lb.stackit.cloud/"
LEGACY = "yawol.stackit.cloud/"
"""What the names of all of them begin with. A promise to old clusters."""

TCP_IDLE, UDP_IDLE = timedelta(minutes=60), timedelta(minutes=2)
"""The vendor's manager's; the API has others."""


def _plan(text: str) -> str:
    if text not in PLANS:
        raise ValueError(text)
    return text


def _flavor(text: str) -> str:
    if text not in FLAVORS:
        raise ValueError(text)
    return FLAVORS[text]


def _ipv4(text: str) -> str:
    return str(ipaddress.IPv4Address(text))


def _duration(text: str) -> timedelta:
    found = parsing.parse_duration(text)
    if found < timedelta(0):
        raise ValueError(text)
    return found


def _ports(text: str) -> tuple[int, ...]:
    words = [one.strip() for one in text.split(",")] if text.strip() else []
    found = [parse_digits(one, most=65535) for one in words]
    if None in found:
        raise ValueError(text)
    return tuple(one for one in found if one is not None)


def _words(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def _or_nothing(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    def tried(text: str) -> T | None:
        try:
            return parse(text)
        except ValueError:
            return None

    return tried


def _annotation(
    name: str, expects: str, help_: str, parse: Callable[[str], T], shown: str = ""
) -> cloud.ServiceAnnotation[T | None]:
    return cloud.ServiceAnnotation(
        name=name, expects=expects, default=None, shown=shown, help=help_, parse=parse
    )


_BOOL = "true or false"
_TIME = "a duration such as 15m"
_IP = "an IPv4 address"
_PORTS = "ports, with commas"

INTERNAL = _annotation(
    f"{PREFIX}internal-lb", _BOOL, "No public address; for ever.", truth, "false"
)
EXTERNAL = _annotation(
    f"{PREFIX}external-address", _IP, "A public address that you have, and keep.", _ipv4
)
PROXY = _annotation(
    f"{PREFIX}tcp-proxy-protocol",
    _BOOL,
    "Tell targets the client's address by the PROXY protocol, for TCP.",
    truth,
    "false",
)
PROXY_PORTS = _annotation(
    f"{PREFIX}tcp-proxy-protocol-ports-filter",
    _PORTS,
    "Of these ports of the Service only; empty = of none.",
    _ports,
)
TCP_TIMEOUT = _annotation(
    f"{PREFIX}tcp-idle-timeout", _TIME, "After it an idle connection is closed.", _duration, "60m"
)
UDP_TIMEOUT = _annotation(
    f"{PREFIX}udp-idle-timeout", _TIME, "After it a silent client is forgotten.", _duration, "2m"
)
PLAN = _annotation(
    f"{PREFIX}service-plan-id", " or ".join(PLANS), "Its service plan; it is changed.", _plan, "p10"
)
IP_MODE = _annotation(
    f"{PREFIX}ip-mode-proxy",
    _BOOL,
    "Have traffic from inside the cluster go through the load balancer too (ipMode Proxy).",
    truth,
    "false",
)
PERSISTENCE = _annotation(
    f"{PREFIX}session-persistence-with-source-ip",
    _BOOL,
    "Keep a client, by its address, at its target.",
    truth,
    "false",
)
LISTENER_NETWORK = _annotation(
    f"{PREFIX}listener-network",
    "ID of a network",
    "Listen there, and not where the nodes are; for ever.",
    lambda text: config.parse_uuid(text) if text else None,
)

OLD_INTERNAL = _annotation(
    f"{LEGACY}internalLB", _BOOL, f"As `{INTERNAL.name}`.", _or_nothing(truth)
)
OLD_EXTERNAL = _annotation(f"{LEGACY}existingFloatingIP", _IP, f"As `{EXTERNAL.name}`.", _ipv4)
OLD_RANGES = _annotation(
    f"{LEGACY}loadBalancerSourceRanges",
    "ranges, with commas",
    "As `spec.loadBalancerSourceRanges`, which goes before.",
    _words,
)
OLD_PROXY = _annotation(
    f"{LEGACY}tcpProxyProtocol", _BOOL, f"As `{PROXY.name}`.", _or_nothing(truth)
)
OLD_PROXY_PORTS = _annotation(
    f"{LEGACY}tcpProxyProtocolPortsFilter", _PORTS, f"As `{PROXY_PORTS.name}`.", _ports
)
OLD_TCP_TIMEOUT = _annotation(
    f"{LEGACY}tcpIdleTimeout", _TIME, f"As `{TCP_TIMEOUT.name}`.", _or_nothing(_duration)
)
OLD_UDP_TIMEOUT = _annotation(
    f"{LEGACY}udpIdleTimeout", _TIME, f"As `{UDP_TIMEOUT.name}`.", _or_nothing(_duration)
)
FLAVOR = _annotation(
    f"{LEGACY}flavorId",
    "ID of a flavor",
    f"A plan that is as strong, unless `{PLAN.name}` says which.",
    _flavor,
)
CLASS_NAME = _annotation(
    f"{LEGACY}className",
    "text",
    "Any but `stackit` leaves the Service to another controller, unless it has one here.",
    str,
)

UNSUPPORTED = tuple(
    _annotation(f"{LEGACY}{name}", "text", "No effect; a line in the log says so.", str)
    for name in (
        "imageId",
        "defaultNetworkID",
        "skipCloudControllerDefaultNetworkID",
        "floatingNetworkID",
        "availabilityZone",
        "debug",
        "debugsshkey",
        "replicas",
        "logForward",
        "logForwardLokiURL",
        "serverGroupPolicy",
        "additionalNetworks",
    )
)
"""What made sense for the load balancers of before."""

SCHEMA: tuple[cloud.ServiceAnnotation[Any], ...] = tuple(
    value for value in list(vars().values()) if isinstance(value, cloud.ServiceAnnotation)
)
SCHEMA += UNSUPPORTED
"""All annotations above, in their order."""


def agreed(
    service: cloud.Service,
    new: cloud.ServiceAnnotation[T | None],
    old: cloud.ServiceAnnotation[T | None],
) -> T | None:
    """What a Service says in either way; None: in none.

    Raises:
        InvalidArgument: a value is none, or the two differ.
    """
    found, before = new.read(service), old.read(service)
    if found is not None and before is not None and found != before:
        raise cloud.InvalidArgument(
            f"annotations {new.name} and {old.name} say different things; take the older one away"
        )
    return before if found is None else found


def table() -> str:
    """The annotations as a Markdown table."""
    return markdown(SCHEMA)
