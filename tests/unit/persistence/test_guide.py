"""The guide says what the declarations say.

`python -m tests.unit.persistence.test_guide` writes its tables anew.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ccm.app.persistence import PersistenceConfig
from ccm.cloud import settings
from ccm.cloud.settings import Fields
from ccm.persistence import engine, registry
from ccm.persistence.file import FileConfig
from ccm.persistence.kubesecrets import KubernetesConfig
from ccm.persistence.memory import MemoryConfig
from ccm.persistence.postgres import PostgresConfig
from ccm.persistence.s3 import S3Config
from ccm.persistence.secrets import EncryptedConfig
from ccm.persistence.sqlite import SqliteConfig

GUIDE = Path(__file__).parents[3] / "ccm" / "persistence" / "README.md"
BEGIN, END = "test_guide.py -->\n", "<!-- end of tables -->"

DECLARED: dict[str, type[msgspec.Struct]] = {
    "The file": PersistenceConfig,
    "`file`": FileConfig,
    "`sqlite`": SqliteConfig,
    "`s3`": S3Config,
    "`postgres`": PostgresConfig,
    "`memory`": MemoryConfig,
    "Secrets, `kubernetes`": KubernetesConfig,
    "Secrets, `encrypted`": EncryptedConfig,
}


def tables() -> str:
    return "\n".join(line for name, struct in DECLARED.items() for line in table(name, struct))


def table(name: str, struct: type[msgspec.Struct]) -> Iterator[str]:
    yield from ("", f"{name}: {(struct.__doc__ or '').strip()}", "")
    yield from ("| setting | value | default | meaning |", "| --- | --- | --- | --- |")
    for one in settings.table(struct):
        default = "required" if one.required else f"`{one.default}`" if one.default else ""
        cells = (f"`{one.name}`", one.kind, default, one.help)
        yield f"| {' | '.join(cells)} |"


def test_tables_are_those_of_the_declarations() -> None:
    assert GUIDE.read_text().partition(BEGIN)[2].partition(END)[0] == f"{tables()}\n\n"


def examples() -> list[Any]:
    texts = re.findall(r"^ *```yaml\n(.*?)^ *```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(textwrap.dedent(text)) for text in texts]


def test_examples_can_be_read() -> None:
    """Each setting in them is one, whatever it names is not opened."""
    found = examples()
    assert len(found) == 4
    for example in found:
        config = example.get("persistence", {}).get("config", example)
        stores = [(registry.OBJECTS, one) for one in config.get("instances", ())]
        if secrets := config.get("secrets"):
            stores.append((registry.SECRETS, secrets))
        assert stores
        for group, one in stores:
            ((name, settings),) = one.items()
            declared, _ = registry.load(name, group)
            Fields(settings, where=name).read(declared)


def test_every_metric_is_in_it() -> None:
    text = GUIDE.read_text()
    named = [one for one in vars(engine).values() if hasattr(one, "describe")]

    assert len(named) == 7
    for metric in named:
        assert metric.describe()[0].name in text


if __name__ == "__main__":
    before, _, rest = GUIDE.read_text().partition(BEGIN)
    GUIDE.write_text(f"{before}{BEGIN}{tables()}\n\n{END}{rest.partition(END)[2]}")
