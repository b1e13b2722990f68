"""`kube-ccm completion`: shell completion of subcommands, the daemon's flags and their values.

The shell script is short: each Tab runs `kube-ccm __complete`, which computes completions from the
argparse parsers of `kube-ccm` and from the daemon's flags. The output has Cobra's format, which
kubectl expects of plugins: one line per word, with its description after a tab, then a line with
the directives as a number. Imports are lazy, so that `__complete` is fast. The library shtab is not
used, because it supports neither fish nor kubectl.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ccm.base import interpreter
from ccm.base.flags import Flag, provider_names
from ccm.cli import backup, command, doctor, explain, journal, orphans, plan, rollout

COMPLETE_COMMAND = "__complete"
"""Hidden command that prints completions; the completion scripts call it."""

NO_SPACE = 2
"""Cobra's directive: the shell adds no space after the word."""

NO_FILES = 4
"""Cobra's directive: the shell does not offer files."""

DAEMON = "cloud-controller-manager"

DAEMONS = (DAEMON, "machine-controller", "machine-controller-manager")
"""Programs of the daemon: the cloud-controller-manager, and the two machine commands."""

_DESCRIPTION = """\
Prints a shell script that completes the command lines of `kube-ccm`, `cloud-controller-manager`,
`machine-controller` and `machine-controller-manager`: commands, flags, names of controllers and
installed providers, files.
"""

_EPILOG = """\
usage:
  bash   source <(kube-ccm completion bash)     permanently: add it to ~/.bashrc
  zsh    source <(kube-ccm completion zsh)      permanently: add it to ~/.zshrc, after compinit
  fish   kube-ccm completion fish | source      permanently: kube-ccm completion fish > \\
                                                  ~/.config/fish/completions/kube-ccm.fish

`kubectl ccm` needs no script: kubectl's completion runs kubectl_complete-ccm.
"""

_BASH = """\
# bash completion; load it with: source <(kube-ccm completion bash)
__kube_ccm_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" typed offered directive
    read -ra typed <<< "$line"
    [[ $line == *[[:space:]] ]] && typed+=("")
    mapfile -t offered < <(ASK "${typed[@]}" 2> /dev/null)
    ((${#offered[@]})) || return
    directive="${offered[-1]#:}"
    unset "offered[-1]"
    COMPREPLY=("${offered[@]%%$'\\t'*}")
    # bash splits --flag=value into three words by default.
    [[ $2 == -*=* ]] && COMPREPLY=("${COMPREPLY[@]/#/${2%%=*}=}")
    ((directive & 2)) && compopt -o nospace
    ((directive & 4)) || compopt -o default
} 2> /dev/null
complete -F __kube_ccm_complete PROGRAMS
"""

_ZSH = """\
#compdef PROGRAMS
# zsh completion; load it with: source <(kube-ccm completion zsh)
__kube_ccm_complete() {
    local -a offered
    offered=("${(@f)$(ASK "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2> /dev/null)}")
    local -i directive="${offered[-1]#:}"
    offered[-1]=()
    compset -P '-*='
    if ! ((directive & 4)); then _files; return; fi
    offered=("${(@)${(@)offered//:/\\\\:}//$'\\t'/:}")
    local -a open=(${(M)offered:#[^:]##=(:*|)}) closed=(${offered:#[^:]##=(:*|)})
    ((directive & 2)) && open+=($closed) && closed=()
    _describe word open -S '' -- closed
}
compdef __kube_ccm_complete PROGRAMS
"""

_FISH = """\
# fish completion; load it with: kube-ccm completion fish | source
function __kube_ccm_complete
    set -l last (commandline -ct)
    set -l offered (ASK (commandline -opc) "$last" 2> /dev/null)
    set -l flag (string match -r -- '^-[^=]*=' "$last")
    test "$offered[-1]" = :0
    and set offered (__fish_complete_path (string replace -- "$flag" "" "$last")) :0
    string replace -r -- '^' "$flag" $offered[1..-2]
end
for program in PROGRAMS
    complete -c $program -e
    complete -c $program -f -a '(__kube_ccm_complete)'
end
"""

SCRIPTS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""Shell -> script template.

`ASK` stands for the command line that prints completions, `PROGRAMS` for the completed programs.
"""

_COMMANDS = {
    daemon_command.name: daemon_command
    for daemon_command in (
        *(module.COMMAND for module in (doctor, explain, journal, orphans, plan, rollout)),
        *(backup.BACKUP, backup.RESTORE),
    )
}
"""Subcommands that take the daemon's flags."""

_FIRST_WORDS = {
    explain.NAME: explain.OBJECTS,
    journal.NAME: journal.ACTIONS,
    rollout.NAME: rollout.ACTIONS,
}

_FILE_ENDS = ("config", "-file", "-config-to", "-dir", "folder", "picture")


