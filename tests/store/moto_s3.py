"""S3 as moto simulates it, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def running_moto(bucket: str) -> Iterator[dict[str, str]]:
    """A service with an empty bucket; yields the options of a store in it. Skips where moto or boto3 is missing."""
    moto_server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3,server]'")
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install boto3")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket=bucket)
        yield {
            "s3.endpoint": endpoint, "s3.access-key": "test", "s3.secret-key": "test", "s3.region": "us-east-1",
        }  # fmt: skip
    finally:
        server.stop()
