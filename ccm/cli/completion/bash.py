"""The script for bash.

Bash hands over `--flag=value` in three words, because `=` separates words there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ccm.cli.completion.words import Option, Program, Value

_HEAD = """\
# bash completion for {names}; load it with
#   source <(ccm completion bash)

# Completes "$cur" from some words; one that ends with = gets no space behind it.
__ccm_among() {{
    COMPREPLY=($(compgen -W "$1" -- "$cur"))
    if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]]; then compopt -o nospace; fi
}} 2> /dev/null

# The same for lists with commas; what stands before the last comma stays.
__ccm_list() {{
    local before="" last="$cur"
    if [[ $cur == *,* ]]; then before="${{cur%,*}},"; last="${{cur##*,}}"; fi
    COMPREPLY=($(compgen -P "$before" -W "$1" -- "$last"))
    compopt -o nospace
}} 2> /dev/null

__ccm_files() {{
    compopt -o filenames
    COMPREPLY=($(compgen -f -- "$cur"))
}} 2> /dev/null

# Sets cur, and flag: the one whose value is being typed, with = behind it if that was typed.
__ccm_where() {{
    local one="${{COMP_WORDS[COMP_CWORD - 1]}}" two=""
    if ((COMP_CWORD >= 2)); then two="${{COMP_WORDS[COMP_CWORD - 2]}}"; fi
    cur="${{COMP_WORDS[COMP_CWORD]}}"
    flag=""
    if [[ $cur == = ]]; then
        cur=""
        flag="$one="
    elif [[ $one == = ]]; then
        flag="$two="
    elif [[ $one == -* ]]; then
        flag="$one"
    fi
}}
"""


def script(programs: Sequence[Program]) -> str:
    """The whole script."""
    names = " and ".join(program.name for program in programs)
    parts = [_HEAD.format(names=names)]
    parts += ["\n".join(_program(program)) + "\n" for program in programs]
    return "\n".join(parts)


def _program(program: Program) -> Iterator[str]:
    function = f"__{program.name.replace('-', '_')}_complete"
    yield f"{function}() {{"
    yield '    local cur flag command=""'
    yield "    COMPREPLY=()"
    yield "    __ccm_where"
    if program.commands:
        yield from _find_command(program)
        yield '    case "$command" in'
        for command in program.commands:
            yield f"    {command.name})"
            yield from _flags(command.options, command.words, indent=8)
            yield "        ;;"
        yield '    "")'
        yield from _flags(program.options, [one.name for one in program.commands], indent=8)
        yield "        ;;"
        yield "    esac"
    else:
        yield from _flags(program.options, (), indent=4)
    yield "}"
    yield f"complete -F {function} {program.name}"


def _find_command(program: Program) -> Iterator[str]:
    names = "|".join(one.name for one in program.commands)
    yield "    local word"
    yield '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do'
    yield f'        case "$word" in {names}) command="$word"; break ;; esac'
    yield "    done"


def _flags(options: Sequence[Option], words: Sequence[str], *, indent: int) -> Iterator[str]:
    space = " " * indent
    yield f'{space}case "$flag" in'
    for option in options:
        action = _ACTIONS.get(option.value)
        if action is not None:
            patterns = "|".join(_patterns(option))
            yield f"{space}{patterns}) {action.format(words=_quoted(option.words))} ;;"
    yield f"{space}*)"
    offered = _quoted([spelling for option in options for spelling in _spellings(option)])
    yield f"{space}    if [[ $cur == -* ]]; then __ccm_among {offered}"
    yield f"{space}    else __ccm_among {_quoted(words)}; fi ;;"
    yield f"{space}esac"


_ACTIONS = {
    Value.ANY: ":",
    Value.FILE: "__ccm_files",
    Value.ONE: "__ccm_among {words}",
    Value.LIST: "__ccm_list {words}",
    Value.OPTIONAL: "__ccm_among {words}",
}
"""What completes the value of a flag; a flag without one needs nothing."""


def _patterns(option: Option) -> Iterator[str]:
    """What stands before a value, as `__ccm_where` says it."""
    for name in filter(None, (option.long, option.short)):
        if option.value is not Value.OPTIONAL:
            yield name
        yield f"{name}="


def _spellings(option: Option) -> Iterator[str]:
    """How the flag is offered: with `=` where a value must follow."""
    if option.long:
        needs = option.value not in (Value.NONE, Value.OPTIONAL)
        yield f"{option.long}=" if needs else option.long
    elif option.short:
        yield option.short


def _quoted(words: Sequence[str]) -> str:
    return shlex.quote(" ".join(words))
