"""The differential script, fourth part: frames, versions, roles and authentication."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import fluss
import raw_wire as wire
from exam_script import SILENCE_SECONDS, Exam

_WRONG = "wrong-password"
# The public APIs that Apache Fluss 0.9.1 lists; those that servers use among themselves are left out.
_BOTH_APIS = {1000, 1003, 1004, *range(1007, 1013), 1023, 1024, 1025, 1032, 1035, 1038, 1040, 1045}
_COORDINATOR_APIS = _BOTH_APIS | {1001, 1002, 1005, 1006, 1036, 1037, 1039, 1041, 1044, *range(1046, 1052)}
_COORDINATOR_APIS |= set(range(1053, 1059))
_TABLET_APIS = _BOTH_APIS | {1014, 1015, 1016, 1017, 1021, 1026, 1033, 1034, 1059}


def _first_words(exam: Exam, say: Callable[[wire.RawConnection], Any], role: str = "coordinator") -> Any:
    """Say something on a fresh connection, then see whether it still works and whether others do."""
    with exam.new_raw(role, SILENCE_SECONDS) as connection:
        try:
            first: Any = say(connection)
        except wire.Unanswered as unanswered:
            first = "silent" if "no answer" in str(unanswered) else "closed"
        try:
            wire.api_versions(connection)
            after = "works"
        except (wire.Unanswered, OSError) as unanswered:
            after = "silent" if "no answer" in str(unanswered) else "closed"
    with exam.new_raw(role, SILENCE_SECONDS) as other:
        wire.api_versions(other)
    return {"answer": first, "connection": after}


def _answer(response: wire.RawResponse) -> Any:
    if response.error is None:
        return "ok"
    return {"failure_frame" if response.failure else "error_frame": response.error}


async def frames(exam: Exam) -> None:
    def ask(api: int, fields: Any, version: int = 0) -> Callable[[wire.RawConnection], Any]:
        return lambda connection: _answer(connection.call(api, fields, version))

    def tell(data: bytes) -> Callable[[wire.RawConnection], Any]:
        def send(connection: wire.RawConnection) -> Any:
            connection.send_bytes(data)
            return _answer(connection.receive())

        return send

    metadata = wire.GET_METADATA
    broken = b"\x0a\xff\xff\xff\xff\x0f"
    questions: dict[str, Callable[[wire.RawConnection], Any]] = {
        "versions": ask(wire.API_VERSIONS, [(1, "x"), (2, "1")]),
        "versions without the required fields": ask(wire.API_VERSIONS, []),
        "versions, version 1": ask(wire.API_VERSIONS, [(1, "x"), (2, "1")], 1),
        "metadata before versions": ask(metadata, []),
        "unknown api 1": ask(1, []),
        "unknown api 1500": ask(1500, []),
        "unknown api -1": ask(-1, []),
        "version too high": ask(metadata, [], 9),
        "version negative": ask(metadata, [], -1),
        "body that is no message": ask(metadata, broken),
        "unknown field in the body": ask(metadata, [(99, "later"), (98, 5)]),
        "required field missing": ask(wire.GET_TABLE_INFO, []),
        "inner required field missing": ask(wire.GET_TABLE_INFO, [(1, [(1, "db")])]),
        "name that is no UTF-8": ask(wire.GET_TABLE_INFO, [(1, [(1, b"\xff\xfe"), (2, "t")])]),
        "frame of length 0": tell(struct.pack(">i", 0)),
        "frame of length 3": tell(struct.pack(">i", 3) + b"abc"),
        "frame of negative length": tell(struct.pack(">i", -1)),
        "frame of 2 GB": tell(struct.pack(">i", 0x7FFFFFFF)),
        "frame of 101 MB": tell(struct.pack(">i", 101 << 20)),
        "http": tell(b"GET / HTTP/1.1\r\n\r\n"),
    }
    for label, question in questions.items():
        await exam.step(label, lambda question=question: _first_words(exam, question))
    await exam.step("half a frame, then the end", lambda: _half(exam))
    await exam.step("bytes one by one", lambda: _first_words(exam, _bytewise))
    await exam.step("five requests at once", lambda: _pipelined(exam))
    await exam.step("a tablet's api at the coordinator", lambda: _first_words(exam, ask(wire.PRODUCE_LOG, [])))
    await exam.step("a coordinator's api at the tablet", lambda: _first_words(exam, ask(1001, []), "tablet"))
    for role, wanted in [("coordinator", _COORDINATOR_APIS), ("tablet", _TABLET_APIS)]:
        await exam.step(f"type of the {role} server", lambda role=role: wire.api_versions(exam.raw(role))[0])
        await exam.step(
            f"apis that the {role} server lacks",
            lambda role=role, wanted=wanted: sorted(wanted - set(wire.api_versions(exam.raw(role))[1])),
        )
    await exam.step("security token", lambda: _token(exam))


def _half(exam: Exam) -> str:
    with exam.new_raw("coordinator", SILENCE_SECONDS) as connection:
        connection.send_bytes(wire.frame(wire.GET_METADATA, 1, b"")[:7])
    with exam.new_raw("coordinator", SILENCE_SECONDS) as other:
        wire.api_versions(other)
    return "others go on"


def _bytewise(connection: wire.RawConnection) -> Any:
    for byte in wire.frame(wire.API_VERSIONS, 7, wire.encode([(1, "x"), (2, "1")])):
        connection.send_bytes(bytes([byte]))
    response = connection.receive()
    return [response.request_id, _answer(response)]


def _pipelined(exam: Exam) -> list[int]:
    with exam.new_raw("coordinator") as connection:
        wire.api_versions(connection)
        sent = [connection.send(wire.GET_METADATA, []) for _ in range(5)]
        answered = [connection.receive().request_id for _ in range(5)]
    return sorted(request - min(sent) for request in answered)


def _token(exam: Exam) -> Any:
    answer = exam.call("tablet", wire.GET_FILE_SYSTEM_SECURITY_TOKEN, [])
    return [wire.one(answer, 1).decode(), wire.one(answer, 2).decode(), sorted(answer)]


async def sasl(exam: Exam) -> None:
    if not exam.sasl_address:
        return
    user, password = next(iter(exam.users.items()))

    async def connect(address: str, **credentials: str) -> Any:
        config = {"bootstrap.servers": address, "security.protocol": "sasl", "security.sasl.mechanism": "PLAIN"}
        config |= {f"security.sasl.{name}": value for name, value in credentials.items()}
        connection = await fluss.FlussConnection.create(fluss.Config(config))
        try:
            return await connection.get_admin().database_exists("fluss")
        finally:
            await connection.close()

    async def plainly(address: str) -> Any:
        connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address}))
        try:
            return await connection.get_admin().database_exists("fluss")
        finally:
            await connection.close()

    listener = exam.sasl_address
    await exam.step("right password", lambda: connect(listener, username=user, password=password))
    await exam.step("wrong password", lambda: connect(listener, username=user, password=_WRONG))
    await exam.step("unknown user", lambda: connect(listener, username="nobody", password=password))
    await exam.step("plain client at the authenticated listener", lambda: plainly(listener))
    await exam.step(
        "authenticating client at the plain listener", lambda: connect(exam.address, username=user, password=password)
    )
    token = f"\0{user}\0{password}".encode()
    for label, steps in _conversations(token, user).items():
        await exam.step(label, lambda steps=steps: asyncio.to_thread(_converse, listener, steps))
    plain = [("PLAINTEXT", b""), ("PLAIN", token), ("SASL", token)]
    for mechanism, word in plain:
        await exam.step(
            f"authenticate as {mechanism} at the plain listener",
            lambda m=mechanism, w=word: asyncio.to_thread(_converse, exam.address, [("auth", m, w), ("metadata",)]),
        )


def _conversations(token: bytes, user: str) -> dict[str, list[tuple[Any, ...]]]:
    good = ("auth", "PLAIN", token)
    return {
        "metadata before authentication": [("metadata",)],
        "versions before authentication": [("versions",)],
        "authentication, then metadata": [good, ("metadata",)],
        "authentication without versions": [("no versions",), good, ("metadata",)],
        "authentication twice": [good, good, ("metadata",)],
        "authentication, then an empty token": [good, ("auth", "PLAIN", b""), ("metadata",)],
        "wrong, then right": [("auth", "PLAIN", f"\0{user}\0{_WRONG}".encode()), good, ("metadata",)],
        "mechanism in small letters": [("auth", "plain", token), ("metadata",)],
        "mechanism unknown": [("auth", "SCRAM-SHA-256", token), ("metadata",)],
        "mechanism empty": [("auth", "", token), ("metadata",)],
        "token empty": [("auth", "PLAIN", b""), ("metadata",)],
        "token of one part": [("auth", "PLAIN", user.encode()), ("metadata",)],
        "token of two parts": [("auth", "PLAIN", token[1:]), ("metadata",)],
        "token of four parts": [("auth", "PLAIN", token + b"\0more"), ("metadata",)],
        "token that acts for itself": [("auth", "PLAIN", user.encode() + token), ("metadata",)],
        "token that acts for another": [("auth", "PLAIN", b"alice" + token), ("metadata",)],
        "token that is no UTF-8": [("auth", "PLAIN", b"\0\xff\xfe\0\xff"), ("metadata",)],
        "empty password": [("auth", "PLAIN", f"\0{user}\0".encode()), ("metadata",)],
    }


def _converse(address: str, steps: list[tuple[Any, ...]]) -> list[Any]:
    """Every answer of a conversation, up to the end of the connection."""
    heard: list[Any] = []
    with wire.RawConnection(address, SILENCE_SECONDS) as connection:
        if ("no versions",) not in steps:
            wire.api_versions(connection)
        for step in steps:
            if step == ("no versions",):
                continue
            try:
                heard.append(_say(connection, step))
            except (wire.Unanswered, OSError) as end:
                heard.append("silent" if "no answer" in str(end) else "closed")
                break
    return heard


def _say(connection: wire.RawConnection, step: tuple[Any, ...]) -> Any:
    if step[0] == "metadata":
        return _answer(connection.call(wire.GET_METADATA, []))
    if step[0] == "versions":
        return _answer(connection.call(wire.API_VERSIONS, [(1, "x"), (2, "1")]))
    response = connection.call(wire.AUTHENTICATE, [(1, step[1]), (2, step[2])])
    challenge = wire.one(response.message, 1)
    return _answer(response) if challenge is None else {"challenge": challenge.hex()}
