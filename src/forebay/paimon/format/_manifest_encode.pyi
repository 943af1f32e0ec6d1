from collections.abc import Iterable

from forebay.paimon.format.file_meta import ManifestEntry, ManifestFileMeta

def encode_entries(
    entries: Iterable[ManifestEntry], version: int, partition_arity: bytes, key_arity: bytes
) -> bytes: ...
def encode_manifests(manifests: Iterable[ManifestFileMeta], version: int, partition_arity: bytes) -> bytes: ...
