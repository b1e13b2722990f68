"""The language of the code: no private vocabulary, one name for one class, and true references."""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT, modules, place, tree

WORDS = re.compile(
    r"(?<!`)\b(nobody|somebody|anybody|whoever"
    r"|in (one|another|other) hands?|in hand|bears?|ailments?)\b",
    re.IGNORECASE,
)
"""Words for which Kubernetes and Python have others; values in backticks may be called so."""

TWICE = {
    "AlreadyExists",
    "CheckResult",
    "Endpoint",
    "LastOperation",
    "Machine",
    "MachineClass",
    "MachineDeployment",
    "MachineDeploymentSpec",
    "MachineDeploymentStatus",
    "MachineSet",
    "MachineSetSpec",
    "MachineSetStatus",
    "MachineSpec",
    "MachineStatus",
    "MachineTemplateSpec",
    "NotFound",
    "Phase",
    "PortStatus",
    "ProviderClient",
    "RawClient",
    "Status",
    "StatusCause",
    "Strategy",
    "WriteResult",
    "_Own",
}
"""Class names that two modules of `ccm` may have: wire types of two API groups, a wire
type beside a hub type, or two layers."""

PATHS = modules("ccm", "providers")
CLASSES = [
    (path.relative_to(ROOT), node.name)
    for path in PATHS
    for node in ast.walk(tree(path))
    if isinstance(node, ast.ClassDef)
]


GUIDES = [
    path for path in ROOT.rglob("*.md") if not path.relative_to(ROOT).parts[0].startswith(".")
]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield docstrings, texts of several words and comments with their lines."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    source = io.StringIO(path.read_text())
    for token in tokenize.generate_tokens(source.readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_texts_and_guides_use_the_words_of_kubernetes() -> None:
    texts = [(path, line, text) for path in PATHS for line, text in prose(path)]
    texts += [
        (path, number, line)
        for path in GUIDES
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]
    hits = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path, line, text in texts
        for match in WORDS.finditer(text)
    ]

    assert hits == []


def test_class_names_are_unique() -> None:
    names = Counter(name for path, name in CLASSES if path.parts[0] == "ccm")

    assert {name for name, count in names.items() if count > 1} == TWICE


def test_exceptions_named_in_docstrings_exist() -> None:
    known = {name for _, name in CLASSES} | set(dir(builtins)) | {"SSLError"}
    stale = [
        f"{place(path, node)}: {name}"
        for path in PATHS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in raised(ast.get_docstring(node) or "")
        if name not in known
    ]

    assert stale == []


def raised(docstring: str) -> Iterator[str]:
    """Yield the names of errors in a docstring, without their modules and those of msgspec."""
    section = re.search(r"Raises:\n(.*?)(\n\n|\n\w+:\n|\Z)", docstring, re.DOTALL)
    names = re.findall(r"^    (?!msgspec\.)([\w.]+):", section[1], re.MULTILINE) if section else []
    names += re.findall(r"[Rr]aises? `?([A-Z]\w+)", docstring)
    yield from (name.rpartition(".")[2] for name in names)
