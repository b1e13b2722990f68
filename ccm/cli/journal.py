"""`kube-ccm journal`: shows and changes the daemon's journal of cloud resources."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from ccm.base.flags import FlagSection, did_you_mean
from ccm.cli import command, explain
from ccm.cli.command import EXIT_OK, ParsedCommand
from ccm.doctor import ExaminationError

if TYPE_CHECKING:
    from ccm.doctor.journal import Exchange
    from ccm.persistence.journal import JournalEntry

_INTRODUCTION = """\
Shows the daemon's journal: each load balancer and VM that it created, with its owner and its state
(Intent, Created, Deleting, Removed). The daemon keeps a journal with --journal=report or delete.

Usage: kube-ccm journal list [--watch | -o FORMAT]
       kube-ccm journal show NAME [-o FORMAT]
       kube-ccm journal drop NAME [--dry-run]
       kube-ccm journal adopt NAME service NAMESPACE/NAME [--dry-run]
       kube-ccm journal rebuild [--dry-run]

drop deletes an entry; its resource is not changed. adopt gives a load balancer, and its entry, to
another Service, for example after the Service was recreated, if the provider supports that. rebuild
adds an entry for each VM and load balancer in the cloud whose owner is known.

The command connects to the leader's Pod by port-forward, as kube-ccm explain does. Required
permissions: get of the daemon's path /journal, and post for changes; and in the daemon's namespace
list Pods, get the Lease, and create and get pods/portforward. With --offline and the flags of the
daemon, the command opens the storage itself, and changes it only while no daemon leads. Use adopt
with --offline before a daemon starts: a running daemon may create another load balancer first.

examples:
  kube-ccm journal list --watch
  kube-ccm journal adopt loadbalancer-0123456789abcdef01234567 service default/web --dry-run
  kube-ccm journal list --offline --persistence-config=persistence.yaml

exit status: 0 success, 1 an error, 2 invalid command line

