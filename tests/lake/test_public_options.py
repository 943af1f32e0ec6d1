"""The lake options that clients see, and the secrets that are removed from texts."""

from __future__ import annotations

import pytest

from forebay.base.errors import ErrorCode, InternalError, StorageFailure
from forebay.lake.public_options import public_options, without_secrets
from forebay.lake.secret_mask import SecretMask

SECRETS = {
    "token": "tok-open-sesame",
    "credential": "id:cred-open-sesame",
    "s3.access-key": "AKIA-open-sesame",
    "s3.session-token": "session-open-sesame",
    "header.Authorization": "Bearer open-sesame",
    "dlf.security-token": "dlf-open-sesame",
    "jdbc.password": "jdbc-open-sesame",
    "fs.azure.account.key.x.dfs.core.windows.net": "azure-open-sesame",
    "adls.sas-token": "sas-open-sesame",
    "gcs.oauth2.token": "gcs-open-sesame",
    "an.option.of.tomorrow": "tomorrow-open-sesame",
}


def test_only_options_of_the_list_are_told_whatever_the_others_are_called() -> None:
    plain = {"warehouse": "s3://lake/w", "metastore": "rest", "s3.endpoint": "http://s3", "S3.Region": "eu-west-1"}
    assert public_options({**plain, **SECRETS}) == plain
    assert public_options({**plain, **SECRETS}, ["An.Option.of.Tomorrow"]) == {
        **plain,
        "an.option.of.tomorrow": "tomorrow-open-sesame",
    }


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("/data/lake", "/data/lake"),
        ("/data/a@b?c=d", "/data/a@b?c=d"),
        ("lake", "lake"),
        ("file:/data/lake", "file:/data/lake"),
        ("s3://lake/w", "s3://lake/w"),
        ("s3://AKIA:pass@lake/w", "s3://lake/w"),
        ("s3://AKIA:pa/ss@lake/w", None),
        ("s3://AKIA:12/ss@lake/w", None),
        ("s3://lake/a@b", "s3://lake/a@b"),
        ("http://rest:8181/api", "http://rest:8181/api"),
        ("https://me:p%40ss@rest:8181/api?token=x#y", "https://rest:8181/api"),
        ("https://token@rest", "https://rest"),
        ("abfss://box@account.dfs.core.windows.net/w", "abfss://box@account.dfs.core.windows.net/w"),
        ("abfss://box@account.dfs.core.windows.net/w?sig=x", "abfss://box@account.dfs.core.windows.net/w"),
        ("thrift://a:9083,thrift://u:p@b:9083", "thrift://a:9083,thrift://b:9083"),
        ("jdbc:sqlite:/lake/catalog.db", "jdbc:sqlite:/lake/catalog.db"),
        ("sqlite:////lake/catalog.db", "sqlite:////lake/catalog.db"),
        ("postgresql+psycopg2://me:pw@db:5432/lake", "postgresql+psycopg2://db:5432/lake"),
        ("jdbc:postgresql://db/lake?user=me&password=pw&sslmode=require", "jdbc:postgresql://db/lake?sslmode=require"),
        ("jdbc:mysql://db/lake?useSSL=true&user=me&ssl=1", "jdbc:mysql://db/lake?useSSL=true&ssl=1"),
        ("jdbc:x://db:1;ssl=true;password=pw;sslmode=b", "jdbc:x://db:1;ssl=true;sslmode=b"),
        ("jdbc:mysql://a:1,b:2/lake", "jdbc:mysql://a:1,b:2/lake"),
        ("jdbc:mysql://address=(host=a)(password=pw)/lake", None),
        ("jdbc:sqlserver://db:1433;user=me;password=pw", "jdbc:sqlserver://db:1433"),
        ("jdbc:oracle:thin:scott/tiger@db:1521:x", None),
        ("token@metastore:9083", None),
    ],
)
def test_addresses_lose_user_names_passwords_and_parameters_or_are_withheld(value: str, told: str | None) -> None:
    assert without_secrets(value) == told


def test_a_mask_hides_secrets_in_messages_and_keeps_what_clients_are_told() -> None:
    mask = SecretMask({**SECRETS, "warehouse": "s3://lake/w", "uri": "jdbc:mysql://me:p%40ss-word@db/x?key=secret-one"})
    for secret in (*SECRETS.values(), "p%40ss-word", "p@ss-word", "secret-one"):
        assert mask.clean(f"cannot reach s3://lake/w with {secret}: no") == "cannot reach s3://lake/w with ******: no"
    assert "open-sesame" not in repr(mask)


def test_short_words_and_truth_values_are_not_hidden_for_they_are_in_every_text() -> None:
    mask = SecretMask({"a.secret": "abcd", "b.secret": "xyz", "c.flag": "true", "d.flag": "FALSE", "e.flag": "truth"})
    text = "abcd and xyz are true, FALSE or the truth"
    assert mask.clean(text) == "****** and xyz are true, FALSE or the ******"


def test_errors_with_secrets_become_errors_of_their_kind_without_them() -> None:
    mask = SecretMask(SECRETS)
    harmless = StorageFailure("no such bucket")
    assert mask.cleaned(harmless) is harmless
    failure = mask.cleaned(StorageFailure("bad token tok-open-sesame", ErrorCode.KV_STORAGE_EXCEPTION))
    assert isinstance(failure, StorageFailure)
    assert (failure.message, failure.code) == ("bad token ******", ErrorCode.KV_STORAGE_EXCEPTION)
    foreign = mask.cleaned(RuntimeError("login with id:cred-open-sesame failed"))
    assert isinstance(foreign, InternalError)
    assert foreign.message == "RuntimeError: login with ****** failed"
