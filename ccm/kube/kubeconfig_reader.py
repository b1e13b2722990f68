"""The reader of kubeconfigs in the `kubernetes` package, without the rest of that package.

`import kubernetes` loads models of the whole API and four HTTP libraries: ten times the CPU
of the rest of a start, and tens of MiB, for the part that merges files. So the one module
that holds it is loaded, with empty stand-ins for what it imports and does not use here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

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
            `config_files`).
        fault: what it raises for a file that it does not understand.
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
    return Reader(merger=module.KubeConfigMerger, fault=module.ConfigException)


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
