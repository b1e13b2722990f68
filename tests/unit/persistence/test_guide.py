"""The persistence guide matches the declarations.

`python -m tests.unit.persistence.test_guide` writes its tables anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ccm.app.persistence import PersistenceConfig
from ccm.cloud import settings
from ccm.persistence import engine
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


def test_persistence_guide_names_every_metric() -> None:
    text = GUIDE.read_text()
    named = [one for one in vars(engine).values() if hasattr(one, "describe")]

    assert len(named) == 7
    for metric in named:
        assert metric.describe()[0].name in text


if __name__ == "__main__":
    before, _, rest = GUIDE.read_text().partition(BEGIN)
    GUIDE.write_text(f"{before}{BEGIN}{tables()}\n\n{END}{rest.partition(END)[2]}")


def test_tables_of_the_persistence_guide_are_up_to_date() -> None:
    assert GUIDE.read_text().partition(BEGIN)[2].partition(END)[0] == f"{tables()}\n\n"
