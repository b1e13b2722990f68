"""The script for zsh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ccm.cli.completion.words import Command, Option, Program, Value


def script(programs: Sequence[Program]) -> str:
    """The whole script."""
    names = " ".join(program.name for program in programs)
    lines = [
        f"#compdef {names}",
        "# zsh completion; load it with: source <(ccm completion zsh)",
        "",
    ]
    for program in programs:
        lines += [*_program(program), ""]
    lines += [f"compdef {_function(program)} {program.name}" for program in programs]
    return "\n".join(lines) + "\n"


def _program(program: Program) -> Iterator[str]:
    yield f"{_function(program)}() {{"
    if program.commands:
        yield from _commands(program)
    else:
        yield from _arguments(program.options, (), indent=2)
    yield "}"


def _commands(program: Program) -> Iterator[str]:
    yield "  local -a commands"
    yield "  commands=("
    yield from (f"    {_quote(f'{one.name}:{one.help}')}" for one in program.commands)
    yield "  )"
    yield "  if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then"
    yield "    _describe command commands"
    yield "    return"
    yield "  fi"
    yield "  local command=$words[2]"
    yield '  case "$command" in'
    for one in program.commands:
        yield from _command(one)
    yield "    *)"
    yield from _arguments(program.options, (), indent=6)
    yield "      ;;"
    yield "  esac"


def _command(one: Command) -> Iterator[str]:
    yield f"    {one.name})"
    yield "      shift words"
    yield "      (( CURRENT-- ))"
    yield from _arguments(one.options, one.words, indent=6)
    yield "      ;;"


def _arguments(options: Sequence[Option], words: Sequence[str], *, indent: int) -> Iterator[str]:
    """An `_arguments` call; without words nothing is said of them, or Tab would only list."""
    space = " " * indent
    specs = [text for option in options for text in _option(option)]
    if words:
        specs.append(f"*:word:({' '.join(words)})")
    yield " \\\n".join((f"{space}_arguments", *(f"{space}  {_quote(spec)}" for spec in specs)))


def _option(option: Option) -> Iterator[str]:
    text = option.help.translate(_ESCAPES)
    if option.long:
        joint = {Value.NONE: "", Value.OPTIONAL: "=-"}.get(option.value, "=")
        yield f"{option.long}{joint}[{text}]{_value(option)}"
    if option.short:
        joint = "" if option.value in (Value.NONE, Value.OPTIONAL) else "+"
        yield f"{option.short}{joint}[{text}]{_value(option) if joint else ''}"


_ESCAPES = str.maketrans({"[": r"\[", "]": r"\]", ":": r"\:", "\\": "\\\\"})


def _value(option: Option) -> str:
    match option.value:
        case Value.NONE:
            return ""
        case Value.FILE:
            return ":file:_files"
        case Value.ONE:
            return f":value:({' '.join(option.words)})"
        case Value.OPTIONAL:
            return f"::value:({' '.join(option.words)})"
        case Value.LIST:
            return f":value:_values -s , value {' '.join(option.words)}"
        case _:
            return ":value: "


def _function(program: Program) -> str:
    return f"_{program.name.replace('-', '_')}"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
