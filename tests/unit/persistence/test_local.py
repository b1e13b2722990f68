"""Storage on this machine: names, modes, SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ccm.persistence import errors, postgres, registry, s3
from ccm.persistence.interface import MachineId, PersistenceProviderStatus, new_machine_id
from ccm.persistence.postgres import PostgresConfig
from ccm.persistence.s3 import S3Config

S3 = S3Config(bucket="b", endpoint="https://s3.example")
POSTGRES = PostgresConfig(host="db.example")


@pytest.mark.parametrize(
    ("config", "changed", "is_other"),
    [
        (S3, {"access_key_id_file": Path("/other")}, False),
        (S3, {"ca_file": Path("/other")}, False),
        (S3, {"allow_insecure": True}, False),
        (S3, {"endpoint": "https://other.example"}, True),
        (S3, {"bucket": "c"}, True),
        (S3, {"prefix": "c"}, True),
        (S3, {"region": "c"}, True),
        (POSTGRES, {"password_file": Path("/other")}, False),
        (POSTGRES, {"user": "other"}, False),
        (POSTGRES, {"ca_file": Path("/other")}, False),
        (POSTGRES, {"host": "other"}, True),
        (POSTGRES, {"port": 5433}, True),
        (POSTGRES, {"database": "other"}, True),
        (POSTGRES, {"table": "other"}, True),
    ],
)
def test_only_the_storage_itself_names_an_instance(
    config: Any, changed: dict[str, Any], is_other: bool
) -> None:
    module = s3 if isinstance(config, S3Config) else postgres
    other = msgspec.structs.replace(config, **changed)
    names = [module.storage([one], registry.Context()).instances() for one in (config, other)]

    assert (names[0] != names[1]) is is_other


def test_table_is_no_place_for_a_statement() -> None:
    with pytest.raises(errors.BackendDead, match="lower-case letters"):
        postgres.PostgresStore(msgspec.structs.replace(POSTGRES, table="a; drop table b"))


def test_machine_id() -> None:
    assert new_machine_id("uid", "name") == MachineId(cluster_uid="uid", name="name")
    with pytest.raises(ValueError, match="cluster_uid"):
        new_machine_id("", "name")


def test_status_as_it_is_written() -> None:
    up = PersistenceProviderStatus(instance_exists=True, status=True, mean_persist_latency=0.25)
    assert up.to_json() == {"exists": True, "status": True, "mean_persist_latency": 0.25}
    assert up.to_yaml() == {"exists": True, "status": True, "meanPersistLatency": 0.25}
    assert PersistenceProviderStatus(instance_exists=True).to_json() == {"exists": True}


def test_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "ccm.persistence.s3")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(errors.BackendDead, match=r"kube-ccm\[s3\]"):
        registry.load("s3")
