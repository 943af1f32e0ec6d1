from collections.abc import Sequence

from forebay.kv.hlog._log import HashLog

def get(log: HashLog, keys: Sequence[bytes], by_writer: bool = False) -> list[bytes | None]: ...
