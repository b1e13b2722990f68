"""Certificates that load balancers show: those that are there, and those that are made."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ccm import cloud
from ccm.base.parsing import parse_digits

from . import client
from . import service_annotations as ann
from .marks import SERVICE_UID

STAGING = "HC-Use-Staging-CA"
"""Label by which the API has the issuer's staging environment make a certificate."""


def words(service: cloud.Service) -> Sequence[str]:
    """Names and IDs of the certificates that a Service shows."""
    if ann.PROTOCOL.read(service) != "https":
        return ()
    if ann.CERTIFICATE_TYPE.read(service) == "managed":
        return (_managed_name(service),)
    return ann.CERTIFICATES.read(service) or ()


def _managed_name(service: cloud.Service) -> str:
    return ann.MANAGED_NAME.read(service) or f"ccm-managed-certificate-{service.uid}"


async def resolved(api: client.Client, service: cloud.Service) -> Sequence[int]:
    """Their IDs; one request for each name. What is to be made is made.

    Raises:
        InvalidArgument: there is no such certificate, or it is not said what one is for.
    """
    if ann.CERTIFICATE_TYPE.read(service) == "managed":
        return (await _managed(api, service),)
    found = []
    for word in words(service):
        number = parse_digits(word)
        if number is None:
            thing = await api.resolved("certificates", "certificate", client.Labelled, word)
            number = thing.id
        found.append(number)
    return found


async def _managed(api: client.Client, service: cloud.Service) -> int:
    name, domains = _managed_name(service), ann.MANAGED_DOMAINS.read(service)
    if not domains:
        raise cloud.InvalidArgument(
            f"{ann.MANAGED_DOMAINS.name} is missing; a managed certificate needs it"
        )
    found = await api.named("certificates", client.Labelled, name)
    if found is None:
        labels = {SERVICE_UID: service.uid}
        if ann.MANAGED_STAGING.read(service):
            labels[STAGING] = "true"
        order = {"name": name, "type": "managed", "domain_names": domains, "labels": labels}
        with contextlib.suppress(cloud.AlreadyExists):  # by a call whose answer was lost
            made, _ = await api.create("certificates", "certificate", client.Labelled, order)
            return made.id
        found = await api.resolved("certificates", "certificate", client.Labelled, name)
    return found.id


async def remove(api: client.Client, service: cloud.Service) -> None:
    """Take away what was made for a Service: one request, another for each.

    Whatever the Service asks for by now: it may have asked for one before, and nothing else is
    looked at than the label, which certificates of others do not have.
    """
    labels = {SERVICE_UID: service.uid}
    for one in await api.labelled("certificates", client.Labelled, labels):
        with contextlib.suppress(cloud.NotFound):
            await api.delete(f"/certificates/{one.id}")