"""

NAME = "journal"

ACTIONS = {
    "list": "show all entries",
    "show": "show one entry",
    "drop": "delete an entry",
    "adopt": "give a load balancer to another Service",
    "rebuild": "add entries for resources of the cloud",
}
_ARGUMENTS = {"show": "NAME", "drop": "NAME", "adopt": "NAME service NAMESPACE/NAME"}
_CHANGES = ("drop", "adopt", "rebuild")
_WATCH_S = 2.0
"""Seconds between two reads with `--watch`; each is a request to the daemon, or to storage."""

_HEAD = ("NAME", "AGE", "KIND", "OWNER", "STATE", "LAST ERROR")
_SECTION = FlagSection(NAME, ours=True)


@dataclass(frozen=True)
class _Own(explain.ConnectionFlags):
    output: str = command.output(_SECTION)
    watch: bool = _SECTION.flag(False, "With list: show all entries, then changes.", short="w")
    dry_run: bool = _SECTION.flag(False, "With a change: only show what would be done.")
    offline: bool = _SECTION.flag(
        False, "Open the storage with the daemon's flags, instead of asking the daemon."
    )


def _faults(words: Sequence[str], own: Mapping[str, Any], _given: Collection[str]) -> Iterator[str]:
    action, *rest = words or ("",)
    is_complete = len(rest) == len(_ARGUMENTS.get(action, "").split())
    if action == "adopt" and is_complete:
        is_complete = explain.kind_of(rest[1])[0] == "service"
    if action not in ACTIONS or not is_complete:
        usages = (f"{name} {_ARGUMENTS.get(name, '')}".rstrip() for name in ACTIONS)
        got = f"got {' '.join(words) or 'nothing'!r}{did_you_mean(action, ACTIONS)}"
        yield f"expected {', or '.join(usages)}; {got}"
    if own["watch"] and (action != "list" or own["offline"] or own["output"] != "table"):
        yield "--watch needs list and -o table, without --offline"
    if own["dry-run"] and action not in _CHANGES:
        yield f"--dry-run needs {', '.join(_CHANGES)}"
    yield from explain.address_faults(own)


async def show_or_change(
    request: ParsedCommand, out: TextIO, *, environ: Mapping[str, str] = os.environ
) -> int:
    """Show or change the journal; return the exit status.

    Raises:
        ExaminationError: a request failed, or the daemon refused it.
    """
    from ccm.doctor import journal, reach
    from ccm.runtime.journal_report import JournalChange

    own, (action, *words) = request.own_flags, request.arguments
    name, _, owner = (*words, "", "", "")[:3]
    change = JournalChange(action=action, name=name, owner=owner, dry_run=own["dry-run"])
    async with command.open_case(request, environ, own["timeout"].total_seconds()) as case:
        await reach.connect(case)
        exchange: Exchange = partial(
            journal.ask, case, address=own["address"], trust=explain.trust_of(own)
        )
        if own["offline"]:
            exchange = await journal.open_offline(case, action if action in _CHANGES else "")
        if action in _CHANGES:
            prefix = "would be done: " if own["dry-run"] else ""
            done = (await exchange(change)).done
            document = {"dryRun": own["dry-run"], "done": done}
            lines = [f"{prefix}{line}" for line in done]
            command.show_result(out, own["output"], document, lines)
        else:
            await _show(exchange, name, out, form=own["output"], watch=own["watch"])
    return EXIT_OK


async def _show(exchange: Exchange, name: str, out: TextIO, *, form: str, watch: bool) -> None:
    """Show all entries, or the named one; with `watch`, then show changes until cancelled."""
    response = await exchange(None)
    entries = {entry.name: entry for entry in response.entries}
    if name and name not in entries:
        raise ExaminationError(f"there is no entry {name}; see kube-ccm journal list")
    lines = [f"the journal cannot be written: {response.down}"] if response.down else []
    if name:
        lines += _fields(entries[name], response.orphans.get(name, ""))
    else:
        rows = [_row(entry, response.orphans) for entry in response.entries]
        lines += command.table(_HEAD, rows)
    command.show_result(out, form, entries[name] if name else response, lines)
    while watch:
        await asyncio.sleep(_WATCH_S)
        shown, response = entries, await exchange(None)
        entries = {entry.name: entry for entry in response.entries}
        changed = [entry for key, entry in entries.items() if shown.get(key) != entry]
        _, *lines = command.table(_HEAD, [_row(entry, response.orphans) for entry in changed])
        command.show(out, lines)


def _row(entry: JournalEntry, orphans: Mapping[str, str]) -> tuple[str, ...]:
    from ccm.base import clock
    from ccm.doctor.explain import span
    from ccm.model.times import parse_optional_time
    from ccm.runtime.orphans import describe_owner

    created = parse_optional_time(entry.created_at)
    age = "unknown" if created is None else span((clock.now() - created).total_seconds())
    state = f"{entry.state.value}, orphan" if entry.name in orphans else entry.state.value
    return entry.name, age, entry.resource, describe_owner(entry), state, entry.last_error


def _fields(entry: JournalEntry, orphan: str) -> Iterator[str]:
    import msgspec

    for key, value in msgspec.to_builtins(entry).items():
        inner = value if isinstance(value, dict) else {"": value}
        yield from (f"{key}{name and f'.{name}'}: {text}" for name, text in inner.items())
    if orphan:
        yield f"orphan: {orphan}"


COMMAND = command.DaemonCommand(
    name=NAME,
    summary="show the daemon's journal of cloud resources, or change it",
    introduction=_INTRODUCTION,
    own=_Own,
    execute=lambda request, out: asyncio.run(show_or_change(request, out)),
    used=(
        *explain.COMMAND.used,
        "cloud-config",
        "cloud-provider",
        "cluster-name",
        "load-balancer-classes",
        "persistence-config",
    ),
    required=(),
    check_arguments=_faults,
)
add, own_flags, read, run = COMMAND.add, COMMAND.own_flags, COMMAND.read, COMMAND.run
