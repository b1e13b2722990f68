"""The behaviour that users see: for each subject lines of text, without paths or line numbers.

The subjects are read from the product itself: from its parsers, registries and syntax trees. Code
may move freely; only a change that a user can notice changes a picture.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ccm import cli
from ccm.app import main, options
from ccm.app.machines.commands import COMMANDS
from ccm.base.flags import Flag, aliases
from ccm.cli import backup
from tests.architecture.sources import ROOT, modules, tree

FOLDER = Path(__file__).parent

_SUBCOMMANDS = (
    *("backup", "completion", "doctor", "explain", "journal", "new-provider", "orphans", "plan"),
    *("providers", "restore", "rollout", "sandbox"),
)
_DAEMON_FLAGS = ("doctor", "explain", "journal", "orphans", "plan", "rollout")
_LEVELS = ("critical", "debug", "error", "exception", "info", "warning")
_FACTORIES = ("counter", "gauge", "histogram", "plain_counter")
_CAMEL = re.compile(r"[A-Z][a-z]+([A-Z][A-Za-z]*)*")
_KINDS = re.compile(r"^kind: ((Cluster)?Role|CustomResourceDefinition)$", re.MULTILINE)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SDK = (
    *("ccm.cloud", "ccm.cloud.rest", "ccm.model", "ccm.persistence.interface"),
    *("ccm.testing.contract", "ccm.testing.persistence_contract"),
)


def helps() -> Iterator[str]:
    """`--help` of every program and subcommand, in full."""
    for program, run in _programs():
        yield from _help([program], partial(run, ["--help"]))
    yield from _help(["kube-ccm"], partial(cli.main, ["--help"]))
    for name in _SUBCOMMANDS:
        yield from _help(["kube-ccm", name], partial(cli.main, [name, "--help"]))


def _programs() -> Iterator[tuple[str, Callable[[list[str]], int]]]:
    for program in (main.DAEMON, *(command.program for command in COMMANDS.values())):
        yield program.name, partial(main.main, program=program)


def _help(words: list[str], run: Callable[[], int]) -> Iterator[str]:
    yield f"===== {' '.join(words)} --help"
    text = _run(run)[1]
    # Python 3.13 writes `-o, --output FORMAT`.
    yield from re.sub(r"(-\w) ([A-Z]+), (--[\w-]+ \2)", r"\1, \3", text).splitlines()


def _run(run: Callable[[], int]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return code, out.getvalue()


def flags() -> Iterator[str]:
    """Each flag: program, name, short name, type, default, field of the file, and its standing."""
    tables: dict[str, Mapping[str, Flag]] = {options.PROGRAM: options.FLAGS}
    tables |= {name: command.flags for name, command in COMMANDS.items()}
    for name in _DAEMON_FLAGS:
        tables[f"kube-ccm {name}"] = importlib.import_module(f"ccm.cli.{name}").own_flags()
    for one in (backup.BACKUP, backup.RESTORE):
        tables[f"kube-ccm {one.name}"] = one.own_flags()
    lines = [_flag(program, flag) for program, known in tables.items() for flag in known.values()]
    lines += [
        _flag(program, flag)
        for program, known in tables.items()
        for flag in aliases(known).values()
    ]
    idle = {options.PROGRAM: options.NO_EFFECT} | {
        name: one.no_effect for name, one in COMMANDS.items()
    }
    for program, names in idle.items():
        lines += (f"{program} --{name}: no effect" for name in names if name not in tables[program])
    return iter(sorted(lines))


def _flag(program: str, flag: Flag) -> str:
    facts = {
        "type": flag.kind.word,
        "default": flag.kind.write(flag.default) or '""',
        "unit": flag.unit,
        "file": flag.path,
        "deprecated": flag.deprecated,
    }
    short = f" -{flag.short}" if flag.short else ""
    said = "; ".join(f"{name} {text}" for name, text in facts.items() if text)
    return f"{program} --{flag.name}{short}: {said}"


def metrics() -> Iterator[str]:
    """Each family of the registry: name, type, labels, and the borders of a histogram.

    Read in a process of its own: other tests and what they import declare metrics, too.
    """
    code = "from tests.golden import pictures; print(*pictures.declared_metrics(), sep='\\n')"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return iter(found.stdout.splitlines())


def declared_metrics() -> Iterator[str]:
    """Metrics of this process, for `metrics`."""
    from ccm.base import metrics as registry

    for name in sorted(_declaring()):
        importlib.import_module(name)
    text = registry.exposition().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    declared: Any = registry.REGISTRY._collector_to_names
    labels = {
        name: getattr(each, "_labelnames", ()) for each, names in declared.items() for name in names
    }
    labels |= {
        each.name: each.metric._labelnames
        for each in declared
        if isinstance(each, registry.FormerName)
    }
    borders = {
        each._name: ",".join(f"{border:g}" for border in each._upper_bounds)
        for each in declared
        if hasattr(each, "_upper_bounds")
    }
    for name, kind in sorted(kinds.items()):
        if name.startswith(("process_", "python_")):
            continue  # of the library, as the platform has them
        of = ",".join(sorted(labels.get(name, ())))
        le = f" le={borders[name]}" if name in borders else ""
        yield f"{name} {kind} {{{of}}}{le}"


def _mentioning(pattern: str, *without: str) -> Iterator[Path]:
    """Modules of the product whose text matches; to parse all of them takes seconds."""
    for path in modules("ccm", "providers"):
        is_tool = path.relative_to(ROOT).parts[1] in ("sandbox", "testing", *without)
        if not is_tool and re.search(pattern, path.read_text()):
            yield path


def _declaring() -> Iterator[str]:
    """Modules of the product that declare a metric."""
    for path in _mentioning(r"(counter|gauge|histogram)\("):
        calls = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
        if any(_name(call.func) in _FACTORIES for call in calls):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def rbac() -> Iterator[str]:
    """Each right that the manifests and the chart grant: verb, resource, role and condition."""
    lines = set()
    for path in sorted((ROOT / "manifests").rglob("*.yaml")):
        for when, document in _documents(path):
            lines |= set(_rights(when, document))
    return iter(sorted(lines))


def _documents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Documents, with the condition of the chart that holds for the whole of one."""
    text, origin = path.read_text(), "manifests"
    if "templates" in path.parts:
        origin = "chart"
        text = re.sub(r":[ ]+\{\{-?[^}\n]*\}\}[ ]*$", ": templated", text, flags=re.MULTILINE)
        text = re.sub(r"^[ ]*\{\{.*\}\}[ ]*$", "", text, flags=re.MULTILINE)
        text = re.sub(r"\{\{-?\s*(.*?)\s*-?\}\}", lambda one: _inline(one.group(1)), text)
    for part in re.split(r"^---.*$", text, flags=re.MULTILINE):
        if _KINDS.search(part):
            yield origin, yaml.load(part, _LOADER)


