"""The installed providers, and what each says about itself, mostly without opening it.

Without a configuration the settings come from `recording`, and what it offers from `sources`;
with one the provider is opened, and knows better.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ccm.app.provider import context, opened_once
from ccm.cloud import registry
from ccm.cloud.annotations import ServiceAnnotation
from ccm.cloud.interface import Cloud, InstanceStates, LoadBalancerDigests
from ccm.doctor import recording, sources

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
        opened: whether it was opened; else its source was read.
        offers: what it can do, in words; None: the source does not tell.
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
    settings: Sequence[recording.Setting]
    prefixes: Sequence[str] | None
    annotations: Sequence[ServiceAnnotation[Any]]


def installed() -> list[Installed]:
    """Every provider, by name, those that cannot be used with the reason."""
    found = {_describe_entry(entry): entry for entry in entry_points(group=registry.GROUP)}
    listed = [
        Installed(name=name, package=package, target=target, fault=_fault(name))
        for name, package, target in found
    ]
    return sorted(listed, key=lambda one: (one.name, one.package))


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
    form, settings = await recording.read(opener)
    told = await _opened(name, opener, cloud_config) if cloud_config else sources.read(opener)
    here = next(one for one in installed() if one.name == name)
    return Description(
        installed=here,
        sdk=str(getattr(opener, "sdk", registry.SDK_VERSION)),
        about=_about(opener),
        opened=bool(cloud_config),
        offers=None if told is None else _words(told),
        form=form,
        settings=settings,
        prefixes=_known(told, "service_annotations"),
        annotations=_known(told, "service_annotation_schema") or (),
    )


def offers(cloud: Cloud) -> Sequence[str]:
    """What an open provider can do, in words."""
    return _words(_told(cloud))


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
            "settings": [
                {
                    "name": each.name,
                    "kind": each.kind,
                    "default": each.default,
                    "required": each.required,
                }
                for each in one.settings
            ],
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


def _describe_entry(entry: EntryPoint) -> tuple[str, str, str]:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
    return entry.name, package, entry.value


def _fault(name: str) -> str:
    try:
        registry.load(name)
    except registry.ProviderError as error:
        return str(error)
    return ""


def _about(opener: registry.Opener) -> str:
    module = inspect.getmodule(inspect.unwrap(opener))
    text = inspect.getdoc(module) or ""
    return " ".join(text.partition("\n\n")[0].split())


async def _opened(name: str, opener: registry.Opener, file: str) -> Mapping[str, Any]:
    given = context(file=file, cluster_name="kubernetes", clients=None)
    async with opened_once(name, opener, given) as cloud:
        return _told(cloud)


def _known(told: Mapping[str, Any] | None, name: str) -> Any:
    value = None if told is None else told.get(name)
    return None if value is sources.UNKNOWN else value


def _told(cloud: Cloud) -> Mapping[str, Any]:
    return {name: getattr(cloud, name) for name in sources.FIELDS}


def _words(told: Mapping[str, Any]) -> Sequence[str]:
    found = [words for name, words in OFFERS.items() if told.get(name) is not None]
    if isinstance(told.get("instances"), InstanceStates):
        found.append("existence and power in one answer")
    if isinstance(told.get("load_balancer"), LoadBalancerDigests):
        found.append("load balancers compared by digest")
    return found
