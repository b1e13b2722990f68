"""The script for fish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ccm.cli.completion.words import Option, Program, Value


def script(programs: Sequence[Program]) -> str:
    """The whole script."""
    lines = ["# fish completion; load it with: ccm completion fish | source", ""]
    for program in programs:
        lines += [*_program(program), ""]
    return "\n".join(lines)


def _program(program: Program) -> Iterator[str]:
    yield f"complete -c {program.name} -e"
    yield f"complete -c {program.name} -f"
    first = "__fish_use_subcommand" if program.commands else ""
    for command in program.commands:
        yield _line(program.name, first, f"-a {_quote(command.name)}", command.help)
    for option in program.options:
        yield _option(program.name, first, option)
    for command in program.commands:
        inside = f"__fish_seen_subcommand_from {command.name}"
        for word in command.words:
            yield _line(program.name, inside, f"-a {_quote(word)}", "")
        for option in command.options:
            yield _option(program.name, inside, option)


def _option(program: str, condition: str, option: Option) -> str:
    parts = []
    if option.long:
        parts.append(f"-l {option.long.removeprefix('--')}")
    if option.short:
        parts.append(f"-s {option.short.removeprefix('-')}")
    match option.value:
        case Value.FILE:
            parts.append("-r -F")
        case Value.ANY:
            parts.append("-x")
        case Value.ONE:
            parts.append(f"-x -a {_quote(' '.join(option.words))}")
        case Value.LIST:
            joined = f"(__fish_append , {' '.join(option.words)})"
            parts.append(f"-x -a {_quote(joined)}")
        case Value.OPTIONAL:
            # Without -x and -r the value is offered behind = only.
            parts.append(f"-a {_quote(' '.join(option.words))}")
        case Value.NONE:
            pass
    return _line(program, condition, " ".join(parts), option.help)


def _line(program: str, condition: str, what: str, text: str) -> str:
    parts = [f"complete -c {program}"]
    if condition:
        parts.append(f"-n {_quote(condition)}")
    parts.append(what)
    if text:
        parts.append(f"-d {_quote(text)}")
    return " ".join(parts)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