def _inline(expression: str) -> str:
    return "<" + re.sub(r"[^\w.-]+", "-", expression).strip("-") + ">"


def _rights(origin: str, document: dict[str, Any]) -> Iterator[str]:
    if not document["kind"].endswith("Role"):
        return
    role = f"{document['kind']} {document['metadata']['name']}"
    for rule in document.get("rules") or ():
        names = ",".join(sorted(rule.get("resourceNames", ())))
        groups = rule.get("apiGroups", ("",))
        places = [f"{group}/{one}" for group in groups for one in rule.get("resources", ())]
        for place in (*places, *rule.get("nonResourceURLs", ())):
            for verb in rule["verbs"]:
                yield f"{origin}: {role}: {verb} {place}{f' named {names}' if names else ''}"


def reasons() -> Iterator[str]:
    """Reasons of events and conditions: constants named so, and literals where one is expected."""
    found = set()
    for path in _mentioning(r"REASON|reason=|\.event\("):
        for node in ast.walk(tree(path)):
            found |= set(_reasons(node))
    return iter(sorted(text for text in found if _CAMEL.fullmatch(text)))


def _reasons(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any("REASON" in _name(target).upper() for target in targets):
            yield from _strings(node.value)
    elif isinstance(node, ast.Call):
        if _name(node.func) == "event":
            for argument in node.args[1:3]:
                yield from _strings(argument)
        for keyword in node.keywords:
            if keyword.arg == "reason":
                yield from _strings(keyword.value)


def _strings(node: ast.expr) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def logs() -> Iterator[str]:
    """Each log line: level, message, and the keys of its facts; `*` stands for computed parts."""
    found = set()
    for path in _mentioning(rf"log.*\.({'|'.join(_LEVELS)})\(", "cli", "doctor"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call):
                found |= set(_log_lines(node))
    return iter(sorted(found))


def _log_lines(call: ast.Call) -> Iterator[str]:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in _LEVELS:
        return
    receiver = ast.unparse(function.value).lower()
    if "log" not in receiver or not call.args:
        return
    level = function.attr
    if verbosity := re.search(r"\.v\((\w+)\)$", receiver):
        level = f"v{verbosity.group(1)}"
    keys = ",".join(sorted(keyword.arg or "*" for keyword in call.keywords))
    for message in _messages(call.args[0]):
        yield f"{level}: {message} {{{keys}}}"


def _messages(node: ast.expr) -> Iterable[str]:
    if isinstance(node, ast.IfExp):
        return (*_messages(node.body), *_messages(node.orelse))
    if isinstance(node, ast.Constant):
        return (str(node.value),)
    return ("*",)


def crds() -> Iterator[str]:
    """Each definition: names, versions, columns, and the type of each field."""
    found = {}
    for path in sorted((ROOT / "manifests").rglob("*.yaml")):
        for origin, document in _documents(path):
            if document["kind"] == "CustomResourceDefinition":
                found[origin, document["metadata"]["name"]] = document["spec"]
    for (origin, name), spec in sorted(found.items()):
        if origin == "chart" and spec == found.get(("manifests", name)):
            yield f"chart: {name} as in the manifests"
        else:
            yield from (f"{origin}: {line}" for line in _spec(name, spec))


def _spec(name: str, spec: dict[str, Any]) -> Iterator[str]:
    for key in ("group", "scope", "names"):
        yield f"{name} {key} {_flat(spec.get(key))}"
    for version in spec.get("versions", ()):
        where = f"{name} {version['name']}"
        for key, value in sorted(version.items()):
            if key == "schema":
                yield from sorted(_fields(where, value["openAPIV3Schema"]))
            elif key == "additionalPrinterColumns":
                yield from (f"{where} column {_flat(column)}" for column in value)
            else:
                yield f"{where} {key} {_flat(value)}"


def _fields(where: str, schema: dict[str, Any]) -> Iterator[str]:
    nested = ("properties", "items", "additionalProperties", "description")
    yield f"{where} {_flat({key: value for key, value in schema.items() if key not in nested})}"
    for name, child in schema.get("properties", {}).items():
        yield from _fields(f"{where}.{name}", child)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from _fields(f"{where}{mark}", schema[key])


def _flat(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def sdk() -> Iterator[str]:
    """Each public name that a provider or its tests may import, with its signature."""
    for module_name in _SDK:
        module = importlib.import_module(module_name)
        names = getattr(module, "__all__", None) or _defined(module)
        public = {name: getattr(module, name) for name in sorted(names)}
        for name, value in public.items():
            yield from _signatures(f"{module_name} {name}", value, list(public.values()))


def _defined(module: Any) -> Iterator[str]:
    for name, value in vars(module).items():
        home = getattr(value, "__module__", None)
        is_constant = name.isupper() and isinstance(value, str | int | float | tuple)
        if not name.startswith("_") and (home == module.__name__ or is_constant):
            yield name


def _signatures(place: str, value: Any, public: Collection[object]) -> Iterator[str]:
    if not isinstance(value, type):
        yield f"{place}{_signature(value)}"
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    calls = "" if getattr(value, "_is_protocol", False) else _signature(value)
    yield f"{place} class({bases}) {calls}"
    yield from (f"{place}{line}" for line in sorted(_attributes(value, public)))


def _attributes(kind: type, public: Collection[object]) -> Iterator[str]:
    """Its fields and what may be called on it, those of base classes that are not public too."""
    for base in kind.__mro__:
        if not base.__module__.startswith("ccm.") or (base is not kind and base in public):
            continue
        for name, annotation in vars(base).get("__annotations__", {}).items():
            if not name.startswith("_"):
                yield f".{name}: {annotation}"
        for name, value in vars(base).items():
            if isinstance(value, property):
                yield f".{name} property"
            elif inspect.isroutine(value) and not name.startswith("_"):
                yield f".{name}{_signature(inspect.unwrap(getattr(kind, name)))}"


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value)).replace("'", "") if callable(value) else ""
    except (TypeError, ValueError):
        return "(...)"


