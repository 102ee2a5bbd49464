"""Placement and key hashes in C and in Python, and known values (docs/protocol/primitives.md#hashes)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.engine import _native as native
from shardd.engine import twin


@given(st.integers(0, 2**64 - 1), st.integers(1, 256))
def test_owner(namespace: int, shards: int) -> None:
    assert native.owner(namespace, shards) == twin.owner(namespace, shards)


@given(st.binary(max_size=300))
def test_xxh32(data: bytes) -> None:
    assert native.xxh32(data) == twin.xxh32(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 46_947_589),
        (b"order-17", 1_096_285_045),
        (b"127.0.0.1:51234", 3_903_508_764),
        (b"my-consumer", 2_115_191_887),
    ],
)
def test_known_xxh32(data: bytes, value: int) -> None:
    assert native.xxh32(data) == twin.xxh32(data) == value
