#!/bin/sh
# Makes src/forebay/protocol/fluss_pb2.py and fluss_pb2.pyi from fluss.proto, and flight/flight_sql_pb2 likewise.
#
# protoc 25 (grpcio-tools 1.62.3) is pinned, because code that it makes runs with protobuf runtimes 4.25 to 7.x; code
# of a newer protoc refuses older runtimes. The tool lives in a virtual environment of its own, made and removed here.
# It needs Python 3.8 to 3.12: set PYTHON if the default one is another.
#
# The stub files refer to forebay.protocol.messages for its base types, so that type checking needs no stubs of
# protobuf.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "grpcio-tools==1.62.3" "setuptools<81"

cd "$root/src"
for name in protocol/fluss flight/flight_sql; do
    "$work/venv/bin/python" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. "forebay/$name.proto"

    stub=forebay/${name}_pb2.pyi
    sed -i \
        -e "1i # Made from ${name#*/}.proto by tools/generate_protocol.sh. Do not edit." \
        -e '/^from google\.protobuf/d' \
        -e 's/^from typing import ClassVar as _ClassVar, /from forebay.protocol.messages import Message as _Message, RepeatedMessages, RepeatedScalars\nfrom typing import Any as _Any, ClassVar as _ClassVar, /' \
        -e 's/_descriptor\.FileDescriptor/_Any/' \
        -e 's/_message\.Message/_Message/' \
        -e 's/_Mapping\]/_Mapping[str, _Any]]/g' \
        -e 's/_containers\.RepeatedCompositeFieldContainer/RepeatedMessages/' \
        -e 's/_containers\.RepeatedScalarFieldContainer/RepeatedScalars/' \
        -e 's/_containers\.MessageMap\[/dict[/' \
        -e 's/_containers\.ScalarMap\[/dict[/' \
        "$stub"
    if grep -nE '_containers|_message\.|_descriptor|google' "$stub"; then
        echo "$stub: a type of protobuf's own is left; teach this script to replace it" >&2
        exit 1
    fi
done
