"""Settings of the server: bounds of their values, what is rejected and what is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, UnsupportedOperation
from forebay.server import config
from forebay.server.config import check_warehouse, read_settings_file, server_config
from forebay.server.embedded import EmbeddedServer
from forebay.server.fluss_settings import NO_EFFECT, UNSERVED


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("kv.scanner.max-per-bucket", "1", 1),
        ("kv.scanner.max-per-bucket", " 7 ", 7),
        ("kv.snapshot-handle.max-count", "512", 512),
        ("server.data-disk.write-limit-ratio", "1", 1.0),
        ("server.data-disk.write-limit-ratio", "0.01", 0.01),
        ("kv.engine", " HLog ", "hlog"),
        ("kv.engine", "lmdb", "lmdb"),
        ("server.open-buckets.max", " ", None),
        ("server.open-buckets.max", "9", 9),
        ("datalake.public-options", "a, b,,", ("a", "b")),
    ],
)
def test_values_up_to_their_bounds_are_taken(key: str, text: str, value: object) -> None:
    assert server_config("/data", settings={key: text}).value(key) == value


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("kv.scanner.max-per-bucket", "0", "'0' is not a positive whole number"),
        ("kv.scanner.max-per-bucket", "1.5", "is not a positive whole number"),
        ("kv.snapshot-handle.max-count", "513", "513 is more than 512"),
        ("server.data-disk.write-limit-ratio", "0", "'0' is not a share"),
        ("server.data-disk.write-limit-ratio", "1.01", "is not a share"),
        ("server.data-disk.write-limit-ratio", "much", "is not a share"),
        ("kv.engine", "leveldb", "choose 'auto', 'hlog' or 'lmdb'"),
        ("kv.engine", " RocksDB ", "is no longer a key-value engine: .* `forebay convert-state"),
        ("kv.scaner.ttl", "1 s", "did you mean 'kv.scanner.ttl'"),
        ("log.segment.file-sze", "1mb", "did you mean 'log.segment.file-size'"),
        ("server.data-disk.reserv", "1mb", "did you mean 'server.data-disk.reserve'"),
        ("netty.server.max-request-sise", "1mb", "did you mean 'netty.server.max-request-size'"),
        ("metrics.reporter.prometheus.prt", "9250", "did you mean 'metrics.reporter.prometheus.port'"),
        ("security.sasl.plain.credentails", "a:b", "did you mean 'security.sasl.plain.credentials'"),
        ("tablet-server.security.sasl.plain.credentials", "a:b", "did you mean 'security.sasl.plain.credentials'"),
        ("tablet-server.bind.listener", "A://h:1", "did you mean 'tablet-server.bind.listeners'"),
        ("zookeeper.adress", "h:1", "did you mean 'zookeeper.address'"),
        ("utterly", "1", "see docs/server.md"),
        ("datalake.enabled", "true", "'datalake.format' must be set"),
    ],
)
def test_values_beyond_their_bounds_are_refused_by_name(key: str, text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        server_config("/data", settings={key: text})
    assert key in caught.value.message
    assert caught.value.code == ErrorCode.CONFIG_EXCEPTION


def test_values_that_cannot_be_understood_name_the_setting_and_the_reason_once() -> None:
    for key, text, reason in (
        ("server.open-buckets.max", "many", "'many'"),
        ("kv.scanner.ttl", "soon", "'soon'"),
        ("allow.create.log.tables", "perhaps", "'perhaps'"),
        ("tablet-server.id", "first", "'first'"),
    ):
        with pytest.raises(InvalidRequest, match=f"^setting '{key}': .*{reason}") as caught:
            server_config("/data", settings={key: text})
        assert caught.value.code == ErrorCode.CONFIG_EXCEPTION
        assert str(caught.value).count("setting") == 1


@pytest.mark.parametrize("prefix", ["log.", "server.", "netty.", "kv.rocksdb.", "zookeeper.", "client.", "remote.log."])
def test_a_setting_is_not_known_by_its_first_words(prefix: str) -> None:
    with pytest.raises(InvalidRequest, match=f"there is no setting '{prefix}zzz'"):
        server_config("/data", settings={f"{prefix}zzz": "1"})


def test_settings_of_fluss_without_a_meaning_here_are_taken_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert not NO_EFFECT & {*config.SETTINGS, *UNSERVED}
    with caplog.at_level("INFO"):
        server_config("/data", settings=dict.fromkeys(NO_EFFECT, "1"))
    assert {record.args[0] for record in caplog.records if record.args} == NO_EFFECT


def test_settings_of_another_lake_than_the_chosen_one_are_refused() -> None:
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": "/lake"}
    assert server_config("/data", settings=settings).lake.enabled
    assert not server_config("/data", settings={**settings, "datalake.enabled": "false"}).lake.enabled
    assert not server_config("/data").lake.enabled
    with pytest.raises(InvalidRequest, match=r"'datalake\.iceberg\.warehouse' is not one of lake format 'paimon'"):
        server_config("/data", settings={**settings, "datalake.iceberg.warehouse": "/lake"})


@pytest.mark.parametrize(
    "settings",
    [
        {"datalake.paimon.warehouse": "/lake"},
        {"datalake.iceberg.s3.access-key": "k"},
        {"datalake.paimon.warehouse": "/lake", "datalake.enabled": "false"},
    ],
)
def test_settings_of_a_lake_without_a_format_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=r"setting 'datalake\.\w+\..*' has no effect without 'datalake\.format'"):
        server_config("/data", settings=settings)


@pytest.mark.parametrize("misspelled", ["", "warehous", "Warehouse", "ware-house"])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("paimon", {}),
        ("paimon", {"metastore": "jdbc", "uri": "jdbc:sqlite:x"}),
        ("iceberg", {}),
        ("iceberg", {"type": "sql", "uri": "sqlite:///x"}),
    ],
)
def test_a_lake_that_needs_a_warehouse_and_has_none_is_refused(
    name: str, more: dict[str, str], misspelled: str, tmp_path: Path
) -> None:
    options = {**more, "s3.access-key": "k", **({misspelled: "/lake"} if misspelled else {})}
    settings = {"datalake.format": name, **{f"datalake.{name}.{key}": value for key, value in options.items()}}
    hint = rf"; 'datalake\.{name}\.{misspelled}' is set, which may be a misspelling" if misspelled else ""
    fault = rf"'datalake\.{name}\.warehouse' is missing.*URI{hint}"
    with pytest.raises(InvalidRequest, match=fault), EmbeddedServer(tmp_path, settings=settings):
        pass


@pytest.mark.parametrize(
    "settings",
    [
        {"datalake.format": "paimon", "datalake.paimon.metastore": "hive", "datalake.paimon.uri": "thrift://h:9083"},
        {"datalake.format": "paimon", "datalake.paimon.warehouse": "/lake", "datalake.paimon.anything.else": "x"},
        {"datalake.format": "iceberg", "datalake.iceberg.type": "rest", "datalake.iceberg.uri": "http://h:8181"},
        {"datalake.format": "iceberg", "datalake.iceberg.catalog-impl": "org.example.Catalog"},
    ],
)
def test_a_lake_whose_catalog_may_know_its_warehouse_is_not_refused(settings: dict[str, str]) -> None:
    check_warehouse(server_config("/data", settings=settings))


def test_a_setting_that_a_file_has_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("kv.engine: lmdb\n# kv.engine: memory\n\nkv.engine = lmdb\n")
    with pytest.raises(InvalidRequest, match=r"line 4 of .*server\.yaml sets 'kv\.engine' again, after line 1"):
        read_settings_file(file)


def test_folders_stay_where_they_were_said_and_clients_get_absolute_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lake = {"datalake.format": "paimon", "datalake.paimon.warehouse": "my lake"}
    config = server_config("data/../data", settings=lake)
    monkeypatch.chdir("/")
    assert config.data_dir == tmp_path / "data"
    assert config.lake.options["warehouse"] == f"{tmp_path}/my lake"
    assert config.shown()["datalake.paimon.warehouse"] == f"{tmp_path}/my lake"
    rest = {**lake, "datalake.paimon.metastore": "rest", "datalake.paimon.warehouse": "prod"}
    assert server_config("file:/data", settings=rest).lake.options["warehouse"] == "prod"


@pytest.mark.parametrize(
    ("data_dir", "settings", "words"),
    [
        ("s3://bucket/data", {}, "data directory is 's3://bucket/data', and must be a folder of this machine"),
        ("file://host/data", {}, "data directory 'file://host/data' lies on the host 'host'"),
        ("/data", {"datalake.format": "iceberg", "datalake.iceberg.warehouse": "file://host/x"}, "on the host 'host'"),
    ],
)
def test_folders_elsewhere_are_refused_by_name(data_dir: str, settings: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        server_config(data_dir, settings=settings)


def test_plain_listeners_beside_sasl_need_sasl() -> None:
    assert server_config("/data", sasl=True, plain=True).plain
    with pytest.raises(InvalidRequest, match=r"plain=True \(--plain\) keeps the plain listeners"):
        server_config("/data", plain=True)


def test_what_is_not_served_may_be_switched_off_and_not_on() -> None:
    key = "authorizer.enabled"
    for text in ("", "false", " FALSE "):
        server_config("/data", settings={key: text})
    with pytest.raises(UnsupportedOperation, match=f"which setting '{key}' = 'true' asks for") as caught:
        server_config("/data", settings={key: "true"})
    assert caught.value.code == ErrorCode.CONFIG_EXCEPTION


@pytest.mark.parametrize(
    ("files", "buckets"), [(1_000_000, 4096), (4096 * 12, 4096), (4000 * 12, 4000), (64 * 12, 64), (1, 64)]
)
def test_open_buckets_go_by_the_limit_of_open_files_unless_they_are_set(
    files: int, buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "open_files_max", lambda: files)
    assert server_config("/data").open_buckets_max == buckets
    assert server_config("/data", settings={"server.open-buckets.max": "7"}).open_buckets_max == 7


def test_an_answer_is_a_quarter_of_the_memory_for_connections_at_most() -> None:
    settings = {"server.connections.memory": "64mb", "server.request.max-answer-size": "8mb"}
    assert server_config("/data", settings=settings).answer_bytes_max == 8 << 20
    settings["server.request.max-answer-size"] = "100mb"
    assert server_config("/data", settings=settings).answer_bytes_max == 16 << 20
    assert server_config("/data", settings=settings).connection_memory == 64 << 20


def test_clients_see_what_was_set_without_what_may_be_secret() -> None:
    settings = {
        "kv.engine": "lmdb",
        "datalake.format": "paimon",
        "datalake.paimon.warehouse": "/lake",
        "datalake.paimon.s3.session-token": "hush",
    }
    shown = server_config("/data", settings=settings).shown()
    assert (shown["kv.engine"], shown["datalake.format"]) == ("lmdb", "paimon")
    assert shown["kv.scanner.ttl"] == "10 min"
    assert shown["datalake.paimon.s3.session-token"] == config.HIDDEN
    assert "server.open-buckets.max" not in shown


def test_a_definition_has_a_key_and_a_value() -> None:
    assert config.parse_definition("kv.engine=lmdb") == ("kv.engine", "lmdb")
    assert config.parse_definition(" kv.engine = a=b ") == ("kv.engine", "a=b")
    for text, shown in (("kv.engine", "kv.engine"), ("=lmdb", ""), (" =lmdb", ""), ("s3.key:secret", "s3.key")):
        with pytest.raises(ForebayError) as refused:
            config.parse_definition(text)
        assert refused.value.message == f"'{shown}...' is not a setting: write -D key=value"


def test_clients_see_the_listeners_of_each_role_and_no_passwords() -> None:
    settings = {
        "bind.listeners": "A://h:1",
        "coordinator.bind.listeners": "A://h:2",
        "security.sasl.plain.credentials": "a:secret",
        "security.sasl.listener.name.a.plain.jaas.config": "secret",
    }
    shown = server_config("/data", settings=settings).shown()
    assert [shown[key] for key in settings] == ["A://h:1", "A://h:2", config.HIDDEN, config.HIDDEN]


DIRECT = {"store": "s3://shop/fluss", "store.client-access": "direct"}
CLIENT_KEYS = {"store.client.s3.access-key": "reader", "store.client.s3.secret-key": "reads"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (CLIENT_KEYS, "clients, which get none unless 'store.client-access' is 'direct'"),
        ({**DIRECT, "store.client.s3.access-key": "reader"}, "'store.client.s3.secret-key' is missing"),
        ({**DIRECT, "store.client.s3.secret-key": "reads"}, "'store.client.s3.access-key' is missing"),
        ({**DIRECT, "store.client.s3.key": "reads"}, "there is no setting 'store.client.s3.key'"),
    ],
)
def test_keys_for_clients_are_whole_and_wanted(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        server_config("data", settings=settings)


def test_keys_for_clients_are_not_among_the_settings_that_clients_see() -> None:
    shown = server_config("data", settings={**DIRECT, **CLIENT_KEYS, "store.s3.secret-key": "writes"}).shown()
    assert {shown[key] for key in (*CLIENT_KEYS, "store.s3.secret-key")} == {config.HIDDEN}
