"""Reader and writer of the configuration file, a `CloudControllerManagerConfiguration` v1alpha1.

The file sets the same values as flags, under the field names of the Kubernetes API type. The
command line has precedence. As everywhere in Kubernetes, a zero value means the default. Our
extension `Flags` maps flag names to values. It is for settings without a field in the API, and for
explicit zeros.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from types import MappingProxyType
from typing import Any

from ccm.app.options import documents, migration
from ccm.app.options.argv import UsageError
from ccm.app.options.table import ALIASES, FLAGS, NO_EFFECT, Options, fields
from ccm.base.flags import (
    BOOL,
    CERTIFICATES,
    FLOAT,
    GATES,
    INT,
    INT32,
    LEVEL,
    NUMBERS,
    QUANTITY,
    STRINGS,
    Flag,
    FlagKind,
    resolve_aliases,
)

GROUP_VERSION = "cloudcontrollermanager.config.k8s.io/v1alpha1"
KIND = "CloudControllerManagerConfiguration"

FIELDS: Mapping[str, str] = MappingProxyType(
    dict(sorted((flag.path, name) for name, flag in FLAGS.items() if flag.path))
)
"""Path of a field in the document -> name of the flag with the same meaning."""

UNUSED = (
    "Generic.Address",
    "Generic.ClientConnection.acceptContentTypes",
    "Generic.ClientConnection.contentType",
    "Generic.Debugging.enableContentionProfiling",
    "Generic.Debugging.enableProfiling",
    "Generic.Port",
    "KubeCloudShared.AllocateNodeCIDRs",
    "KubeCloudShared.CIDRAllocatorType",
    "KubeCloudShared.ExternalCloudVolumePlugin",
    "KubeCloudShared.NodeSyncPeriod",
)
"""Fields of the API that are accepted but have no effect."""

MIGRATION = "Generic.LeaderMigration"
EXTRA = "Flags"
_ONLY_FLAGS = frozenset({"config", "write-config-to", "help", "help-all", "version"})


def with_config_file(given: Options) -> Options:
    """Return the settings of the command line, completed by the file that `--config` names.

    Raises:
        UsageError: the file is invalid.
    """
    if not given.config:
        return given
    return _merged(given, given.explicit)


def reread(current: Options) -> Options:
    """Return the settings with the current content of the file; the command line has precedence.

    Args:
        current: result of `with_config_file` or of an earlier call.

    Raises:
        UsageError: the file is invalid.
    """
    command_line = current.explicit - current.from_file
    defaults = fields({name: FLAGS[name].default for name in current.from_file})
    bare = replace(current, **defaults, leader_migration=None, from_file=frozenset())
    return _merged(bare, command_line)


def _merged(given: Options, explicit: frozenset[str]) -> Options:
    try:
        file_settings = load(given.config)
    except documents.DocumentError as error:
        raise UsageError(error.faults) from error
    aliases = given.aliases | file_settings.pop("aliases")
    merged = fields({name: value for name, value in file_settings.items() if name not in explicit})
    added = (file_settings.keys() & FLAGS.keys()) - explicit
    explicit |= added
    return replace(given, **merged, explicit=explicit, from_file=frozenset(added), aliases=aliases)


def load(file: str) -> dict[str, Any]:
    """Return the settings of a file: flag name -> value.

    Two keys are not names of flags: `leader-migration`, which is missing if the file has no plan of
    a leader migration, and `aliases`, the deprecated aliases that the file uses.

    Raises:
        DocumentError: the file is invalid; lists every fault with its path.
    """
    return documents.load(file, "--config", _take, kind=KIND, versions=(GROUP_VERSION,))


def write(options: Options) -> str:
    """Return the configuration file, in YAML, that yields exactly these settings."""
    document: dict[str, Any] = {"apiVersion": GROUP_VERSION, "kind": KIND}
    extra = {}
    for flag in sorted(FLAGS.values(), key=lambda flag: flag.path):
        value = options.get(flag.name)
        if flag.path and (value == flag.default or not _is_zero(value)):
            put(document, flag.path, _plain(flag, value))
        elif value != flag.default and flag.name not in _ONLY_FLAGS:
            extra[flag.name] = _plain(flag, value)
    if options.leader_migration is not None:
        put(document, MIGRATION, migration.write(options.leader_migration))
    if extra:
        document[EXTRA] = dict(sorted(extra.items()))
    import yaml

    return yaml.safe_dump(document, sort_keys=False, width=100)


def _take(top: documents.DocumentSection) -> dict[str, Any]:
    sections = {"": top}
    settings: dict[str, Any] = {}
    for path in (*FIELDS, *UNUSED):
        section, name = _section(sections, path)
        value = section.take(name)
        if path in FIELDS and value is not None:
            settings.update(_read(section, name, FLAGS[FIELDS[path]], value))
    generic, name = _section(sections, MIGRATION)
    if generic.take(name):
        plan = generic.section(name)
        settings["leader-migration"] = migration.parse(plan)
        plan.reject_unknown()
    _take_flags(top.section(EXTRA), settings)
    for section in [*sections.values()][1:]:
        section.reject_unknown()
    return settings


def _section(
    sections: dict[str, documents.DocumentSection], path: str
) -> tuple[documents.DocumentSection, str]:
    """Return the section that contains the field at `path`, and the name of the field.

    The section is taken from `sections`, or added to it.
    """
    parent, _, name = path.rpartition(".")
    if parent not in sections:
        above, last = _section(sections, parent)
        sections[parent] = above.section(last)
    return sections[parent], name


def _take_flags(section: documents.DocumentSection, settings: dict[str, Any]) -> None:
    for written, value in section.all_fields().items():
        name = written.replace("_", "-")
        if name in NO_EFFECT:
            continue
        flag = FLAGS.get(name) or ALIASES.get(name)
        if flag is None or name in _ONLY_FLAGS:
            section.add_fault(written, "is unknown; use the name of a flag, without leading dashes")
        elif name in settings:
            section.add_fault(written, f"is set twice, also as {flag.path or name}")
        else:
            settings.update(_read(section, written, flag, value, zero_counts=True))
    settings["aliases"], violations = resolve_aliases(FLAGS, settings)
    for name, right in violations:
        section.add_fault(name, right)


def _read(
    section: documents.DocumentSection,
    name: str,
    flag: Flag,
    value: Any,
    *,
    zero_counts: bool = False,
) -> dict[str, Any]:
    """Return {flag name: value}; empty if the field is invalid or means the default.

    A zero means the default unless `zero_counts`.
    """
    try:
        parsed = _value(flag.kind, value, lenient=zero_counts)
    except (TypeError, ValueError):
        shown = "" if isinstance(value, dict | list) else f"is {value!r}; "
        section.add_fault(name, f"{shown}expected {flag.kind.expected}")
        return {}
    if _is_zero(parsed) and not zero_counts:
        return {}
    return {flag.name: parsed}


def _value(kind: FlagKind[Any], value: Any, *, lenient: bool) -> Any:
    """Parse the YAML value of a flag.

    `lenient` also accepts command-line text in place of a YAML list or mapping.

    Raises:
        TypeError, ValueError: the value is invalid.
    """
    if kind.merge is not None:
        if isinstance(value, list) and kind is not GATES:
            return _joined(kind, value)
        if isinstance(value, dict) and kind is GATES:
            return kind.parse(",".join(f"{name}={_text(BOOL, value[name])}" for name in value))
        if not lenient:
            raise TypeError
    return kind.parse(_text(kind, value))


def _joined(kind: FlagKind[Any], entries: list[Any]) -> Any:
    assert kind.merge is not None
    texts = [_text(kind, entry) for entry in entries]
    parsed = [(text,) if kind is STRINGS else kind.parse(text) for text in texts]
    return reduce(kind.merge, parsed, ())


_TYPES: Mapping[FlagKind[Any], tuple[type, ...]] = {
    BOOL: (bool,),
    FLOAT: (int, float),
    **dict.fromkeys((INT, INT32, LEVEL, QUANTITY, NUMBERS), (int,)),
}
"""Accepted YAML types by kind of flag; other kinds accept text only."""

_EXPONENT = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")


def _text(kind: FlagKind[Any], value: Any) -> str:
    """Return a YAML value as command-line text; raise TypeError for a wrong type."""
    # PyYAML reads 1e3 as text, and Kubernetes as a number.
    is_number = kind is FLOAT and isinstance(value, str) and _EXPONENT.fullmatch(value)
    if type(value) not in _TYPES.get(kind, (str,)) and not is_number:
        raise TypeError
    return value if isinstance(value, str) else str(value).lower()


def _plain(flag: Flag, value: Any) -> Any:
    """Return the value of a flag as YAML data."""
    if flag.kind is CERTIFICATES:
        return [flag.kind.write((entry,))[1:-1] for entry in value]
    if isinstance(value, tuple) and flag.kind.merge is not None:
        return list(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | float | str) else flag.kind.write(value)


def _is_zero(value: Any) -> bool:
    return not isinstance(value, bool) and value in (0, "", (), timedelta(0), {})


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at a path such as `Generic.Port`; create the mappings that contain it."""
    *parents, name = path.split(".")
    for parent in parents:
        document = document.setdefault(parent, {})
    document[name] = value
