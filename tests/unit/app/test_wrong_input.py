"""Files of any content: their readers never stumble, and say what is wrong."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ccm.app.options import config, documents, migration
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

KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "one",
    "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "abcdef"}}],
}


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at one place."""
    copied = copy.deepcopy(document)
    inner = copied
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return copied


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
