"""Wrong input of any kind: never a traceback, always one message that names the field."""

from __future__ import annotations

import copy
import io
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccm.app import main, options
from ccm.app.options import config, documents, migration
from ccm.base import log
from ccm.kube import config as kube_config

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
"""Any value that YAML can hold."""

BAD = {
    "bool": ["yes", "on", "2", ""],
    "int": ["", "x", "1.5", "99999999999999999999"],
    "int32": ["", "x", "0x", "2147483648", "1e3"],
    "level": ["-1", "x", ""],
    "float": ["", "x", "1,5"],
    "duration": ["", "10", "soon", "1w", "-"],
    "ip": ["", "localhost", "1.2.3", "1.2.3.4%eth0"],
    "strings": ['"', 'a"b', 'a,"'],
    "int32s": ["x", "1,", "1,x"],
    "Name=bool,...": ["x", "=true", "x=2"],
    "pattern=N,...": ["x", "x=0", "=1", "x=y"],
    "quantity": ["", "x", "1Xi"],
    "cert,key[:names]": ["", "a", "a,b,c", "a,b:"],
    "version": ["1.2", "vx", "maybe"],
}

KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "one",
    "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "abcdef"}}],
}
CLOUD: dict[str, Any] = {"url": "http://127.0.0.1:1", "token": "abcdef", "timeout": "1s"}


@dataclass(frozen=True)
class Wrong:
    """Something wrong.

    Attributes:
        where: which input it is in.
        content: flags, or the document of a file.
        field: what the message has to name.
    """

    where: str
    content: Any
    field: str


def flag_faults() -> st.SearchStrategy[Wrong]:
    """A value that the flag cannot have, or a flag that does not exist."""
    pairs = [
        (flag.name, bad) for flag in options.FLAGS.values() for bad in BAD.get(flag.kind.word, [])
    ]
    strange = st.text("abcxyz-", min_size=3, max_size=9).map(lambda name: (f"q{name}", "1"))
    return st.one_of(st.sampled_from(pairs), strange).map(
        lambda pair: Wrong("flags", f"--{pair[0]}={pair[1]}", pair[0])
    )


def config_faults() -> st.SearchStrategy[Wrong]:
    """A field of a wrong type, or one that does not exist."""
    paths = st.sampled_from(sorted(config.FIELDS))
    wrong = st.tuples(paths, st.just({"not": "this"})).map(lambda pair: (*pair, ""))
    strange = st.tuples(paths, JUNK).map(lambda pair: (*pair, "Qx"))
    return st.one_of(wrong, strange).map(_config_fault)


def _config_fault(choice: tuple[str, Any, str]) -> Wrong:
    path, value, suffix = choice
    *parents, name = path.split(".")
    document: dict[str, Any] = {"apiVersion": config.GROUP_VERSION, "kind": config.KIND}
    inner = document
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[name + suffix] = value
    return Wrong("config", document, path + suffix)


_CLUSTER, _USER = ("clusters", 0, "cluster"), ("users", 0, "user")

KUBECONFIG_FAULTS: list[tuple[tuple[Any, ...], list[Any], str]] = [
    (("current-context",), ["", None, "nowhere"], "context"),
    (("contexts", 0, "context", "cluster"), ["nowhere", ""], "cluster"),
    (("contexts", 0, "context", "user"), ["nowhere"], "user"),
    ((*_CLUSTER, "server"), ["", "ftp://x", "http://", "http://h:0", "http://h:x", 5], "server"),
    ((*_CLUSTER, "proxy-url"), ["http://proxy"], "proxy-url"),
    ((*_CLUSTER, "insecure-skip-tls-verify"), ["yes", 1], "insecure-skip-tls-verify"),
    ((*_CLUSTER, "certificate-authority"), ["/no/file"], "certificate"),
    ((*_CLUSTER, "certificate-authority-data"), ["%%%", "aGk=", 7], "certificate"),
    ((*_USER, "token"), [5, ["a"]], "token"),
    ((*_USER, "tokenFile"), ["/no/file", 5], "tokenFile"),
    ((*_USER, "username"), ["me"], "username"),
    ((*_USER, "as"), ["root"], "as"),
    ((*_USER, "auth-provider"), [{"name": "gcp"}], "auth-provider"),
    ((*_USER, "client-certificate-data"), ["aGk="], "client-certificate"),
]


