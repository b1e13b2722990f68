"""`kube-ccm completion`: Tab completes our commands, the daemon's flags and their values.

The shell's script is a few lines: each Tab asks `kube-ccm __complete`, which answers from the
tables that the command lines are read with: the argparse tree of `kube-ccm`, and the daemon's
flags. The answer is Cobra's, as kubectl asks plugins for it: a line for each word, its meaning
behind a tab, and last a number with directives. Only what a place needs is loaded, so that the
answer comes at once. shtab writes scripts for neither fish nor kubectl.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ccm.base import interpreter
from ccm.cli import command, doctor, explain, orphans, plan, rollout

if TYPE_CHECKING:
    from ccm.base.flags import Flag

ASK = "__complete"
"""The command that shells call; people do not."""

NO_SPACE = 2
"""More may follow the word directly. As Cobra counts."""

NO_FILES = 4
"""The shell shall not offer files instead."""

DAEMON = "cloud-controller-manager"

DAEMONS = (DAEMON, "machine-controller", "machine-controller-manager")
"""Programs that run in a cluster; the others are its machine controllers alone."""

_DESCRIPTION = """\
Prints a script that lets your shell complete `kube-ccm`, `cloud-controller-manager`,
`machine-controller` and `machine-controller-manager`: commands, flags, names of controllers and
installed providers, files.
"""

_EPILOG = """\
use it:
  bash   source <(kube-ccm completion bash)     to keep: put it into ~/.bashrc
  zsh    source <(kube-ccm completion zsh)      to keep: put it into ~/.zshrc, after compinit
  fish   kube-ccm completion fish | source      to keep: kube-ccm completion fish > \\
                                                  ~/.config/fish/completions/kube-ccm.fish

`kubectl ccm` needs none of it: kubectl's own completion asks kubectl_complete-ccm.
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
    # bash itself takes --flag=value for three words, unless somebody told it not to.
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
"""Shell -> script; `ASK` stands for the command line that is asked, `PROGRAMS` for the programs."""

_COMMANDS = {each.NAME: each.COMMAND for each in (doctor, explain, orphans, plan, rollout)}
"""Commands that take the daemon's flags."""

_FIRST_WORDS = {explain.NAME: explain.OBJECTS, rollout.NAME: rollout.ACTIONS}

_PROVIDERS = "ccm.providers"
"""The registry's group of entry points, without the time it takes to load the registry."""

_FILE_ENDS = ("config", "-file", "-config-to", "-dir", "folder", "picture")


