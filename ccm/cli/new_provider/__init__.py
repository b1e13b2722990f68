"""`kube-ccm new-provider`: writes a provider package whose tests pass at once.

The folder `template` contains the package for a cloud called acme; each file has the suffix
`.tmpl`. In the written package, the provider's name replaces `acme`, and the versions of daemon and
SDK are filled in. Parts between `@if FEATURE@` and `@end@` are dropped if the feature is not
requested. A file that consists only of a dropped part is not written.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import ccm
from ccm.base.flags import PROVIDERS
from ccm.cli import command
from ccm.cli.command import EXIT_FAILED, EXIT_OK
from ccm.doctor import ExaminationError

NAME_LENGTH = 24
"""Maximum length of a provider name; with a longer name, lines of the package would be too long."""

MACHINE_APIS = ("gardener", "kubermatic")
"""Machine APIs whose provider interfaces a package can implement; the first one is the default."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TEMPLATE = Path(__file__).with_name("template")
_SUFFIX = ".tmpl"
_PART = re.compile(r"^@if (\w+)@\n(.*?)^@end@\n", re.MULTILINE | re.DOTALL)

_SUMMARY = "write a package for a new provider, with passing tests"

_DESCRIPTION = """\
Writes a Python package with a provider for an HTTP API, a fake of that API, the contract suite as
tests, and the files to build a wheel and an image. The package works unchanged; its README.md lists
what to adapt to your cloud.

NAME is the value of --cloud-provider and the scheme of the provider IDs. Existing nodes keep their
provider ID, so do not change the name later.
"""

_EPILOG = """\
examples:
  kube-ccm new-provider acme           write to the folder ccm-acme
  kube-ccm new-provider acme --load-balancer --routes
                                       with load balancers and routes
  kube-ccm new-provider acme --machines kubermatic
                                       with machines of Kubermatic's API

exit status: 0 success, 1 the folder cannot be written, 2 invalid command line
"""


def add(commands: Any) -> None:
    """Register the subcommand."""
    parser = command.add_parser(
        commands, "new-provider", _SUMMARY, description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.set_defaults(run=lambda options: _run(parser, options))
    # Not `name`, for which completion offers the installed providers.
    parser.add_argument("new_name", metavar="NAME", help="lower-case letters, digits and '-'")
    parser.add_argument(
        "--folder", type=Path, metavar="FOLDER", help="folder to create (default: ccm-NAME)"
    )
    parser.add_argument(
        "--machines",
        choices=MACHINE_APIS,
        default=MACHINE_APIS[0],
        metavar="API",
        help=f"machine API to implement: {' or '.join(MACHINE_APIS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--load-balancer", action="store_true", help="include load balancers for Services"
    )
    parser.add_argument(
        "--routes", action="store_true", help="include routes to the Pods of each node"
    )


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    name: str = options.new_name
    if fault := _name_error(name):
        parser.error(fault)
    folder: Path = options.folder or Path(f"ccm-{name}")
    chosen = {"load_balancer": options.load_balancer, "routes": options.routes}
    try:
        write(name, folder, machines=options.machines, **chosen)
    except ExaminationError as error:
        command.fail("new-provider", str(error))
        return EXIT_FAILED
    sys.stdout.write(
        f"Provider {name} written to {folder}. Next:\n"
        f"  cd {folder}\n  pip install -e '.[dev]'\n  pytest\n"
        "Its README.md lists what to change.\n"
    )
    return EXIT_OK


def _name_error(name: str) -> str:
    """Return why a provider name is invalid; empty if it is valid."""
    if len(name) > NAME_LENGTH or not _NAME.fullmatch(name):
        return (
            f"{name!r} is not a valid provider name; use lower-case letters, digits and '-' "
            f"between them, a letter first, at most {NAME_LENGTH} characters"
        )
    if name in entry_points(group=PROVIDERS).names:
        return f"provider {name!r} is already installed; see kube-ccm providers"
    return ""


def write(
    name: str,
    folder: Path,
    *,
    machines: str = MACHINE_APIS[0],
    load_balancer: bool = False,
    routes: bool = False,
) -> None:
    """Write the package of a new provider to a new folder.

    Args:
        name: name of the provider.
        folder: the folder to create.
        machines: one of `MACHINE_APIS`.
        load_balancer: whether the provider has load balancers.
        routes: whether the provider has routes.

    Raises:
        ExaminationError: the folder exists, or cannot be written.
    """
    features = {
        machines: True,
        "load_balancer": load_balancer,
        "routes": routes,
        "networks": load_balancer or routes,
    }
    try:
        folder.mkdir(parents=True)
        for place, text in _files(name, [part for part, is_given in features.items() if is_given]):
            file = folder / place
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except FileExistsError as error:
        raise ExaminationError(
            f"{error.filename} already exists; choose another with --folder"
        ) from error
    except OSError as error:
        raise ExaminationError(f"{error.filename} cannot be written: {error.strerror}") from error


def _files(name: str, parts: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield path and content of each file for a provider with these features."""
    words = _words(name)
    for file in sorted(_TEMPLATE.rglob(f"*{_SUFFIX}")):
        place = file.relative_to(_TEMPLATE).as_posix().removesuffix(_SUFFIX)
        template = file.read_text(encoding="utf-8")
        text = _PART.sub(lambda part: part[2] if part[1] in parts else "", template)
        if text or not template:
            yield _filled(place, words), _filled(text, words)


def _words(name: str) -> Mapping[str, str]:
    """Return word of the template -> replacement; a word comes before words that it contains."""
    from ccm.cloud import SDK_VERSION

    return {
        "ccm_acme": f"ccm_{name.replace('-', '_')}",
        "ACME": name.replace("-", "_").upper(),
        "Acme": "".join(part.capitalize() for part in name.split("-")),
        "acme": name,
        "@VERSION@": ccm.__version__,
        "@SDK@": SDK_VERSION,
    }


def _filled(text: str, words: Mapping[str, str]) -> str:
    # One pass, because a provider name may contain a word of the template.
    return re.sub("|".join(words), lambda match: words[match[0]], text)
