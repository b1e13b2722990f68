"""Texts in files: docstrings of packages, one place for names, no paths of home folders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from ccm.model import names
from tests.architecture.sources import ROOT, modules, place, project_files, texts, tree

pytestmark = pytest.mark.xdist_group("syntax trees")

NAMES = ROOT / "ccm" / "model" / "names.py"
OF_KUBERMATIC = ROOT / "ccm" / "kubermatic" / "names.py"
"""Names of an API group in the domain of Kubernetes, which is not one of Kubernetes."""

KUBERNETES_NAME = re.compile(r"([a-z0-9-]+\.)*(kubernetes|k8s)\.io/(?!v\d)[A-Za-z0-9][\w.-]*")
SOMEBODYS_FOLDER = re.compile(r"(?<![\w.}/-])/(?:work|root|home)/\w")
LOGGERS = {"log", "_log", "logger", "_logger"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def promised_names() -> dict[str, str]:
    """Value -> constant of the strings that must not be spelled out elsewhere."""
    prefixes = ("TAINT_", "LABEL_", "ANNOTATION_", "REASON_")
    return {
        value: name
        for name, value in vars(names).items()
        if name.startswith(prefixes) and isinstance(value, str)
    }


def test_every_package_has_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in modules("ccm", "providers")
        if path.name == "__init__.py" and not ast.get_docstring(tree(path))
    ]

    assert silent == []


def test_labels_taints_annotations_and_reasons_come_from_one_module() -> None:
    promised = promised_names()
    strays = [
        f"{place(path, node)}: {node.value!r} is {promised.get(str(node.value), 'missing')}"
        for path in modules("ccm", "providers")
        if path not in (NAMES, OF_KUBERMATIC)
        for node in texts(path)
        if node.value in promised or KUBERNETES_NAME.fullmatch(str(node.value))
    ]

    assert strays == []


def test_log_messages_are_constant() -> None:
    built = [
        place(path, node)
        for path in modules("ccm", "providers")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        if any(not isinstance(text, ast.Constant) for text in log_messages(node))
        if path.name != "log.py"  # it passes on the messages of its callers, which are checked here
    ]

    assert built == []


def log_messages(call: ast.Call) -> Iterator[ast.expr | None]:
    """Yield the messages that a call logs, now or later."""
    if is_log_call(call.func):
        yield call.args[0] if call.args else None
    if isinstance(call.func, ast.Name) and call.func.id == "Outage":
        yield from (word.value for word in call.keywords)


def is_log_call(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in LOG_METHODS:
        return False
    owner = function.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name in LOGGERS


def test_no_file_contains_a_path_of_a_home_folder() -> None:
    told = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in project_files()
        if (found := SOMEBODYS_FOLDER.search(path.read_text(errors="ignore")))
    ]

    assert told == []
