"""fluss.proto, the generated code, and the table of APIs agree with one another."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

import forebay.protocol
from forebay.base.errors import UnsupportedOperation
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import APIS, ApiKey, NegotiatedVersions, ServerRole, api_versions_response, offered
from forebay.server import handlers as _registers_all_handlers  # noqa: F401
from forebay.server.context import HANDLERS

PACKAGE = Path(forebay.protocol.__file__).parent
SERVERS_ONLY = {"AddServerTagByRack", "RemoveServerTagByRack"}
"""Requests whose API numbers are not published yet."""

_TYPES = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12,
}  # fmt: skip
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_FIELD = re.compile(r"(optional|required|repeated)\s+(\w+)\s+(\w+)\s*=\s*(\d+)\s*(\[packed = true\])?\s*;")


def fields_in_text() -> dict[str, dict[int, tuple[str, int, int, str, bool]]]:
    """Messages of fluss.proto as written: number -> (name, type, label, message type, packed)."""
    text = re.sub(r"//[^\n]*", "", (PACKAGE / "fluss.proto").read_text())
    messages = {}
    for name, body in re.findall(r"message (\w+)\s*\{([^}]*)\}", text):
        fields = _FIELD.findall(body)
        assert len(fields) == body.count(";"), f"{name} has a field that this test cannot read"
        messages[name] = {
            int(number): (
                field,
                _TYPES.get(kind, 11),
                _LABELS[label],
                "" if kind in _TYPES else f".fluss.{kind}",
                bool(packed),
            )
            for label, kind, field, number, packed in fields
        }
    return messages


def fields_in_code() -> dict[str, dict[int, tuple[str, int, int, str, bool]]]:
    file = descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    assert file.package == "fluss"
    return {
        message.name: {f.number: (f.name, f.type, f.label, f.type_name, f.options.packed) for f in message.field}
        for message in file.message_type
    }


def test_generated_code_has_exactly_the_messages_and_fields_of_fluss_proto() -> None:
    assert fields_in_code() == fields_in_text()
    assert len(fields_in_text()) == 226


def test_generated_stub_has_every_message() -> None:
    stub = (PACKAGE / "fluss_pb2.pyi").read_text()
    assert set(re.findall(r"^class (\w+)\(_Message\):", stub, re.MULTILINE)) == set(fields_in_text())


def test_every_api_key_is_in_the_table_and_its_messages_are_named_after_it() -> None:
    assert set(APIS) == {int(key) for key in ApiKey}
    for key, api in APIS.items():
        assert api.key == key
        assert api.roles
        stem = api.request.__name__.removesuffix("Request")
        assert api.response.__name__ == f"{stem}Response"
        if api.key is not ApiKey.GET_METADATA:
            assert stem.lower() == api.key.name.replace("_", "").lower()


def test_every_request_message_belongs_to_an_api() -> None:
    requests = {name.removesuffix("Request") for name in fields_in_text() if name.endswith("Request")}
    assert requests - SERVERS_ONLY == {api.request.__name__.removesuffix("Request") for api in APIS.values()}


def test_only_the_versions_of_the_newest_client_are_offered() -> None:
    above_zero = {api.key: (api.server_versions.max, api.client_versions.max) for api in APIS.values()}
    assert {key: versions for key, versions in above_zero.items() if versions != (0, 0)} == {
        ApiKey.PRODUCE_LOG: (1, 1),
        ApiKey.PUT_KV: (3, 3),
        ApiKey.LOOKUP: (1, 1),
        ApiKey.PREFIX_LOOKUP: (1, 1),
        ApiKey.OPEN_TABLE_SNAPSHOT: (1, 1),
        ApiKey.COMMIT_TRANSACTION: (1, 1),
        ApiKey.LIST_TRANSACTIONS: (1, 1),
    }


def test_a_server_offers_what_it_implements_in_its_role_and_nothing_else() -> None:
    implemented = {ApiKey.API_VERSIONS, ApiKey.PUT_KV, ApiKey.CREATE_TABLE}
    tablet = api_versions_response(offered(implemented, ServerRole.TABLET), ServerRole.TABLET)
    assert [(v.api_key, v.min_version, v.max_version) for v in tablet.api_versions] == [(1000, 0, 0), (1016, 0, 3)]
    assert tablet.server_type == 2
    assert set(offered(implemented, ServerRole.COORDINATOR)) == {1000, 1005}


def test_client_takes_the_newest_version_that_both_sides_speak() -> None:
    response = pb.ApiVersionsResponse(server_type=1)
    for key, low, high in ((1016, 0, 2), (1014, 0, 7), (1017, 2, 3), (5000, 0, 0)):
        response.api_versions.add(api_key=key, min_version=low, max_version=high)
    versions = NegotiatedVersions(response)
    assert versions.role is ServerRole.COORDINATOR
    assert versions.version(ApiKey.PUT_KV) == 2
    assert versions.version(ApiKey.PRODUCE_LOG) == 1
    assert not versions.offers(ApiKey.LOOKUP)
    with pytest.raises(UnsupportedOperation, match=r"LOOKUP.* offers versions 2\.\.3, this client speaks 0\.\.1"):
        versions.version(ApiKey.LOOKUP)
    with pytest.raises(UnsupportedOperation, match=r"SCAN_KV.* does not offer it"):
        versions.version(ApiKey.SCAN_KV)


@pytest.mark.parametrize("server_type", [None, -1, 3])
def test_a_server_that_does_not_tell_its_role_has_none(server_type: int | None) -> None:
    assert NegotiatedVersions(pb.ApiVersionsResponse(server_type=server_type)).role is None


@pytest.mark.parametrize(
    ("offered_key", "has_additions"),
    [(ApiKey.OPEN_TABLE_SNAPSHOT, True), (ApiKey.BEGIN_TRANSACTION, True), (ApiKey.PUT_KV, False)],
)
def test_a_server_has_additions_if_it_offers_one(offered_key: ApiKey, has_additions: bool) -> None:
    newest = APIS[offered_key].client_versions
    assert newest is not None
    response = pb.ApiVersionsResponse()
    response.api_versions.add(api_key=int(offered_key), min_version=newest.min, max_version=newest.max)
    assert NegotiatedVersions(response).has_additions == has_additions


def test_the_package_does_no_io_and_reads_no_clock() -> None:
    forbidden = {"asyncio", "socket", "threading", "time", "selectors", "ssl", "random", "os", "subprocess"}
    for path in PACKAGE.glob("*.py"):
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
        assert not imported & forbidden, path.name


def test_the_documentation_lists_every_api_with_its_key_versions_and_roles() -> None:
    text = (PACKAGE.parents[2] / "docs" / "protocol.md").read_text()
    rows = re.findall(
        r"^\| (\d+) \| (\w+) \| ([\d.]+) \| ([CT ]+) \| (yes|no|empty) \|[^|]+\|[^|]*\|$", text, re.MULTILINE
    )
    documented = {(int(key), name, versions, roles) for key, name, versions, roles, _ in rows}
    served = {name for _, name, _, _, answer in rows if answer != "no"}
    assert served == {key.name for key in HANDLERS} | {"API_VERSIONS", "AUTHENTICATE"}
    letters = {ServerRole.COORDINATOR: "C", ServerRole.TABLET: "T"}
    assert documented == {
        (
            key,
            api.key.name,
            "0" if api.server_versions == (0, 0) else str(api.server_versions),
            " ".join(letters[role] for role in ServerRole if role in api.roles),
        )
        for key, api in APIS.items()
    }
