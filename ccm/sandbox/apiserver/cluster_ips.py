"""The cluster IPs and IP families of a Service: linked fields completed, addresses taken.

Clients may state `clusterIP` without `clusterIPs`, and leave out families and policy; what
they mean is found out from the rest, from the stored Service and from the families of
the cluster. Every function changes the spec it is given.
"""

from __future__ import annotations

from typing import Any

from ccm.sandbox.apiserver import errors, ledger, validate_service
from ccm.sandbox.apiserver import service_rules as rules

Spec = dict[str, Any]


class FaultyError(Exception):
    """The fields do not go together, or an address cannot be had."""

    def __init__(self, causes: list[errors.Cause]) -> None:
        super().__init__()
        self.causes = causes


def normalise(spec: Spec, old: Spec | None) -> None:
    """Let `clusterIPs` follow from `clusterIP` where only that was stated or changed."""
    first, every = spec.get("clusterIP", ""), spec.get("clusterIPs") or []
    if old is None:
        if first and not every:
            spec["clusterIPs"] = [first]
        return
    before, known = old.get("clusterIP", ""), old.get("clusterIPs") or []
    if known and not every and first == before:
        spec["clusterIPs"] = list(known)
    elif first != before and every == known:
        if first:
            spec["clusterIPs"] = [first]
        else:
            spec.pop("clusterIPs", None)


def complete(spec: Spec, old: Spec | None, families: list[str]) -> None:
    """Fill in the IP families and their policy.

    Args:
        spec: of the Service.
        old: of the stored one.
        families: of the cluster, the default first.

    Raises:
        FaultyError: what is stated does not go together, or not with the cluster.
    """
    if spec["type"] == rules.EXTERNAL_NAME or _keeps_preference(spec, old):
        return
    _check(list(validate_service.related_faults(spec)))
    selectorless = rules.is_headless(spec) and not spec.get("selector")
    if "ipFamilyPolicy" not in spec:
        known = (old or {}).get("ipFamilyPolicy")
        spec["ipFamilyPolicy"] = known or (rules.REQUIRE_DUAL if selectorless else rules.SINGLE)
    policy = spec["ipFamilyPolicy"]
    _check(_shrunk(spec, old) + _too_many(spec) + _inferred(spec, families))
    wanted = spec.get("ipFamilies") or [families[0]]
    if not selectorless:
        _check(_not_configured(policy, wanted, families))
    # A headless Service without selector has families that the cluster need not have.
    if policy != rules.SINGLE and len(wanted) == 1 and (selectorless or len(families) > 1):
        wanted = [*wanted, _other(wanted[0])]
    spec["ipFamilies"] = list(wanted)


def take(spec: Spec, old: Spec | None, draft: ledger.Draft) -> None:
    """Take the addresses that are stated or missing.

    Raises:
        FaultyError: a stated one cannot be had.
        RefusedError: there is none left.
    """
    if not rules.needs_cluster_ip(spec) or rules.is_headless(spec):
        return
    stated = list(spec.get("clusterIPs") or [])
    held = list((old or {}).get("clusterIPs") or [])
    families = spec.get("ipFamilies") or []
    if old is not None and rules.needs_cluster_ip(old):
        if rules.is_headless(old) or len(families) <= len(held):
            return
    else:
        held = []
    taken = held[:]
    for number in range(len(held), len(families)):
        if number < len(stated):
            taken.append(_take_stated(stated, number, draft))
        else:
            taken.append(draft.any_address(families[number]))
    spec["clusterIPs"] = taken
    spec["clusterIP"] = taken[0]


def _take_stated(stated: list[str], number: int, draft: ledger.Draft) -> str:
    try:
        return draft.take_address(stated[number])
    except ledger.RefusedError as error:
        why = f"failed to allocate IP {stated[number]}: {error}"
        raise FaultyError([errors.bad_value("spec.clusterIPs", stated, why)]) from error


def _keeps_preference(spec: Spec, old: Spec | None) -> bool:
    """A Service that prefers two families is only touched when it is about them."""
    return (
        old is not None
        and all(
            spec.get(key) == old.get(key)
            for key in ("type", "ipFamilyPolicy", "ipFamilies", "clusterIPs")
        )
        and spec.get("ipFamilyPolicy") == rules.PREFER_DUAL
    )


def _shrunk(spec: Spec, old: Spec | None) -> list[errors.Cause]:
    """One family less is enough if the policy says so; else it is a fault."""
    if old is None:
        return []
    found = []
    for key, what in (("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")):
        values, known = spec.get(key) or [], old.get(key) or []
        if spec["ipFamilyPolicy"] == rules.SINGLE:
            if values == known and len(values) > 1:
                spec[key] = values[:1]
        elif values and len(values) < len(known) and values == known[: len(values)]:
            detail = f"must be 'SingleStack' to release the secondary {what}"
            found.append(_about_policy(spec, detail))
    return found


def _too_many(spec: Spec) -> list[errors.Cause]:
    if spec["ipFamilyPolicy"] != rules.SINGLE:
        return []
    return [
        _about_policy(
            spec,
            f"must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified",
        )
        for key, what in (("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families"))
        if len(spec.get(key) or []) == 2
    ]


def _inferred(spec: Spec, families: list[str]) -> list[errors.Cause]:
    """Take missing families from the addresses."""
    addresses = spec.get("clusterIPs") or []
    found = []
    inferred = list(spec.get("ipFamilies") or [])
    for number in range(len(inferred), 0 if rules.is_headless(spec) else len(addresses)):
        family = rules.family_of(addresses[number])
        if family in families:
            inferred.append(family)
        else:
            detail = f"{family} is not configured on this cluster"
            found.append(errors.bad_value(f"spec.clusterIPs[{number}]", list(addresses), detail))
    if inferred:
        spec["ipFamilies"] = inferred
    return found


def _not_configured(policy: str, wanted: list[str], families: list[str]) -> list[errors.Cause]:
    found = []
    if policy == rules.REQUIRE_DUAL and len(families) < 2:
        detail = "this cluster is not configured for dual-stack services"
        found.append(errors.bad_value("spec.ipFamilyPolicy", policy, detail))
    for number, family in enumerate(wanted):
        if family not in families:
            detail = "not configured on this cluster"
            found.append(errors.bad_value(f"spec.ipFamilies[{number}]", family, detail))
    return found


def _about_policy(spec: Spec, detail: str) -> errors.Cause:
    return errors.bad_value("spec.ipFamilyPolicy", spec["ipFamilyPolicy"], detail)


def _other(family: str) -> str:
    return rules.IPV4 if family == rules.IPV6 else rules.IPV6


def _check(causes: list[errors.Cause]) -> None:
    if causes:
        raise FaultyError(causes)
