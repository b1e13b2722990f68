"""`kube-ccm providers`: which providers are installed, and what each offers and reads."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ccm.cli import screen

if TYPE_CHECKING:
    from ccm.doctor.catalogue import Description, Installed

EXIT_OK = 0
EXIT_FAILED = 1

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


def add(commands: Any) -> None:
    """Describe the subcommand to the command line's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "providers",
        help="list the installed providers, or describe one: what it offers, its settings",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    if options.cloud_config and not options.name:
        parser.error("--cloud-config needs the NAME of a provider")
    if options.name:
        return _describe(options.name, options.cloud_config, options.output)
    from ccm.doctor import catalogue

    found = catalogue.installed()
    if options.output == "json":
        screen.show_json(sys.stdout, [catalogue.plain(one) for one in found])
    else:
        _write(_listing(found))
    return EXIT_OK


def _describe(name: str, cloud_config: str, output: str) -> int:
    import asyncio

    from ccm.base import redact
    from ccm.doctor import catalogue

    try:
        told = asyncio.run(catalogue.describe(name, cloud_config=cloud_config))
    except Exception as error:  # noqa: BLE001 - a provider may fail in any way
        screen.fail("providers", redact.words(str(error) or type(error).__name__))
        return EXIT_FAILED
    if output == "json":
        screen.show_json(sys.stdout, catalogue.document(told))
    else:
        _write(_page(told))
    return EXIT_OK


def _listing(found: Sequence[Installed]) -> Iterator[str]:
    if not found:
        yield "no provider is installed; install a package that offers one"
        return
    rows = [(one.name, one.package or "-", one.fault or "ok") for one in found]
    yield from _table(("NAME", "PACKAGE", "STATUS"), rows)


def _page(told: Description) -> Iterator[str]:
    origin = f", of {told.installed.package}" if told.installed.package else ""
    yield f"{told.installed.name}: {told.installed.target}{origin}, written for SDK {told.sdk}"
    if told.about:
        yield from ("", *textwrap.wrap(told.about, _WIDTH))
    yield from ("", *_offers(told))
    yield from ("", *_settings(told))
    yield from ("", *_annotations(told))


def _offers(told: Description) -> Iterator[str]:
    yield f"offers, {'asked when open' if told.opened else 'as its source says'}:"
    if told.offers is None:
        yield "  the source does not tell; --cloud-config FILE opens the provider and asks it"
        return
    yield from (f"  {words}" for words in told.offers or ("nothing",))


def _settings(told: Description) -> Iterator[str]:
    if not told.settings:
        yield "cloud config: the provider does not say what it reads; see its documentation"
        return
    yield f"cloud config, {told.form}:"
    rows = [
        (one.name, one.kind, "required" if one.required else one.default or "-")
        for one in told.settings
    ]
    head, *lines = _table(("NAME", "VALUE", "DEFAULT"), rows)
    yield f"  {head}"
    for line, one in zip(lines, told.settings, strict=True):
        yield f"  {line}"
        yield from _explanation(one.help)


def _annotations(told: Description) -> Iterator[str]:
    if not told.annotations:
        prefixes = "any" if told.prefixes is None else ", ".join(told.prefixes) or "none"
        yield f"annotations of Services: {prefixes}"
        return
    yield "annotations of Services:"
    for one in told.annotations:
        yield f"  {one.name}: {one.expects}, default {one.shown}"
        yield from _explanation(one.help)


def _explanation(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def _write(lines: Iterator[str]) -> None:
    screen.show(sys.stdout, lines)
