"""Options: names, values, defaults."""

from __future__ import annotations

import datetime as dt
import pickle

import pytest

from forebay.base.errors import InvalidRequest
from forebay.client.settings import OPTIONS, Address, make_settings, option_name, parse_addresses


@pytest.mark.parametrize(
    "name",
    [
        "client.writer.batch-size",
        "writer.batch-size",
        "writer_batch_size",
        "client_writer_batch_size",
        "client.writer.batch.size",
        "Client.Writer.Batch-Size",
    ],
)
def test_an_option_may_be_written_in_many_ways(name: str) -> None:
    assert option_name(name) == "client.writer.batch-size"


def test_every_option_is_found_by_its_own_name_and_as_a_keyword() -> None:
    for name in OPTIONS:
        keyword = name.removeprefix("client.").replace(".", "_").replace("-", "_")
        assert option_name(name) == name
        assert option_name(keyword) == name


def test_an_unknown_option_is_refused_with_names_that_look_like_it() -> None:
    with pytest.raises(InvalidRequest, match=r"no client option 'writer_bach_size'.*'client.writer.batch-size'"):
        make_settings("h:1", options={"writer_bach_size": "1mb"})
    with pytest.raises(InvalidRequest, match=r"see docs/client\.md"):
        make_settings("h:1", options={"xyzzy": 1})


def test_values_are_read_as_fluss_reads_them() -> None:
    settings = make_settings(
        "h:1",
        options={
            "writer.batch-size": "1mb",
            "request-timeout": "5 s",
            "connect_timeout": dt.timedelta(minutes=1),
            "retry_timeout": 250,
            "writer.acks": "1",
            "scanner.log.check-crc": "false",
            "lookup_max_batch_size": 7,
            "writer.request-max-size": 5000,
            "writer.enable-idempotence": False,
            "writer.bucket.no-key-assigner": " Round-Robin",
        },
    )
    assert settings["client.writer.request-max-size"] == 5000
    assert settings["client.writer.enable-idempotence"] is False
    assert settings["client.writer.bucket.no-key-assigner"] == "round_robin"
    assert settings["client.writer.batch-size"] == 1 << 20
    assert settings["client.request-timeout"] == 5.0
    assert settings["client.connect-timeout"] == 60.0
    assert settings["client.retry-timeout"] == 0.25
    assert settings["client.writer.acks"] == 1
    assert settings["client.scanner.log.check-crc"] is False
    assert settings["client.lookup.max-batch-size"] == 7
    assert settings["client.writer.retries"] == 2**31 - 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("writer_acks", "2"),
        ("request_timeout", "soon"),
        ("request_timeout", True),
        ("lookup_max_batch_size", 0),
        ("writer_retries", -1),
        ("writer_retries", 1 << 31),
        ("writer_retries", "many"),
        ("writer_batch_size", "big"),
        ("writer_batch_size", True),
        ("writer_bucket_no_key_assigner", "random"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=option_name(name)):
        make_settings("h:1", options={name: value})


def test_fluss_options_of_its_own_client_are_accepted() -> None:
    assert make_settings("h:1", options={"client.scanner.io.tmpdir": "/tmp/x", "client.metrics.enabled": True})


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="given twice"):
        make_settings("h:1", options={"writer.acks": "all", "writer_acks": "1"})


def test_writes_are_idempotent_by_default_and_not_where_that_is_impossible() -> None:
    assert make_settings("h:1").idempotent
    assert not make_settings("h:1", options={"writer_acks": 1}).idempotent
    with pytest.raises(InvalidRequest, match=r"needs client\.writer\.acks=all"):
        make_settings("h:1", options={"writer_acks": 1, "writer_enable_idempotence": True})
    with pytest.raises(InvalidRequest, match="at most"):
        make_settings("h:1", options={"writer_max_inflight_requests_per_bucket": 6})
    assert make_settings("h:1", options={"writer_max_inflight_requests_per_bucket": 5}).idempotent
    many = {"writer_max_inflight_requests_per_bucket": 6, "writer_enable_idempotence": False}
    assert not make_settings("h:1", options=many).idempotent
    assert make_settings("h:1", options={"writer_retries": 1, "writer_enable_idempotence": True}).idempotent
    assert not make_settings("h:1", options={"writer_retries": 0}).idempotent


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("http://127.0.0.1:9123", "write '127.0.0.1:9123', without 'http://'"),
        ("a:1,https://there", "write 'there', without 'https://'"),
        ("fluss://there:9123/db", "write 'there:9123', without 'fluss://'"),
        ("grpc://[::1]:9123", r"write '\[::1\]:9123', without 'grpc://'"),
        ("there:9123/", "write 'there:9123', without '/'"),
        ("http://", "write 'host:port', without 'http://'"),
    ],
)
def test_an_address_with_a_scheme_or_a_path_is_refused_with_what_to_write(url: str, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=f"is not a server address: {remedy}"):
        parse_addresses(url)


