"""Settings with values from files or the environment, so that `ps` does not show them."""

from __future__ import annotations

import pytest

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.base.indirect import resolved
from forebay.server.config import (
    MonitoringSettings,
    exposed_settings,
    parse_definition,
    read_settings_file,
    server_config,
)


def test_values_are_taken_from_the_environment_a_file_or_a_folder_of_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_TEST_SECRET", "from environment")
    (tmp_path / "lake.properties").write_text("# of the lake\ns3.secret-key = 'from file'\n")
    (tmp_path / "token").write_text("from folder\n")
    assert parse_definition("a.b=${env:FOREBAY_TEST_SECRET}") == ("a.b", "from environment")
    assert parse_definition(f"a.b=${{file:{tmp_path}/lake.properties:s3.secret-key}}") == ("a.b", "from file")
    assert parse_definition(f"a.b=${{directory:{tmp_path}:token}}") == ("a.b", "from folder")
    assert parse_definition("a.b=$${env:X}") == ("a.b", "${env:X}")
    assert parse_definition("a.b=${}") == ("a.b", "${}")
    settings = tmp_path / "server.yaml"
    settings.write_text("security.sasl.plain.credentials: ${env:FOREBAY_TEST_SECRET}\n")
    assert read_settings_file(settings) == {"security.sasl.plain.credentials": "from environment"}


def test_quotes_around_a_value_of_a_file_are_left_out(tmp_path):
    path = tmp_path / "f"
    path.write_text("""a: ''\nb: "x y"\nc: 'x"\nd: '\ne: xyx\n""")
    assert read_settings_file(path) == {"a": "", "b": "x y", "c": "'x\"", "d": "'", "e": "xyx"}


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        ("${env:FOREBAY_TEST_MISSING}", "no variable FOREBAY_TEST_MISSING"),
        ("${env:path:NAME}", "a variable has no path"),
        ("${vault:secret:key}", "there are env, file and directory"),
        ("${file:key}", "a path is missing"),
        ("${file:/no/such/file:key}", "cannot be read"),
        ("${directory:/no/such:key}", "cannot be read"),
        ("${nonsense}", r"write \$\{env:NAME\}"),
        ("${env:}", r"write \$\{env:NAME\}"),
    ],
)
def test_a_value_that_stands_nowhere_is_an_error_that_names_the_option(marker, reason):
    with pytest.raises(InvalidRequest, match=f"option 'datalake.paimon.token' is given as .*{reason}") as refused:
        resolved("datalake.paimon.token", marker)
    assert refused.value.code == ErrorCode.CONFIG_EXCEPTION


def test_a_missing_key_of_a_file_is_told_without_the_file_s_secrets(tmp_path):
    path = tmp_path / "f"
    path.write_text("a: open-sesame\n")
    with pytest.raises(InvalidRequest, match=r"has no line 'b: \.\.\.'") as refused:
        resolved("x", f"${{file:{path}:b}}")
    path.write_text("open-sesame is my password\n")
    with pytest.raises(InvalidRequest, match=r"line 1 of .* is not 'key: value'") as unread:
        read_settings_file(path)
    assert "sesame" not in refused.value.message + unread.value.message


def test_secrets_on_the_command_line_are_found(tmp_path, monkeypatch):
    given = [
        "kv.scanner.ttl=5 min",
        "datalake.format=paimon",
        "datalake.enabled=${env:FOREBAY_TEST_ENABLED}",
        "datalake.paimon.warehouse=/lake",
        "datalake.paimon.uri=jdbc:mysql://me:pw@db/x",
        "datalake.paimon.token=t",
        "datalake.paimon.s3.secret-key=${env:KEY}",
        "security.sasl.plain.credentials=me:pw",
    ]
    monkeypatch.setenv("KEY", "from environment")
    monkeypatch.setenv("FOREBAY_TEST_ENABLED", "true")
    config = server_config(tmp_path, settings=dict(parse_definition(text) for text in given))
    assert exposed_settings(config, given) == [
        "datalake.paimon.token",
        "datalake.paimon.uri",
        "security.sasl.plain.credentials",
    ]


def test_metrics_reporters_other_than_prometheus_are_refused_by_name(tmp_path):
    for wanted, named in (("jmx", "jmx"), ("prometheus, prometheus-push", "prometheus-push")):
        with pytest.raises(UnsupportedOperation, match=f"'{named}'"):
            server_config(tmp_path, settings={"metrics.reporters": wanted})
    assert server_config(tmp_path, settings={"metrics.reporters": ""}).monitoring is None
    served = server_config(tmp_path, host="::1", settings={"metrics.reporters": " prometheus "}).monitoring
    assert served == MonitoringSettings("::1", range(9249, 9250))
    for ports in ("x", "5-4", "70000", "-1"):
        with pytest.raises(InvalidRequest, match=r"metrics\.reporter\.prometheus\.port"):
            server_config(tmp_path, settings={"metrics.reporter.prometheus.port": ports})