def add(commands: Any) -> None:
    """Describe the subcommand to the command line's parser."""
    summary = "print a script with which your shell completes all of this"
    parser = command.add_parser(
        commands, "completion", summary, description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell to write it for")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    sys.stdout.write(script(options.shell))
    return 0


def script(shell: str) -> str:
    """Return what the shell has to read."""
    # A Tab must not run what lies in the folder where it is pressed.
    asking = shlex.join(interpreter.command("ccm.cli", ASK))
    programs = " ".join(("kube-ccm", *DAEMONS))
    return SCRIPTS[shell].replace("PROGRAMS", programs).replace("ASK", asking)


def answer(whole: argparse.ArgumentParser, typed: Sequence[str]) -> int:
    """Print what a shell may offer; return the exit status.

    Args:
        whole: the parser of `kube-ccm`.
        typed: the words up to the cursor, two at least: the program first, and last what was
            begun, which may be empty.
    """
    *before, last = typed
    offered, directive = _offer(place(whole, before), before[-1], last)
    lines = [f"{word}\t{text}" if text else word for word, text in offered.items()]
    sys.stdout.writelines(f"{line}\n" for line in (*lines, f":{directive}"))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One flag, or a word without a dash.

    Attributes:
        names: with their dashes; the first one is offered.
        help: one line.
        words: the values that are known, of providers aside.
        needs_value: whether a value has to follow.
    """

    names: Sequence[str]
    help: str = ""
    words: Sequence[str] = ()
    needs_value: bool = False

    @property
    def name(self) -> str:
        """The offered name without its dashes."""
        return self.names[0].lstrip("-")

    @property
    def is_list(self) -> bool:
        """Whether commas separate several of the words."""
        return self.name == "controllers"

    @property
    def is_file(self) -> bool:
        """Whether files are offered."""
        return not self.words and self.name.endswith(_FILE_ENDS)

    def known(self) -> Sequence[str]:
        """Return the values that are known."""
        if self.name not in ("name", "provider", "cloud-provider"):
            return self.words
        from importlib.metadata import entry_points

        return sorted({entry.name for entry in entry_points(group=_PROVIDERS)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What may stand at one place: flags, and words without a dash, each with its meaning."""

    options: Sequence[Option]
    words: Mapping[str, str] = field(default_factory=dict)


def place(whole: argparse.ArgumentParser, before: Sequence[str]) -> Place:
    """Return the place behind these words.

    Args:
        whole: the parser of `kube-ccm`.
        before: the words before the one at the cursor, the program first.
    """
    program, *typed = before
    if (daemon := PurePath(program).name) in DAEMONS:
        return Place(options=[*_of_daemon(daemon)])
    name, parser = "", whole
    for word in typed:
        if found := _commands(parser).get(word):
            name, parser = word, found[1]
    if name in _COMMANDS:
        own = map(_of_flag, _COMMANDS[name].own_flags().values())
        return Place(options=[*own, *_of_daemon(DAEMON)], words=_FIRST_WORDS.get(name, {}))
    options = [_of_action(action) for action in _actions(parser)]
    positional = (one for one in options if not one.names[0].startswith("-"))
    words = dict.fromkeys((word for one in positional for word in one.known()), "")
    words |= {name: text for name, (text, _) in _commands(parser).items()}
    return Place(options=[one for one in options if one.names[0].startswith("-")], words=words)


def _offer(here: Place, previous: str, last: str) -> tuple[Mapping[str, str], int]:
    """Return the words that fit what was begun, each with its meaning, and the directives.

    Behind `--flag=` they are values, without the flag.
    """
    name, equals, begun = last.partition("=")
    named = name if equals else previous
    option = next((one for one in here.options if named in one.names), None)
    if option is not None and (equals or option.needs_value):
        return _values(option, begun if equals else last)
    words = here.words
    if last.startswith("-"):
        words = {f"{one.names[0]}{'=' * one.needs_value}": one.help for one in here.options}
    found = {word: text for word, text in words.items() if word.startswith(last)}
    is_open = len(found) == 1 and next(iter(found)).endswith("=")
    return found, NO_FILES | (NO_SPACE if is_open else 0)


def _values(option: Option, begun: str) -> tuple[Mapping[str, str], int]:
    if option.is_file:
        return {}, 0
    before, comma, last = begun.rpartition(",") if option.is_list else ("", "", begun)
    found = [f"{before}{comma}{word}" for word in option.known() if word.startswith(last)]
    return dict.fromkeys(found, ""), NO_FILES | (NO_SPACE if option.is_list else 0)


def _commands(
    parser: argparse.ArgumentParser,
) -> Mapping[str, tuple[str, argparse.ArgumentParser]]:
    """Return the name of each subcommand with its meaning and its parser."""
    return {
        one.dest: (one.help or "", action.choices[one.dest])
        for action in _actions(parser)
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - see `_actions`
        for one in action._choices_actions  # noqa: SLF001
    }


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """argparse has no public way to ask what a parser knows."""
    return parser._actions  # noqa: SLF001


def _of_action(action: argparse.Action) -> Option:
    names = sorted(action.option_strings, key=len, reverse=True) or [action.dest.replace("_", "-")]
    is_command = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
    words = () if is_command or action.choices is None else tuple(map(str, action.choices))
    return Option(
        names=names,
        help=_line(action.help or ""),
        words=words,
        needs_value=action.nargs != 0,
    )


def _of_daemon(name: str) -> Iterator[Option]:
    from ccm.app.options import FLAGS

    known = FLAGS
    if name != DAEMON:
        from ccm.app.machines.commands import COMMANDS

        known = COMMANDS[name].flags
    return (_of_flag(flag) for flag in known.values() if not flag.deprecated)


def _of_flag(flag: Flag) -> Option:
    is_bare, words = flag.kind.bare is not None, list[str]()
    if is_bare:
        words = ["true", "false"]
    elif flag.name == "controllers":
        from ccm.app.options.names import MANIFESTS

        words = [f"{sign}{one.name}" for sign in ("", "-") for one in MANIFESTS]
    elif flag.name == "output":
        words = [flag.default, "json"]  # for people by default, or for programs
    elif flag.name == "logging-format":
        words = ["text", "json", "dev"]
    return Option(
        names=[f"--{flag.name}", *([f"-{flag.short}"] if flag.short else ())],
        help=_line(flag.text),
        words=words,
        needs_value=not is_bare,
    )


def _line(text: str) -> str:
    """Return the first sentence, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")
