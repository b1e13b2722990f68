"""Provider IDs: `<scheme>://<id>`, where the scheme is the provider's name."""

from __future__ import annotations

from collections.abc import Collection

from ccm.cloud.errors import InvalidArgument

_SEPARATOR = "://"


def format_provider_id(scheme: str, instance_id: str) -> str:
    """Build a provider ID."""
    return f"{scheme}{_SEPARATOR}{instance_id}"


def parse_provider_id(provider_id: str, scheme: str) -> str:
    """The instance ID in a provider ID of this scheme.

    Raises:
        InvalidArgument: it has another scheme, none, or nothing behind it. A foreign ID is
            never an absence.
    """
    found, separator, instance_id = provider_id.partition(_SEPARATOR)
    if not separator or found != scheme or not instance_id.strip("/"):
        raise InvalidArgument(
            f"provider ID {provider_id!r} is not of this cloud; expected {scheme}://<id>"
        )
    return instance_id


def is_foreign(provider_id: str, schemes: Collection[str], others: Collection[str] = ()) -> bool:
    """Whether a provider ID names another cloud.

    An empty ID and one without a scheme are not foreign: nothing says whose they are, so
    the provider decides.

    Args:
        provider_id: of a node.
        schemes: ours.
        others: what IDs begin with that are others' though their scheme is ours.
    """
    scheme, separator, _ = provider_id.partition(_SEPARATOR)
    return bool(separator) and (scheme not in schemes or provider_id.startswith(tuple(others)))


def is_same_instance(one: str, other: str) -> bool:
    """Whether two provider IDs name the same instance, one of them with more of its place.

    `stackit://<project>/<server>` and `stackit://<server>` do: some clouds' machine drivers and
    node controllers write different forms. Two of the same length are the same when they are equal.
    """
    if not one or not other:
        return False
    schemes, _, rests = zip(*(each.partition(_SEPARATOR) for each in (one, other)), strict=True)
    shorter, longer = sorted((rest.strip("/").split("/") for rest in rests), key=len)
    return len(set(schemes)) == 1 and longer[-len(shorter) :] == shorter
