"""Descriptions of tables are created once, change with the table, and are bounded in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.metadata import json_serde, types
from forebay.metadata.table import Column, Schema, TableDescriptor, TableInfo, TablePath
from forebay.server.metadata.catalog import Descriptions
from tests.server.raw_client import ApiKey, pb
from tests.server.running import Bench


def info_of(table_id: int, columns: int) -> TableInfo:
    schema = Schema(tuple(Column(f"column_{i}", types.string()) for i in range(columns)))
    return TableInfo(TablePath("db", f"t{table_id}"), table_id, 1, TableDescriptor(schema, bucket_count=1))


def test_a_description_is_made_once_and_again_when_the_table_was_altered(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TableDescriptor] = []

    def told(descriptor: TableDescriptor) -> TableDescriptor:
        made.append(descriptor)
        return descriptor

    descriptions, info = Descriptions(told), info_of(1, 3)
    expected = json_serde.dumps(json_serde.descriptor_to_json(info.descriptor))
    assert [descriptions.table(info), descriptions.table(info)] == [expected, expected]
    assert len(made) == 1
    altered = replace(info, descriptor=replace(info.descriptor, properties={"table.log.ttl": "1 d"}))
    assert b"1 d" in descriptions.table(altered)
    assert len(made) == 2
    assert len(descriptions) == 1
    schema = info.schema
    assert descriptions.schema(1, 1, schema) == json_serde.dumps(json_serde.schema_to_json(schema))


def test_a_table_that_is_altered_again_and_again_takes_the_memory_of_one_description() -> None:
    descriptions, other = Descriptions(lambda descriptor: descriptor), info_of(2, 3)
    size = len(descriptions.table(other))
    used = descriptions._bytes
    for _ in range(5):
        assert len(descriptions.table(info_of(1, 3))) == size
    assert (len(descriptions), descriptions._bytes) == (2, 2 * used)


def test_descriptions_are_bounded_and_those_requested_last_stay() -> None:
    infos = [info_of(table_id, 50) for table_id in range(20)]
    size = len(json_serde.dumps(json_serde.descriptor_to_json(infos[0].descriptor)))
    descriptions = Descriptions(lambda descriptor: descriptor, bytes_max=6 * size)
    first = descriptions.table(infos[0])
    for info in infos:
        descriptions.table(info)
        assert descriptions.table(infos[0]) is first
    assert 1 < len(descriptions) <= 6
    one_too_large = Descriptions(lambda descriptor: descriptor, bytes_max=10)
    assert one_too_large.table(infos[0]) == first
    assert len(one_too_large) == 0


def test_clients_see_the_table_as_it_was_altered(bench: Bench) -> None:
    bench.create("described", {"a": types.int_()})
    before = bench.info("described")
    assert bench.info("described").table_json == before.table_json
    request = pb.AlterTableRequest(table_path=bench.path("described"), ignore_if_not_exists=False)
    request.config_changes.add(config_key="table.log.ttl", config_value="3 d", op_type=0)
    bench.coordinator.call(ApiKey.ALTER_TABLE, request)
    assert b"3 d" in bench.info("described").table_json
    metadata = bench.coordinator.call(ApiKey.GET_METADATA, pb.MetadataRequest(table_path=[bench.path("described")]))
    assert metadata.table_metadata[0].table_json == bench.info("described").table_json
