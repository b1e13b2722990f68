"""Deletions that the daemon holds back, and what it says about them."""

from __future__ import annotations

from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, count, fail, ok, warn
from ccm.kube import errors
from ccm.kube.resources import CONFIG_MAPS
from ccm.model import names
from ccm.runtime import deletions
from ccm.runtime.deletions import GarbledRecord, held_back


async def deletions_held(case: Case) -> Finding:
    """Read the record of deletions."""
    options = case.options
    namespace, owner = options.leader_elect_resource_namespace, options.leader_elect_resource_name
    where = f"ConfigMap {namespace}/{deletions.NAME}"
    try:
        record = await case.client.resource(CONFIG_MAPS).get(deletions.NAME, namespace=namespace)
        found = held_back(record, owner)
    except errors.NotFound:
        return ok("none is held back")
    except GarbledRecord as error:
        return fail(f"{where}: {error}", "correct it, or delete it: the daemon makes a new one")
    if record.allows_deletion:
        return warn(
            f"{where} allows deletions of any number, by its annotation "
            f"{names.ANNOTATION_ALLOW_DELETION}",
            "take the annotation away once all is well",
        )
    if not found:
        return ok("none is held back")
    numbers = [count(each.count, kind) for kind, each in sorted(found.items())]
    return warn(
        f"held back: {', '.join(numbers)}",
        "find out whether they are gone indeed: the events of the objects say why they are held, "
        "and how to allow it",
        details=[
            f"{kind} {one.key}: {one.reason}, since {one.since}"
            for kind, each in sorted(found.items())
            for one in each.objects
        ]
        + [
            f"{kind}: and {each.count - len(each.objects)} more"
            for kind, each in sorted(found.items())
            if each.count > len(each.objects)
        ],
    )