def add(commands: Any) -> None:
    """Register the subcommand."""
    summary = "print a shell completion script"
    parser = command.add_parser(
        commands, "completion", summary, description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    sys.stdout.write(script(options.shell))
    return 0


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    # `interpreter.command` keeps Python from importing modules from the current folder.
    asking = shlex.join(interpreter.command("ccm.cli", COMPLETE_COMMAND))
    programs = " ".join(("kube-ccm", *DAEMONS))
    return SCRIPTS[shell].replace("PROGRAMS", programs).replace("ASK", asking)


def print_completions(whole: argparse.ArgumentParser, typed: Sequence[str]) -> int:
    """Print the completions; return the exit status.

    Args:
        whole: the parser of `kube-ccm`.
        typed: the words up to the cursor, at least two. The first is the program. The last is the
            word at the cursor, which may be empty.
    """
    *before, last = typed
    offered, directive = _offer(completion_context(whole, before), before[-1], last)
    lines = [f"{word}\t{text}" if text else word for word, text in offered.items()]
    sys.stdout.writelines(f"{line}\n" for line in (*lines, f":{directive}"))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A flag or a positional argument.

    Attributes:
        names: names, with the leading dashes of a flag; only the first name is offered.
        help: help in one line.
        words: known values, except names of providers.
        needs_value: whether a value must follow the flag.
    """

    names: Sequence[str]
    help: str = ""
    words: Sequence[str] = ()
    needs_value: bool = False

    @property
    def name(self) -> str:
        """The first name, without dashes."""
        return self.names[0].lstrip("-")

    @property
    def is_list(self) -> bool:
        """Whether the value is a comma-separated list of `words`."""
        return self.name == "controllers"

    @property
    def is_file(self) -> bool:
        """Whether files are offered as values."""
        return not self.words and self.name.endswith(_FILE_ENDS)

    def values(self) -> Sequence[str]:
        """Return the known values, including names of providers."""
        if self.name not in ("name", "provider", "cloud-provider"):
            return self.words
        return provider_names()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionContext:
    """Candidates for the completion at the cursor.

    Attributes:
        options: flags.
        words: subcommands and other words -> description.
    """

    options: Sequence[Option]
    words: Mapping[str, str] = field(default_factory=dict)


def completion_context(whole: argparse.ArgumentParser, before: Sequence[str]) -> CompletionContext:
    """Return the candidates for the completion after these words.

    Args:
        whole: the parser of `kube-ccm`.
        before: the words before the cursor; the first is the program.
    """
    program, *typed = before
    if (daemon := PurePath(program).name) in DAEMONS:
        return CompletionContext(options=[*_of_daemon(daemon)])
    name, parser = "", whole
    for word in typed:
        if entry := _commands(parser).get(word):
            name, parser = word, entry[1]
    if name in _COMMANDS:
        own = map(_of_flag, _COMMANDS[name].own_flags().values())
        return CompletionContext(
            options=[*own, *_of_daemon(DAEMON)], words=_FIRST_WORDS.get(name, {})
        )
    options = [_of_action(action) for action in _actions(parser)]
    positional = (option for option in options if not option.names[0].startswith("-"))
    words = dict.fromkeys((word for option in positional for word in option.values()), "")
    words |= {name: text for name, (text, _) in _commands(parser).items()}
    return CompletionContext(
        options=[option for option in options if option.names[0].startswith("-")], words=words
    )


def _offer(here: CompletionContext, previous: str, last: str) -> tuple[Mapping[str, str], int]:
    """Return the matching words with their descriptions, and the directives.

    After `--flag=`, the words are values of the flag, without `--flag=`.
    """
    name, equals, begun = last.partition("=")
    named = name if equals else previous
    option = next((candidate for candidate in here.options if named in candidate.names), None)
    if option is not None and (equals or option.needs_value):
        return _values(option, begun if equals else last)
    words = here.words
    if last.startswith("-"):
        words = {
            f"{candidate.names[0]}{'=' * candidate.needs_value}": candidate.help
            for candidate in here.options
        }
    matches = {word: text for word, text in words.items() if word.startswith(last)}
    is_open = len(matches) == 1 and next(iter(matches)).endswith("=")
    return matches, NO_FILES | (NO_SPACE if is_open else 0)


def _values(option: Option, begun: str) -> tuple[Mapping[str, str], int]:
    if option.is_file:
        return {}, 0
    before, comma, last = begun.rpartition(",") if option.is_list else ("", "", begun)
    matches = [f"{before}{comma}{word}" for word in option.values() if word.startswith(last)]
    return dict.fromkeys(matches, ""), NO_FILES | (NO_SPACE if option.is_list else 0)


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, tuple[str, argparse.ArgumentParser]]:
    """Return each subcommand's help and parser, by name."""
    return {
        choice.dest: (choice.help or "", action.choices[choice.dest])
        for action in _actions(parser)
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - see `_actions`
        for choice in action._choices_actions  # noqa: SLF001
    }


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments of a parser; argparse has no public API for them."""
    return parser._actions  # noqa: SLF001


def _of_action(action: argparse.Action) -> Option:
    names = sorted(action.option_strings, key=len, reverse=True) or [action.dest.replace("_", "-")]
    is_command = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
    words = () if is_command or action.choices is None else tuple(map(str, action.choices))
    return Option(
        names=names, help=_line(action.help or ""), words=words, needs_value=action.nargs != 0
    )


def _of_daemon(name: str) -> Iterator[Option]:
    from ccm.app.options import FLAGS

    known = FLAGS
    if name != DAEMON:
        from ccm.app.machines.commands import COMMANDS

        known = COMMANDS[name].flags
    return (_of_flag(flag) for flag in known.values() if not flag.deprecated)


def _of_flag(flag: Flag) -> Option:
    is_bare, words = flag.kind.bare_value is not None, list[str]()
    if is_bare:
        words = ["true", "false"]
    elif flag.name == "controllers":
        from ccm.app.options.controllers import MANIFESTS

        words = [f"{sign}{manifest.name}" for sign in ("", "-") for manifest in MANIFESTS]
    elif flag.name == "output":
        words = [*command.FORMATS]
    elif flag.name == "logging-format":
        words = ["text", "json", "dev"]
    return Option(
        names=[f"--{flag.name}", *([f"-{flag.short}"] if flag.short else ())],
        help=_line(flag.text),
        words=words,
        needs_value=not is_bare,
    )


def _line(text: str) -> str:
    """Return the first sentence of a text, on one line, without a full stop."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")
