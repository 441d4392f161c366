"""The exchange of keys: its prime is the published one, and only the two who exchanged can open what was sealed."""

from __future__ import annotations

import pytest

from hora.wire import keys
from hora.wire.keys import KeyPair


def arctan_of_inverse(x: int, bits: int) -> int:
    term = total = (1 << bits) // x
    odd, sign = 3, -1
    while term:
        term //= x * x
        total += sign * (term // odd)
        odd, sign = odd + 2, -sign
    return total


def test_the_prime_is_that_of_rfc_3526() -> None:
    """2^2048 - 2^1984 - 1 + 2^64 * ([2^1918 pi] + 124476), with Machin's formula for pi."""
    pi = 4 * (4 * arctan_of_inverse(5, 1950) - arctan_of_inverse(239, 1950)) >> 32
    assert 2**2048 - 2**1984 - 1 + 2**64 * (pi + 124476) == keys._PRIME


def test_who_listens_or_alters_opens_nothing() -> None:
    hub, worker, stranger = KeyPair(), KeyPair(), KeyPair()
    sealed = hub.seal(worker.public, b"s" * 32)
    assert worker.unseal(hub.public, sealed) == b"s" * 32
    assert b"s" * 8 not in sealed
    assert stranger.unseal(hub.public, sealed) is None
    assert worker.unseal(stranger.public, sealed) is None
    assert worker.unseal(hub.public, bytes([sealed[0] ^ 1]) + sealed[1:]) is None


@pytest.mark.parametrize("number", [0, 1, keys._PRIME - 1, keys._PRIME])
def test_numbers_that_would_give_the_key_away_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="no public number"):
        KeyPair().seal(number.to_bytes(256, "big"), b"secret")