def test_addresses() -> None:
    assert parse_addresses("a:1, b:2") == (Address("a", 1), Address("b", 2))
    assert parse_addresses("[::1]:5") == (Address("::1", 5),)
    assert parse_addresses("host, [::1],") == (Address("host", 9123), Address("::1", 9123))
    assert parse_addresses("a:1,b:65535") == (Address("a", 1), Address("b", 65535))
    assert str(Address("::1", 5)) == "[::1]:5"
    for bad in ("", ",", "a:b", "a:0", "a:65536", ":5"):
        with pytest.raises(InvalidRequest):
            parse_addresses(bad)


def test_bootstrap_servers_may_be_an_option() -> None:
    assert make_settings(None, options={"bootstrap.servers": "a:1"}).bootstrap_servers == (Address("a", 1),)
    assert make_settings("a:1", options={"bootstrap.servers": "a:1"}).bootstrap_servers == (Address("a", 1),)
    with pytest.raises(InvalidRequest, match="two lists"):
        make_settings("b:1", options={"bootstrap_servers": "a:1"})


def test_credentials() -> None:
    assert make_settings("h:1").credentials is None
    assert make_settings("h:1", "u", "p").credentials == ("u", "p")
    assert make_settings("h:1", "u", "p", {"security.protocol": "plaintext"}).credentials is None
    options = {"security.protocol": "sasl", "security.sasl.username": "u", "security.sasl.password": "p"}
    assert make_settings("h:1", options=options).credentials == ("u", "p")
    for half in ({}, {"security.sasl.username": "u"}, {"security.sasl.password": "p"}):
        with pytest.raises(InvalidRequest, match="user and a password"):
            make_settings("h:1", options={"security.protocol": "SASL", **half})


def test_settings_pickle_compare_and_hide_the_password() -> None:
    settings = make_settings("h:1", "u", "hunter2", {"writer_acks": "1"})
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings
    assert hash(again) == hash(settings)
    assert again["client.writer.acks"] == 1
    assert "hunter2" not in repr(settings)
    assert "client.security.sasl.username='u'" in repr(settings)
    assert repr(make_settings("h:1,[::1]:2")) == "Settings(h:1,[::1]:2)"


def test_options_of_the_lake_are_kept_as_text_and_shown_by_name() -> None:
    settings = make_settings("h:1", options={"lake_options": {"b": 2, "a": "secret"}})
    assert settings.lake_options == (("a", "secret"), ("b", "2"))
    assert pickle.loads(pickle.dumps(settings)).lake_options == settings.lake_options
    assert repr(settings) == "Settings(h:1, lake_options for a, b)"
    for bad in ("a=b", [("a", "b")], {1: "b"}):
        with pytest.raises(InvalidRequest, match="lake_options"):
            make_settings("h:1", options={"lake_options": bad})


def test_the_scan_strategy_has_two_names_that_must_not_contradict() -> None:
    assert make_settings("h").scans_on_servers
    assert not make_settings("h", options={"scanner.kv.batch-strategy": "snapshot-merge"}).scans_on_servers
    assert not make_settings("h", options={"scanner.kv.server-side.enabled": "false"}).scans_on_servers
    both = {"scanner.kv.batch-strategy": "snapshot-merge", "scanner.kv.server-side.enabled": "false"}
    assert not make_settings("h", options=both).scans_on_servers
    neither = {"scanner.kv.batch-strategy": "server-scan", "scanner.kv.server-side.enabled": "true"}
    assert make_settings("h", options=neither).scans_on_servers
    for strategy, enabled in (("server-scan", "false"), ("snapshot-merge", "true")):
        with pytest.raises(InvalidRequest, match="contradicts"):
            make_settings(
                "h", options={"scanner.kv.batch-strategy": strategy, "scanner.kv.server-side.enabled": enabled}
            )
