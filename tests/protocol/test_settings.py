"""Settings with Fluss's names and syntax: lists and maps, listeners, credentials."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.credentials import PLAIN_LOGIN_MODULE, jaas_users, plain_credentials
from forebay.protocol.listeners import Listener, SecurityProtocol, authenticator_factory, parse_listeners
from forebay.protocol.option_syntax import parse_list, parse_map, split_escaped
from forebay.protocol.sasl import ANONYMOUS, Principal

# --- lists and maps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("A;B;C", ["A", "B", "C"]),
        ("'A;B';C", ["A;B", "C"]),
        ('"A;B";"C"', ["A;B", "C"]),
        ("'AB''D;B';C", ["AB'D;B", "C"]),
        ("A'BD;B';C", ["A'BD", "B'", "C"]),
        ("'AB\"''D;B';C", ["AB\"'D;B", "C"]),
        ("   'A;B'    ;   C   ", ["A;B", "C"]),
        ("' A    ;B'    ;'   C'", [" A    ;B", "   C"]),
        ("A;;C", ["A", "", "C"]),
        (";A;", ["A"]),
    ],
)
def test_parts_are_split_and_quoted_as_fluss_does(text: str, parts: list[str]) -> None:
    assert split_escaped(text, ";", "k") == parts


@pytest.mark.parametrize("text", ["'AB'D;B", "'A", 'C;"', "'A' 'B'"])
def test_a_quote_that_is_not_closed_or_has_text_behind_it_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"option 'some\.key'") as raised:
        split_escaped(text, ";", "some.key")
    assert raised.value.code == ErrorCode.CONFIG_EXCEPTION


part = st.text("ab ,:'\"\\;", min_size=1, max_size=6)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@given(st.lists(part, max_size=5))
def test_a_quoted_list_comes_back(parts: list[str]) -> None:
    assert parse_list(",".join(map(quoted, parts)), "k") == parts


@given(st.dictionaries(part, part, max_size=5))
def test_a_quoted_map_comes_back(entries: dict[str, str]) -> None:
    text = ",".join(quoted(f"{quoted(key)}:{quoted(value)}") for key, value in entries.items())
    assert parse_map(text, "k") == entries


@pytest.mark.parametrize(
    ("text", "reason"), [("a", "1 parts"), ("a:b:c", "3 parts"), ("a:", "1 parts"), ("a:1,a:2", "twice")]
)
def test_a_map_entry_is_one_pair_with_a_key_of_its_own(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse_map(text, "k")


# --- listeners -------------------------------------------------------------------------------------------------


def test_listeners_have_the_advertised_address_and_the_protocol_of_their_name() -> None:
    settings = {
        "bind.listeners": "FLUSS://h:9092, CLIENT://127.0.0.1:9093,REPLICATION://[::1]:0",
        "advertised.listeners": "CLIENT://db.example.org:9092",
        "security.protocol.map": "CLIENT:sasl, FLUSS:PLAINTEXT, OTHER:SASL",
        "internal.listener.name": "FLUSS",
    }
    assert parse_listeners(settings) == (
        Listener("FLUSS", SecurityProtocol.PLAINTEXT, "h", 9092, "h", 9092),
        Listener("CLIENT", SecurityProtocol.SASL, "127.0.0.1", 9093, "db.example.org", 9092),
        Listener("REPLICATION", SecurityProtocol.PLAINTEXT, "::1", 0, "::1", 0),
    )


def test_a_listener_needs_no_internal_one_beside_it() -> None:
    (listener,) = parse_listeners({"bind.listeners": "CLIENT://localhost:9123"})
    assert listener.name == "CLIENT"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "names no listener"),
        ({"bind.listeners": "   "}, "names no listener"),
        ({"bind.listeners": "localhost:9123"}, "'localhost:9123' is not a listener"),
        ({"bind.listeners": "A://localhost"}, "is not a listener"),
        ({"bind.listeners": "A://:9123"}, "is not a listener"),
        ({"bind.listeners": "://h:9123"}, "is not a listener"),
        ({"bind.listeners": "A://h:1,"}, "'' is not a listener"),
        ({"bind.listeners": "A://my host:9123"}, "is not a listener"),
        ({"bind.listeners": "A://h:65536"}, "between 0 and 65535"),
        ({"bind.listeners": "A://h:-1"}, "between 0 and 65535"),
        ({"bind.listeners": "A://h:1,A://h:2"}, "same name"),
        ({"bind.listeners": "A://h:1,B://i:1"}, "same port"),
        ({"bind.listeners": "A://h:1", "advertised.listeners": "B://h:1"}, "'B' is not one of the bound"),
        ({"bind.listeners": "A://h:1", "advertised.listeners": "A://h:1,A://i:2"}, "same name"),
        ({"bind.listeners": "A://h:1", "internal.listener.name": "B"}, "'B' is not one of the bound"),
        ({"bind.listeners": "A://h:1", "security.protocol.map": "A:KERBEROS"}, "protocol 'KERBEROS'"),
        ({"bind.listeners": "A://h:1", "security.protocol.map": "A"}, "1 parts"),
    ],
)
def test_listener_settings_that_make_no_sense_are_refused_with_the_reason(
    settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as raised:
        parse_listeners(settings)
    assert raised.value.code == ErrorCode.CONFIG_EXCEPTION


def test_ports_may_be_equal_if_the_system_chooses_them_or_other_machines_have_them() -> None:
    settings = {"bind.listeners": "A://h:0,B://h:0,C://h:1", "advertised.listeners": "A://x:9,B://y:9"}
    assert [listener.advertised_port for listener in parse_listeners(settings)] == [9, 9, 1]


# --- credentials -----------------------------------------------------------------------------------------------


def jaas(options: str) -> str:
    return f"{PLAIN_LOGIN_MODULE} required {options};"


@pytest.mark.parametrize(
    ("text", "users"),
    [
        (jaas('user_admin="secret" user_bob="p"'), {"admin": "secret", "bob": "p"}),
        (jaas('username="me" password="mine" user_admin="x"'), {"admin": "x"}),
        (jaas("user_admin='se\"cret' user_a.b-c$='x:y,z;'"), {"admin": 'se"cret', "a.b-c$": "x:y,z;"}),
        (jaas('"user_a@b"="x"'), {"a@b": "x"}),
        (jaas(r'user_a="q\"u\\o\te\101\0" user_b=word'), {"a": 'q"u\\o\teA\0', "b": "word"}),
        (jaas("// a comment user_no=no\n /* another; */ user_caf\u00e9='\u00fc'"), {"caf\u00e9": "\u00fc"}),
        (jaas("").replace("required", "Sufficient"), {}),
    ],
)
def test_jaas_text_is_read_as_fluss_reads_it(text: str, users: dict[str, str]) -> None:
    assert jaas_users(text, "k") == users


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 login modules"),
        ("// nothing", "0 login modules"),
        (jaas("user_a='secret'") * 2, "2 login modules"),
        ("com.example.Module required user_a='secret';", "com.example.Module"),
        (jaas("user_a='secret'")[:-1], "end with ';'"),
        (f"{PLAIN_LOGIN_MODULE} always user_a='secret';", "control flag"),
        (PLAIN_LOGIN_MODULE, "control flag"),
        ("; required;", "control flag"),
        (jaas("user_a"), "'user_a' has no value"),
        (jaas("user_a="), "'user_a' has no value"),
        (jaas("user_a=12345"), "'user_a' has no value"),
        (jaas("user_a 'secret'"), "'user_a' has no value"),
        (jaas("= 'secret'"), "an option has no value"),
        (jaas("user_a='secret\n'"), "an option has no value"),
        (jaas("user_a='x'secret'y'"), "an option has no value"),
    ],
)
def test_jaas_text_that_makes_no_sense_is_refused_without_showing_passwords(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as raised:
        jaas_users(text, "k")
    assert "secret" not in str(raised.value)


@given(st.text(st.characters(max_codepoint=200), max_size=40))
def test_any_text_is_jaas_or_refused(text: str) -> None:
    for candidate in (text, jaas(text)):
        try:
            users = jaas_users(candidate, "k")
        except InvalidRequest:
            continue
        assert all(isinstance(value, str) for value in users.values())


GLOBAL_JAAS = jaas('user_admin="old" user_carol="c"')


@pytest.mark.parametrize(
    ("settings", "users"),
    [
        ({"security.sasl.plain.credentials": "admin:secret, alice:secret2"}, {"admin": "secret", "alice": "secret2"}),
        ({"security.sasl.plain.credentials": """"bob:a,b;c", carol:'x:y'"""}, {"bob": "a,b;c", "carol": "x:y"}),
        ({"security.sasl.plain.jaas.config": GLOBAL_JAAS}, {"admin": "old", "carol": "c"}),
        (
            {"security.sasl.plain.jaas.config": GLOBAL_JAAS, "security.sasl.plain.credentials": "admin:new"},
            {"admin": "new", "carol": "c"},
        ),
        (
            {
                "security.sasl.listener.name.client.plain.jaas.config": jaas("user_only='one'"),
                "security.sasl.plain.jaas.config": GLOBAL_JAAS,
                "security.sasl.plain.credentials": "admin:new",
            },
            {"only": "one"},
        ),
        (
            {
                "security.sasl.listener.name.client.plain.jaas.config": "",
                "security.sasl.listener.name.other.plain.jaas.config": jaas("user_only='one'"),
                "security.sasl.plain.credentials": "admin:new",
            },
            {"admin": "new"},
        ),
    ],
)
def test_credentials_come_from_the_listener_or_from_both_global_options(
    settings: dict[str, str], users: dict[str, str]
) -> None:
    assert plain_credentials(settings, "CLIENT") == users


@pytest.mark.parametrize(
    ("credentials", "reason"),
    [
        ("", "no user is known"),
        ("admin", "1 parts"),
        ("admin:sesame:sesame", "3 parts"),
        ("ad min:sesame", "user name 'ad min'"),
        ("admin:''", "is empty"),
        ("""admin:'sesame"x'""", "contains"),
        ("admin:sesame\\x", "contains"),
        ("admin:sesame\tx", "contains"),
        ("admin:sesame,admin:sesame", "twice"),
    ],
)
def test_credentials_that_fluss_would_read_otherwise_are_refused_without_showing_them(
    credentials: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as raised:
        plain_credentials({"security.sasl.plain.credentials": credentials}, "CLIENT")
    assert "sesame" not in str(raised.value)


# --- authenticators --------------------------------------------------------------------------------------------

SASL = {
    "bind.listeners": "CLIENT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
    "security.protocol.map": "CLIENT:SASL",
    "security.sasl.enabled.mechanisms": "plain",
    "security.sasl.plain.credentials": "admin:secret",
}


def test_each_connection_gets_an_authenticator_of_its_listeners_kind() -> None:
    client, internal = parse_listeners(SASL)
    make = authenticator_factory(client, SASL)
    first, second = make(), make()
    first.receive(pb.AuthenticateRequest(protocol="PLAIN", token=b"\0admin\0secret"))
    assert (first.principal, second.principal) == (Principal("admin"), None)
    assert authenticator_factory(internal, SASL)().principal == ANONYMOUS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"security.sasl.enabled.mechanisms": ""}, "no mechanism is enabled"),
        ({"security.sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, "no mechanism GSSAPI"),
        ({"security.sasl.plain.credentials": ""}, "no user is known"),
    ],
)
def test_a_sasl_listener_that_no_user_could_use_is_refused_at_start(change: dict[str, Any], reason: str) -> None:
    settings = SASL | change
    with pytest.raises(InvalidRequest, match=reason):
        authenticator_factory(parse_listeners(settings)[0], settings)