def kubeconfig_faults() -> st.SearchStrategy[Wrong]:
    """A field of the kubeconfig that cannot be used."""
    choices = [(path, bad, field) for path, values, field in KUBECONFIG_FAULTS for bad in values]
    return st.sampled_from(choices).map(
        lambda choice: Wrong("kubeconfig", changed(KUBECONFIG, choice[0], choice[1]), choice[2])
    )


CLOUD_FAULTS: dict[str, list[Any]] = {
    "url": ["", None, "ftp://x", "host", 5, ["a"], "http://h:0"],
    "token": ["", None, 5, True, {"a": 1}],
    "timeout": ["0s", "-1s", "soon", 5, [], "x" * 50],
    "connect_timeout": ["0s", True, {}],
}


def cloud_faults() -> st.SearchStrategy[Wrong]:
    """A field of the cloud config that the provider refuses."""
    strange = st.text("abcxyz", min_size=3, max_size=9).map(lambda name: (f"q{name}", 1))
    known = st.sampled_from(
        [(name, bad) for name, values in CLOUD_FAULTS.items() for bad in values]
    )
    return st.one_of(known, strange).map(
        lambda pair: Wrong("cloud-config", changed(CLOUD, pair[:1], pair[1]), pair[0])
    )


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at one place."""
    copied = copy.deepcopy(document)
    inner = copied
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return copied


@contextmanager
def quiet_logging() -> Iterator[None]:
    """The process's logging is as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    try:
        yield
    finally:
        log.setup()
        root.handlers, root.level = handlers, level


def run(wrong: Wrong, folder: Path) -> tuple[int, str]:
    """Exit code and messages of a daemon that gets this."""
    files = {"kubeconfig": KUBECONFIG, "cloud-config": CLOUD}
    argv = ["--cloud-provider=sim", "--leader-elect=false", "--secure-port=0"]
    if wrong.where == "flags":
        argv.append(wrong.content)
    else:
        files[wrong.where] = wrong.content
    for name, content in files.items():
        (folder / name).write_text(yaml.safe_dump(content))
        argv.append(f"--{name}={folder / name}")
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with quiet_logging(), redirect_stderr(said):
        code = main.main(argv)
    said.seek(0)
    return code, said.read()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(wrong=st.one_of(flag_faults(), config_faults(), kubeconfig_faults(), cloud_faults()))
def test_wrong_input_ends_with_one_message_that_names_the_field(wrong: Wrong) -> None:
    with tempfile.TemporaryDirectory() as folder:
        code, said = run(wrong, Path(folder))

    messages = [line for line in said.splitlines() if line.startswith(options.PROGRAM)]
    assert code == 1, said
    assert "Traceback" not in said
    assert len(messages) == 1, said
    told = said[said.index(messages[0]) :]
    assert wrong.field.lower() in told.lower(), (wrong, told)


@settings(max_examples=200, deadline=None)
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.recursive(
            JUNK,
            lambda inner: st.dictionaries(
                st.sampled_from([*KUBECONFIG, "Generic", "Flags", "leaderName", "name", "cluster"]),
                inner | st.lists(inner, max_size=2),
            ),
        ),
    )
)
def test_no_file_makes_a_reader_stumble(content: Any) -> None:
    data = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_bytes(data)

        for read in (config.load, migration.load):
            with pytest.raises(documents.DocumentError, match=str(file)):
                read(str(file))
        with pytest.raises(kube_config.ConfigError):
            kube_config.load(str(file), environ={})


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_change_of_a_kubeconfig_makes_its_reader_stumble(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(list(paths(KUBECONFIG))))
    content = changed(KUBECONFIG, path, data.draw(JUNK))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_text(yaml.safe_dump(content))

        try:
            found = kube_config.load(str(file), environ={})
        except kube_config.ConfigError:
            return
        assert found.server.startswith("http")


def paths(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value below the top."""
    steps = document.items() if isinstance(document, dict) else enumerate(document)
    for step, value in steps:
        yield (*above, step)
        if isinstance(value, dict | list):
            yield from paths(value, (*above, step))
