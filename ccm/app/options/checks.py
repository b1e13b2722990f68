"""Settings that make no sense, found before anything is started.

Each fault is one sentence: the flag, its value, and what would be right. All of them are
reported together. Values that cannot even be read are found earlier, by `argv`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ccm.app.options import election, gates, generic, logs, serving
from ccm.app.options.argv import UsageError
from ccm.app.options.controllers import MANIFESTS
from ccm.app.options.table import FLAGS, Options
from ccm.base.flags import Fault


def check(options: Options) -> None:
    """Refuse settings that make no sense.

    Raises:
        UsageError: with one sentence for each fault.
    """
    found = faults(options)
    if found:
        raise UsageError(found)


def faults(options: Options) -> list[str]:
    """One sentence for each setting that makes no sense."""
    found = [FLAGS[name].fault(options.get(name), right) for name, right in _faults(options)]
    if not options.cloud_provider:
        found.append("--cloud-provider cannot be empty; give the name of an installed provider")
    return found


def _faults(options: Options) -> Iterator[Fault]:
    for name, flag in FLAGS.items():
        if right := flag.wrong(options.get(name)):
            yield name, right
    given = options.feature_gates
    yield from generic.faults(options)
    yield from election.faults(options)
    yield from logs.faults(options, alpha=gates.allows(given, gates.LOGGING_ALPHA))
    yield from serving.faults(options, uid_headers=gates.allows(given, gates.REQUEST_HEADER_UID))
    for manifest in MANIFESTS:
        yield from manifest.faults(options)