def exits() -> Iterator[str]:
    """The exit status of command lines that are answered at once, and named statuses."""
    for program, run in _programs():
        for words in (["--help"], ["--version"], ["--no-such-flag"], ["word"]):
            code = _run(partial(run, words))[0]
            yield f"{' '.join([program, *words])}: {code}"
    lines = [[], ["--help"], ["--version"], ["nonsense"]]
    for name in _SUBCOMMANDS:
        lines += [[name, "--help"], [name, "--no-such-flag"]]
    for words in lines:
        code = _run(partial(cli.main, words))[0]
        yield f"{' '.join(['kube-ccm', *words])}: {code}"
    found = set()
    for path in _mentioning("EXIT_|INTERRUPTED"):
        found |= {
            f"{_name(node.targets[0])} = {ast.unparse(node.value)}"
            for node in tree(path).body
            if isinstance(node, ast.Assign)
            and _name(node.targets[0]).startswith(("EXIT_", "INTERRUPTED"))
            and isinstance(node.value, ast.Constant)
        }
    yield from sorted(found)


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


SUBJECTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "crds": crds,
    "exit-codes": exits,
    "flags": flags,
    "help": helps,
    "log-lines": logs,
    "metrics": metrics,
    "rbac": rbac,
    "reasons": reasons,
    "sdk": sdk,
}
"""Subjects by the name of their golden file."""


def drawn(subject: str) -> str:
    """The text of one picture as the product has it now."""
    return "".join(f"{line.rstrip()}\n" for line in SUBJECTS[subject]())
