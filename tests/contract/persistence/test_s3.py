"""A bucket keeps the persistence contract, against moto's server."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccm.testing.persistence_contract import PersistenceContract
from ccm.testing.persistence_harness import PersistenceHarness
from tests.contract.persistence import buckets, secrets

pytestmark = pytest.mark.xdist_group("s3")


class TestS3(PersistenceContract):
    @pytest.fixture
    def harness(self, bucket_url: str, tmp_path: Path) -> PersistenceHarness:
        return buckets.S3Harness(bucket_url, tmp_path)


async def test_sealed_secrets(bucket_url: str, tmp_path: Path) -> None:
    """What is sealed comes back, and is nowhere to be read."""
    harness = buckets.S3Harness(bucket_url, tmp_path)
    await secrets.live(harness.make(), harness.stored)
