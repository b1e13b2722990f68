"""Tables of settings in the persistence guide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ccm.app.persistence import PersistenceConfig
from ccm.cloud import settings
from ccm.persistence.kubestore import KubernetesConfig
from ccm.persistence.memory import MemoryConfig
from ccm.persistence.postgres import PostgresConfig
from ccm.persistence.s3 import S3Config
from ccm.persistence.secrets import EncryptedConfig
from ccm.persistence.sqlite import SqliteConfig
from tests.generated import GENERATED, ROOT

GUIDE = ROOT / "ccm" / "persistence" / "README.md"
_BEGIN, _END = f"<!-- tables: {GENERATED} -->\n", "<!-- end of tables -->"

_DECLARED: dict[str, type[msgspec.Struct]] = {
    "The file": PersistenceConfig,
    "`kubernetes`, also for secrets": KubernetesConfig,
    "`sqlite`": SqliteConfig,
    "`s3`": S3Config,
    "`postgres`": PostgresConfig,
    "`memory`": MemoryConfig,
    "Secrets, `encrypted`": EncryptedConfig,
}


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of the guide."""
    before, _, rest = GUIDE.read_text().partition(_BEGIN)
    tables = "\n".join(line for name, kind in _DECLARED.items() for line in _table(name, kind))
    yield GUIDE, f"{before}{_BEGIN}{tables}\n\n{_END}{rest.partition(_END)[2]}"


def _table(name: str, struct: type[msgspec.Struct]) -> Iterator[str]:
    yield from ("", f"{name}: {(struct.__doc__ or '').strip()}", "")
    yield from ("| setting | value | default | meaning |", "| --- | --- | --- | --- |")
    for one in settings.table(struct):
        default = "required" if one.required else f"`{one.default}`" if one.default else ""
        cells = (f"`{one.name}`", one.kind, default, one.help)
        yield f"| {' | '.join(cells)} |"
