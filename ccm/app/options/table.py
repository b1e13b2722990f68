"""The daemon's settings, the table of its flags, and its command line.

Each base class of `Options` declares flags as fields, with section, kind, default, meaning and
check. A field has the name of its flag, with underscores. Names and defaults are the same as in the
Go cloud-controller-manager, so that command lines for the Go program work unchanged. `FLAGS.md`
marks flags that the Go program lacks.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ccm
from ccm.app.options import argv, gates, generic, migration, serving
from ccm.app.options.controllers import MANIFESTS, ControllerFlags, enabled
from ccm.app.options.generic import GLOBAL, ElectionFlags, GenericFlags, LogFlags
from ccm.app.options.serving import ServingFlags
from ccm.base.flags import Flag, FlagViolation, aliases, flags_of, missing
from ccm.runtime.manifest import GENERIC, MISC

PROGRAM = "cloud-controller-manager"

_INTRODUCTION = f"""\
Integrates a Kubernetes cluster with its cloud: sets provider ID, labels and addresses of
new nodes, keeps them up to date, and deletes nodes whose instances no longer exist.

Usage: {PROGRAM} --cloud-provider=NAME [flags]
"""

_OF_CONTROLLERS = dict.fromkeys(
    flag.section for flags in ControllerFlags.__bases__ for flag in flags_of(flags).values()
)

SECTIONS = (
    generic.LEADER_MIGRATION,
    GENERIC,
    *sorted(
        (section for section in _OF_CONTROLLERS if section not in (GENERIC, MISC)),
        key=lambda section: section.ours,
    ),
    generic.PROVIDER_CALLS,
    generic.STOPPING,
    generic.PERSISTENCE,
    generic.FILE,
    serving.WEBHOOK,
    serving.WEBHOOK_SERVING,
    serving.WEBHOOK_CALLERS,
    serving.SECURE_SERVING,
    serving.AUTHENTICATION,
    serving.AUTHORIZATION,
    MISC,
    generic.HELP,
    GLOBAL,
)
"""The sections of flags, in the order of `--help`."""

REQUIRED = ("cloud-provider",)
"""Names of the flags that must be set."""

NO_EFFECT: Mapping[str, bool] = MappingProxyType(
    {
        "allocate-node-cidrs": False,
        "cidr-allocator-type": True,
        "contention-profiling": False,
        "disable-http2-serving": False,
        "external-cloud-volume-plugin": True,
        "http2-max-streams-per-connection": True,
        "kube-api-content-type": True,
        "node-sync-period": True,
        "permit-address-sharing": False,
        "profiling": False,
        "webhook-disable-http2-serving": False,
    }
)
"""Flags of the Go program that have no effect here -> whether they take a value."""


@dataclass(frozen=True, kw_only=True)
class Options(ControllerFlags, ElectionFlags, GenericFlags, LogFlags, ServingFlags):
    """All settings of the daemon; `Options()` has every default.

    Attributes:
        explicit: names of flags that the command line or the configuration file sets, even if to
            the default.
        from_file: names in `explicit` that only the configuration file sets.
        no_effect: names of flags on the command line that have no effect.
        aliases: deprecated aliases on the command line or in the configuration file.
        leader_migration: plan in the configuration file; None if the file has no plan.
        program: name of the program in user agents, events and metrics.
    """

    explicit: frozenset[str] = frozenset()
    from_file: frozenset[str] = frozenset()
    no_effect: tuple[str, ...] = ()
    aliases: frozenset[str] = frozenset()
    leader_migration: migration.LeaderMigration | None = None
    program: str = migration.COMPONENT

    @classmethod
    def from_values(cls, values: Mapping[str, Any], parsed: argv.ParsedArguments) -> Options:
        """Return the settings for flag values by name; `parsed` is the whole command line."""
        return cls(
            **fields(values),
            explicit=frozenset(values),
            no_effect=parsed.no_effect,
            aliases=parsed.aliases,
        )

    @property
    def is_default_api_rate(self) -> bool:
        """Whether neither part of `api_rate` is set."""
        return self.explicit.isdisjoint(("kube-api-qps", "kube-api-burst"))

    def deprecations(self) -> list[str]:
        """Return a message for each deprecated flag or alias that is set."""
        return [
            f"--{flag.name} is deprecated: {flag.deprecated}"
            for flag in (*FLAGS.values(), *ALIASES.values())
            if flag.deprecated and flag.name in self.explicit | self.aliases
        ]

    def notices(self) -> list[str]:
        """Return messages about settings without effect."""
        lines = []
        if self.no_effect:
            named = ", ".join(f"--{name}" for name in self.no_effect)
            lines.append(f"accepted without effect: {named}")
        if self.version.startswith("v"):
            lines.append(
                f"--version={self.version} has no effect: the version is {ccm.__version__}"
            )
        return [*lines, *gates.notices(self.feature_gates), *serving.notices(self)]

    def warnings(self) -> list[str]:
        """Return messages about valid settings that may be wrong; the daemon itself has none."""
        return []

    def flag_lines(self) -> list[str]:
        """Return the line `FLAG: --name="value"` for every flag; logged at verbosity 1."""
        return [f"FLAG: --{name}={argv.quote(text)}" for name, text in self.written().items()]

    def written(self) -> dict[str, str]:
        """Return each flag's value as text, by name."""
        return {name: flag.kind.write(self.get(name)) for name, flag in FLAGS.items()}

    def get(self, name: str) -> object:
        """Return the value of a flag; `name` has dashes, not underscores."""
        return getattr(self, name.replace("-", "_"))


def fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return flag values by field name of `Options` instead of by flag name."""
    return {name.replace("-", "_"): value for name, value in values.items()}


FLAGS: Mapping[str, Flag] = MappingProxyType(flags_of(Options))
"""All flags, sorted by name."""

ALIASES: Mapping[str, Flag] = MappingProxyType(aliases(FLAGS))
"""Deprecated aliases of flags by name."""


def parse(words: Sequence[str]) -> Options:
    """Parse a command line, without the program's name.

    Raises:
        UsageError: unknown flags, invalid values, or arguments.
    """
    parsed = argv.parse(FLAGS, words, NO_EFFECT)
    options = Options.from_values(parsed.values, parsed)
    if parsed.arguments and not (options.help or options.help_all):
        raise argv.UsageError([arguments_fault(PROGRAM, parsed.arguments)])
    return options


def arguments_fault(program: str, arguments: Sequence[str]) -> str:
    """Return the error message for a command line with arguments that belong to no flag."""
    listed = " ".join(map(argv.quote, arguments))
    return f'"{program}" does not take any arguments, got [{listed}]'


def help_or_version(options: Options) -> str | None:
    """Return the text for `--help`, `--help-all` or `--version`; None if none of them is set."""
    if options.help or options.help_all:
        no_effect = NO_EFFECT if options.help_all else None
        text = argv.explain(FLAGS, SECTIONS, required=REQUIRED, no_effect=no_effect)
        return f"{_INTRODUCTION}\n{text}"
    if options.version == "true":
        return f"{PROGRAM} {ccm.__version__}\n"
    if options.version == "raw":
        return (
            f"{PROGRAM} {ccm.__version__} python={platform.python_version()} "
            f"implementation={platform.python_implementation()} "
            f"platform={platform.system().lower()}/{platform.machine()}\n"
        )
    return None


def check(options: Options) -> None:
    """Reject invalid settings.

    Raises:
        UsageError: a setting is invalid; has one message for each fault.
    """
    if messages := faults(options):
        raise argv.UsageError(messages)


def faults(options: Options) -> list[str]:
    """Return a message for each invalid setting, with flag, value and accepted values.

    `argv.parse` has already rejected values that cannot be parsed.
    """
    messages = [
        FLAGS[name].error_message(options.get(name), right) for name, right in _faults(options)
    ]
    if not options.cloud_provider:
        messages.append(missing("cloud-provider"))
    return messages


def _faults(options: Options) -> Iterator[FlagViolation]:
    for name, flag in FLAGS.items():
        if right := flag.violation(options.get(name)):
            yield name, right
    on = gates.values(options.feature_gates)
    if options.cloud_api_burst > 0 and not options.cloud_api_qps:
        yield "cloud-api-burst", "needs --cloud-api-qps above 0"
    yield from generic.election_faults(options)
    yield from _lease_faults(options)
    yield from generic.log_faults(options, alpha=on[gates.LOGGING_ALPHA])
    yield from serving.faults(options, uid_headers=on[gates.REQUEST_HEADER_UID])
    for manifest in MANIFESTS:
        yield from manifest.faults(options)


def _lease_faults(options: Options) -> Iterator[FlagViolation]:
    """Yield a fault if the daemon's Lease is also the `SharedLease` of an enabled controller."""
    own = f"{options.leader_elect_resource_namespace}/{options.leader_elect_resource_name}"
    for manifest in enabled(options.controllers) if options.leader_elect else ():
        if str(manifest.lease(options) or "") == own:
            right = f"is also the Lease that {manifest.name} must hold; choose another name"
            yield "leader-elect-resource-name", right
            return
