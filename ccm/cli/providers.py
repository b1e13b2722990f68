"""`kube-ccm providers`: lists installed providers, or describes the capabilities of a provider.

Without a cloud config, the capabilities are those that the provider declares. With a cloud config,
the provider is opened, and the capabilities are those of the open provider.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from ccm.base.flags import PROVIDERS
from ccm.cli import command
from ccm.cli.command import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from ccm.cloud import registry
    from ccm.cloud.interface import Cloud

_DESCRIPTION = """\
Without a name: the installed providers, their packages, and whether they load.

With a name: the capabilities of the provider, the settings of its cloud config, and the Service
annotations that it reads. The provider is opened, and may call its cloud, only with --cloud-config.
"""

_EPILOG = """\
examples:
  kube-ccm providers
  kube-ccm providers sim
  kube-ccm providers sim --cloud-config cloud.yaml -o json

exit status: 0 success, 1 the provider does not exist or cannot be used, 2 invalid command line
"""

_WIDTH = 98

Document = Mapping[str, Any]


def add(commands: Any) -> None:
    """Register the subcommand."""
    summary = "list the installed providers, or describe the capabilities and settings of one"
    parser = command.add_parser(
        commands, "providers", summary, description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.set_defaults(run=lambda options: _run(parser, options))
    option = parser.add_argument
    option("name", nargs="?", metavar="NAME", help="describe this provider")
    option(
        "--cloud-config",
        metavar="FILE",
        default="",
        help="with NAME: open the provider with this cloud config and show its capabilities",
    )
    option(
        "-o",
        "--output",
        choices=command.FORMATS,
        default=command.FORMATS[0],
        help=f"output format: {', '.join(command.FORMATS)} (default: %(default)s)",
        metavar="FORMAT",
    )


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from ccm.base import redact

    if options.cloud_config and not options.name:
        parser.error("--cloud-config needs the NAME of a provider")
    document: Document | Sequence[Document]
    if options.name:
        try:
            document = asyncio.run(describe(options.name, cloud_config=options.cloud_config))
        except Exception as error:  # noqa: BLE001 - a provider may fail in any way
            command.fail("providers", redact.mask_text(str(error) or type(error).__name__))
            return EXIT_FAILED
        lines = _page(document)
    else:
        document = installed()
        lines = _listing(document)
    command.show_result(sys.stdout, options.output, document, lines)
    return EXIT_OK


def installed() -> list[Document]:
    """Return every installed provider, sorted by name; an unusable provider has a `fault`."""
    documents = map(_installed, entry_points(group=PROVIDERS))
    by_name = {
        (document["name"], document["package"], document["target"]): document
        for document in documents
    }
    return [document for _, document in sorted(by_name.items())]


def _installed(entry: EntryPoint) -> Document:
    from ccm.cloud import registry

    fault = ""
    try:
        registry.load_provider(entry.name)
    except registry.ProviderError as error:
        fault = str(error)
    return {
        "name": entry.name,
        "package": f"{entry.dist.name} {entry.dist.version}" if entry.dist else "",
        "target": entry.value,
        "usable": not fault,
        "fault": fault,
    }


async def describe(name: str, *, cloud_config: str = "") -> Document:
    """Return the description of a provider.

    Args:
        name: name of the provider.
        cloud_config: path of the cloud config for opening the provider; empty = do not open it.

    Raises:
        ProviderError: the provider cannot be loaded.
        Misconfigured: the provider rejects its cloud config.
        Exception: the provider could not be opened for another reason.
    """
    import dataclasses
    import inspect

    from ccm.app.provider import context, opened_once
    from ccm.cloud import registry, settings
    from ccm.doctor.provider import OFFERS, offers

    opener = registry.load_provider(name)
    declared = registry.declaration_of(opener)
    offered = declared.offers and [OFFERS.get(item, item) for item in declared.offers]
    source: registry.provider | Cloud = declared
    if cloud_config:
        given = context(file=cloud_config, cluster_name="kubernetes", clients=None)
        async with opened_once(name, opener, given) as source:
            offered = offers(source)
    about = inspect.getdoc(inspect.getmodule(inspect.unwrap(opener))) or ""
    prefixes = source.service_annotations
    return {
        **next(item for item in installed() if item["name"] == name),
        "sdk": declared.sdk,
        "about": " ".join(about.partition("\n\n")[0].split()),
        "opened": bool(cloud_config),
        "offers": None if offered is None else list(offered),
        "cloudConfig": {
            "format": declared.form if declared.config else "",
            "settings": [
                dataclasses.asdict(item)
                for item in (settings.table(declared.config) if declared.config else ())
            ],
        },
        "serviceAnnotationPrefixes": None if prefixes is None else list(prefixes),
        "serviceAnnotations": [
            {"name": item.name, "expects": item.expects, "default": item.shown, "help": item.help}
            for item in source.service_annotation_schema
        ],
    }


def _listing(providers: Sequence[Document]) -> Iterator[str]:
    if not providers:
        yield "no provider is installed; install a provider package"
        return
    rows = [
        (provider["name"], provider["package"] or "-", provider["fault"] or "ok")
        for provider in providers
    ]
    yield from command.table(("NAME", "PACKAGE", "STATUS"), rows)


def _page(provider: Document) -> Iterator[str]:
    origin = f", of {provider['package']}" if provider["package"] else ""
    yield f"{provider['name']}: {provider['target']}{origin}, written for SDK {provider['sdk']}"
    if provider["about"]:
        yield from ("", *textwrap.wrap(provider["about"], _WIDTH))
    yield from ("", f"capabilities, {'when open' if provider['opened'] else 'as declared'}:")
    if provider["offers"] is None:
        yield "  not declared; use --cloud-config FILE to open the provider and show them"
    else:
        yield from (f"  {offer}" for offer in provider["offers"] or ("none",))
    yield ""
    if settings := provider["cloudConfig"]["settings"]:
        yield f"cloud config, {provider['cloudConfig']['format']}:"
        rows = [
            (item["name"], item["kind"], "required" if item["required"] else item["default"] or "-")
            for item in settings
        ]
        head, *lines = command.table(("NAME", "VALUE", "DEFAULT"), rows)
        yield f"  {head}"
        for line, item in zip(lines, settings, strict=True):
            yield f"  {line}"
            yield from _explanation(item["help"])
    else:
        yield "cloud config: settings not declared; see the documentation of the provider"
    yield ""
    if annotations := provider["serviceAnnotations"]:
        yield "Service annotations:"
        for item in annotations:
            yield f"  {item['name']}: {item['expects']}, default {item['default']}"
            yield from _explanation(item["help"])
    else:
        prefixes = provider["serviceAnnotationPrefixes"]
        shown = "any" if prefixes is None else ", ".join(prefixes) or "none"
        yield f"Service annotations: {shown}"


def _explanation(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
