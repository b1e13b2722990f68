"""`kube-ccm providers`: which providers are installed, and what each offers and reads.

Without a configuration a provider is described by its declaration in the registry; with one it is
opened, and knows better what it offers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from ccm.cli import command
from ccm.cli.command import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from ccm.cloud import registry
    from ccm.cloud.interface import Cloud

_DESCRIPTION = """\
Without a name: the installed providers, where they come from, and whether they load.

With a name: what the provider offers, the settings of its cloud config, and the annotations of
Services that it reads. It is not opened, and its cloud is not asked, unless you give
--cloud-config.
"""

_EPILOG = """\
examples:
  kube-ccm providers
  kube-ccm providers sim
  kube-ccm providers sim --cloud-config cloud.yaml -o json

exit status: 0, or 1 when there is no such provider or it cannot be used
"""

_WIDTH = 98

Document = Mapping[str, Any]


def add(commands: Any) -> None:
    """Describe the subcommand to the command line's parser."""
    summary = "list the installed providers, or describe one: what it offers, its settings"
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
        help="with NAME: open the provider with this configuration and ask it what it offers",
    )
    option(
        "-o",
        "--output",
        choices=("table", "json"),
        default="table",
        help="table for people (default), json for programs",
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
            command.fail("providers", redact.words(str(error) or type(error).__name__))
            return EXIT_FAILED
        lines = _page(document)
    else:
        document = installed()
        lines = _listing(document)
    if options.output == "json":
        command.show_json(sys.stdout, document)
    else:
        command.show(sys.stdout, lines)
    return EXIT_OK


def installed() -> list[Document]:
    """Return every provider, by name; those that cannot be used with the fault."""
    from ccm.cloud import registry

    found = map(_installed, entry_points(group=registry.GROUP))
    by_name = {(one["name"], one["package"], one["target"]): one for one in found}
    return [one for _, one in sorted(by_name.items())]


def _installed(entry: EntryPoint) -> Document:
    from ccm.cloud import registry

    fault = ""
    try:
        registry.load(entry.name)
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
    """Return what a provider says about itself.

    Args:
        name: of the provider.
        cloud_config: file with which it is opened; empty: it is not opened.

    Raises:
        ProviderError: it cannot be used.
        Misconfigured: it refuses the configuration.
        Exception: whatever else keeps it from opening.
    """
    import dataclasses
    import inspect

    from ccm.app.provider import context, opened_once
    from ccm.cloud import registry, settings
    from ccm.doctor.provider import OFFERS, offers

    opener = registry.load(name)
    declared = registry.declared(opener)
    offered = declared.offers and [OFFERS.get(one, one) for one in declared.offers]
    source: registry.provider | Cloud = declared
    if cloud_config:
        given = context(file=cloud_config, cluster_name="kubernetes", clients=None)
        async with opened_once(name, opener, given) as source:
            offered = offers(source)
    about = inspect.getdoc(inspect.getmodule(inspect.unwrap(opener))) or ""
    prefixes = source.service_annotations
    return {
        **next(one for one in installed() if one["name"] == name),
        "sdk": declared.sdk,
        "about": " ".join(about.partition("\n\n")[0].split()),
        "opened": bool(cloud_config),
        "offers": None if offered is None else list(offered),
        "cloudConfig": {
            "format": declared.form if declared.config else "",
            "settings": [
                dataclasses.asdict(one)
                for one in (settings.table(declared.config) if declared.config else ())
            ],
        },
        "serviceAnnotationPrefixes": None if prefixes is None else list(prefixes),
        "serviceAnnotations": [
            {"name": one.name, "expects": one.expects, "default": one.shown, "help": one.help}
            for one in source.service_annotation_schema
        ],
    }


def _listing(providers: Sequence[Document]) -> Iterator[str]:
    if not providers:
        yield "no provider is installed; install a package that offers one"
        return
    rows = [(one["name"], one["package"] or "-", one["fault"] or "ok") for one in providers]
    yield from _table(("NAME", "PACKAGE", "STATUS"), rows)


def _page(of: Document) -> Iterator[str]:
    origin = f", of {of['package']}" if of["package"] else ""
    yield f"{of['name']}: {of['target']}{origin}, written for SDK {of['sdk']}"
    if of["about"]:
        yield from ("", *textwrap.wrap(of["about"], _WIDTH))
    yield from ("", f"offers, {'asked when open' if of['opened'] else 'as its source says'}:")
    if of["offers"] is None:
        yield "  the source does not tell; --cloud-config FILE opens the provider and asks it"
    else:
        yield from (f"  {offer}" for offer in of["offers"] or ("nothing",))
    yield ""
    if settings := of["cloudConfig"]["settings"]:
        yield f"cloud config, {of['cloudConfig']['format']}:"
        rows = [
            (one["name"], one["kind"], "required" if one["required"] else one["default"] or "-")
            for one in settings
        ]
        head, *lines = _table(("NAME", "VALUE", "DEFAULT"), rows)
        yield f"  {head}"
        for line, one in zip(lines, settings, strict=True):
            yield f"  {line}"
            yield from _explanation(one["help"])
    else:
        yield "cloud config: the provider does not say what it reads; see its documentation"
    yield ""
    if annotations := of["serviceAnnotations"]:
        yield "annotations of Services:"
        for one in annotations:
            yield f"  {one['name']}: {one['expects']}, default {one['default']}"
            yield from _explanation(one["help"])
    else:
        prefixes = of["serviceAnnotationPrefixes"]
        shown = "any" if prefixes is None else ", ".join(prefixes) or "none"
        yield f"annotations of Services: {shown}"


def _explanation(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()
