"""The installed providers, and what each says about itself, mostly without opening it.

Without a configuration that is what it declares where it is registered; with one the provider is
opened, and knows better what it offers.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ccm.app.provider import context, opened_once
from ccm.cloud import registry
from ccm.cloud.annotations import ServiceAnnotation
from ccm.cloud.interface import Cloud, InstanceStates, LoadBalancerDigests
from ccm.cloud.settings import Setting, table

OFFERS: Mapping[str, str] = {
    "instances": "instances",
    "instances_v1": "instances (v1)",
    "zones": "zones",
    "inventory": "bulk listing",
    "load_balancer": "load balancers",
    "routes": "routes",
    "clusters": "clusters",
    "machines": "machines",
}
"""Field of `Cloud` -> what people call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A provider that some distribution offers.

    Attributes:
        name: as `--cloud-provider` takes it.
        package: name and version of the distribution; empty if unknown.
        target: what its entry point names, `module:function`.
        fault: why it cannot be used; empty if it loads.
    """

    name: str
    package: str
    target: str
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a provider says about itself.

    Attributes:
        installed: where it comes from.
        sdk: the version of the SDK that it was written for.
        about: first paragraph of its documentation.
        opened: whether it was opened; else this is what it declares.
        offers: what it can do, in words; None: it does not say.
        form: of its cloud config, such as YAML; empty: it does not say.
        settings: of its cloud config.
        prefixes: of the Service annotations it reads; None: every annotation counts.
        annotations: those annotations one by one.
    """

    installed: Installed
    sdk: str
    about: str
    opened: bool
    offers: Sequence[str] | None
    form: str
    settings: Sequence[Setting]
    prefixes: Sequence[str] | None
    annotations: Sequence[ServiceAnnotation[Any]]


def installed() -> list[Installed]:
    """Every provider, by name, those that cannot be used with the reason."""
    found = {_installed(entry) for entry in entry_points(group=registry.GROUP)}
    return sorted(found, key=lambda one: (one.name, one.package))


async def describe(name: str, *, cloud_config: str = "") -> Description:
    """Everything a provider says about itself.

    Args:
        name: of the provider.
        cloud_config: file with which it is opened; empty: it is not opened.

    Raises:
        ProviderError: it cannot be used.
        Misconfigured: it refuses the configuration.
        Exception: whatever else keeps it from opening.
    """
    opener = registry.load(name)
    declared = registry.declared(opener)
    offered = declared.offers and [OFFERS.get(one, one) for one in declared.offers]
    told: registry.provider | Cloud = declared
    if cloud_config:
        given = context(file=cloud_config, cluster_name="kubernetes", clients=None)
        async with opened_once(name, opener, given) as told:
            offered = offers(told)
    return Description(
        installed=next(one for one in installed() if one.name == name),
        sdk=declared.sdk,
        about=_about(opener),
        opened=bool(cloud_config),
        offers=offered,
        form=declared.form if declared.config else "",
        settings=table(declared.config) if declared.config else (),
        prefixes=told.service_annotations,
        annotations=told.service_annotation_schema,
    )


def offers(cloud: Cloud) -> Sequence[str]:
    """What an open provider can do, in words."""
    parts = {name: getattr(cloud, name) for name in OFFERS}
    found = [OFFERS[name] for name, part in parts.items() if part is not None]
    if isinstance(parts["instances"], InstanceStates):
        found.append("existence and power in one answer")
    if isinstance(parts["load_balancer"], LoadBalancerDigests):
        found.append("load balancers compared by digest")
    return found


def document(one: Description) -> Mapping[str, object]:
    """A description as plain values."""
    return {
        **plain(one.installed),
        "sdk": one.sdk,
        "about": one.about,
        "opened": one.opened,
        "offers": None if one.offers is None else list(one.offers),
        "cloudConfig": {
            "format": one.form,
            "settings": [dataclasses.asdict(each) for each in one.settings],
        },
        "serviceAnnotationPrefixes": None if one.prefixes is None else list(one.prefixes),
        "serviceAnnotations": [
            {
                "name": each.name,
                "expects": each.expects,
                "default": each.shown,
                "help": each.help,
            }
            for each in one.annotations
        ],
    }


def plain(one: Installed) -> Mapping[str, object]:
    """An installed provider as plain values."""
    return {
        "name": one.name,
        "package": one.package,
        "target": one.target,
        "usable": not one.fault,
        "fault": one.fault,
    }


def _installed(entry: EntryPoint) -> Installed:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
    fault = ""
    try:
        registry.load(entry.name)
    except registry.ProviderError as error:
        fault = str(error)
    return Installed(name=entry.name, package=package, target=entry.value, fault=fault)


def _about(opener: registry.Opener) -> str:
    module = inspect.getmodule(inspect.unwrap(opener))
    text = inspect.getdoc(module) or ""
    return " ".join(text.partition("\n\n")[0].split())
