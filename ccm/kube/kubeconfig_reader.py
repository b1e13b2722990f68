"""The reader of kubeconfigs in the `kubernetes` package, without the rest of that package.

`import kubernetes` loads models of the whole API and four HTTP libraries: ten times the CPU
of the rest of a start, and tens of MiB, for the part that merges files. So the one module
that holds it is loaded, with empty stand-ins for what it imports and does not use here. It takes
any YAML for a kubeconfig, and the last of two values for one name; its files are looked at here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType, SimpleNamespace
from typing import IO, Any, NamedTuple

from ccm.kube.config_parts import ConfigError

_PACKAGE = "kubernetes"
_MODULE = f"{_PACKAGE}.config.kube_config"

_STAND_INS: Mapping[str, Sequence[str]] = {
    f"{_PACKAGE}.client": ("ApiClient", "Configuration"),
    f"{_PACKAGE}.config.exec_provider": ("ExecProvider",),
    "oauthlib": (),
    "oauthlib.oauth2": (),
    "requests_oauthlib": ("OAuth2Session",),
    "urllib3": (),
}
"""What the module imports beside the standard library and YAML -> the names it takes from it."""

_ABSENT = ("google", "google.auth", "google.auth.transport", "google.auth.transport.requests")
"""What the module can do without."""


class Reader(NamedTuple):
    """What is used of the package.

    Attributes:
        merger: class that reads the files of a path list into one tree (`config`,
            `config_files`); raises ConfigError for a file that is no kubeconfig.
        fault: what the tree raises for a name that it does not hold.
    """

    merger: Any
    fault: type[Exception]


@functools.cache
def load() -> Reader:
    """The reader; loaded once."""
    if _PACKAGE in sys.modules:  # somebody has paid for all of it already
        return _reader()
    with _alone():
        return _reader()


def _reader() -> Reader:
    module = importlib.import_module(_MODULE)
    merger, lenient = module.KubeConfigMerger, module.KubeConfigMerger.load_config
    # Its own copy of the one function that reads a file: others may use the package too.
    strict = {**lenient.__globals__, "yaml": SimpleNamespace(safe_load=_content)}
    load_config = FunctionType(lenient.__code__, strict)
    return Reader(
        merger=type(merger.__name__, (merger,), {"load_config": load_config}),
        fault=module.ConfigException,
    )


def _content(file: IO[str]) -> dict[str, Any]:
    """What a kubeconfig holds; raises ConfigError if it cannot be merged with others."""
    from ccm.base import strict_yaml

    try:
        found = strict_yaml.load(file)
    except strict_yaml.FAULTS as error:
        raise ConfigError(f"{file.name}: is not valid YAML: {strict_yaml.reason(error)}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file.name}: is not a kubeconfig: it must be a mapping with clusters")
    for kind in ("clusters", "contexts", "users"):
        entries = found.get(kind) or []
        if not isinstance(entries, list) or not all(
            isinstance(one, dict) and "name" in one for one in entries
        ):
            raise ConfigError(
                f"{file.name}: is not a kubeconfig: {kind} must be a list of mappings, each with "
                "a name"
            )
    return found


@contextmanager
def _alone() -> Iterator[None]:
    """Inside, stand-ins take the place of what the module imports; afterwards all is as before."""
    before = dict(sys.modules)
    root = importlib.util.find_spec(_PACKAGE)
    assert root is not None
    folders = list(root.submodule_search_locations or ())
    packages = {_PACKAGE: folders, f"{_PACKAGE}.config": [f"{each}/config" for each in folders]}
    for name in (*packages, *_STAND_INS):
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = packages.get(name, [])
        for wanted in _STAND_INS.get(name, ()):
            setattr(module, wanted, type(wanted, (), {}))
    sys.modules.update(dict.fromkeys(_ABSENT))  # type: ignore[arg-type]  # None: cannot be imported
    try:
        yield
    finally:
        # What of the package is loaded goes too: a later import by somebody else begins anew.
        loaded = [name for name in sys.modules if name.startswith(f"{_PACKAGE}.")]
        for name in [*packages, *_STAND_INS, *_ABSENT, *loaded]:
            sys.modules.pop(name, None)
            if name in before:
                sys.modules[name] = before[name]
