"""Fluss's hash of bucket keys in plain Python, with the variant of its Rust client.

The kernel `forebay.codec._hash` computes the buckets of a table. The variant is needed for few keys and has no kernel.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF


def _rotate(value: int, count: int) -> int:
    return (value << count | value >> (32 - count)) & _MASK


def _mix(h: int, block: int) -> int:
    k = _rotate(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    return (_rotate(h ^ k, 13) * 5 + 0xE6546B64) & _MASK


def _finalise(h: int, length: int) -> int:
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


def fluss_hash32(data: bytes, seed: int, *, has_sign: bool = True) -> int:
    """Fluss's murmur3 variant: trailing bytes are sign-extended and mixed one by one as whole blocks.

    Without `has_sign` as its Rust client up to 1.0.0 does it (apache/fluss-rust, `murmur_hash.rs`).
    """
    h = seed
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        h = _mix(h, int.from_bytes(data[i : i + 4], "little"))
    for byte in data[whole:]:
        h = _mix(h, (byte - 256 if has_sign and byte >= 128 else byte) & _MASK)
    return _finalise(h, len(data))


def integer_murmur(value: int) -> int:
    """The second pass: one block, seed 0; made non-negative as Fluss does."""
    h = _finalise(_mix(0, value & _MASK), 4)
    signed = h - (1 << 32) if h >= 1 << 31 else h
    return 0 if signed == -(1 << 31) else abs(signed)


def fluss_bucket(key: bytes, count: int, *, has_sign: bool = True) -> int:
    """The bucket of a key in a table without a lake format. `has_sign` as in `fluss_hash32`."""
    return integer_murmur(fluss_hash32(key, 42, has_sign=has_sign)) % count
