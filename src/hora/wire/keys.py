"""A secret for one other process over a channel that everybody can read: Diffie-Hellman, and a seal.

Both sides publish a public number. From the other's and its own private number each computes the same key, which nobody
who only listens can (RFC 3526, group 14; 2048 bits). Who can *change* what is published could put itself between them:
this is only as safe as the place where the numbers are published.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

__all__ = ["KeyPair"]

_PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DDEF9519B3CD3A431B"
    "302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE6"
    "49286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB9ED529077096966D"
    "670C354E4ABC9804F1746C08CA18217C32905E462E36CE3BE39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF695581718"
    "3995497CEA956AE515D2261898FA051015728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
_NUMBER_BYTES = 256
_PRIVATE_BITS = 512
_CODE_BYTES = 32


class KeyPair:
    """A private number and the public one that belongs to it; for one exchange.

    >>> ours, theirs = KeyPair(), KeyPair()
    >>> theirs.unseal(ours.public, ours.seal(theirs.public, b"a secret"))
    b'a secret'
    >>> KeyPair().unseal(ours.public, ours.seal(theirs.public, b"a secret")) is None
    True
    """

    def __init__(self) -> None:
        self._private = secrets.randbits(_PRIVATE_BITS) | 1 << (_PRIVATE_BITS - 1)
        self.public = pow(2, self._private, _PRIME).to_bytes(_NUMBER_BYTES, "big")

    def seal(self, to: bytes, secret: bytes) -> bytes:
        """``secret``, at most 64 bytes, for whoever showed the public number ``to``. Not twice for the same one."""
        pad, key = self._keys(to)
        assert len(secret) <= len(pad)
        hidden = bytes(a ^ b for a, b in zip(secret, pad, strict=False))
        return hidden + hmac.digest(key, hidden, "sha256")

    def unseal(self, of: bytes, sealed: bytes) -> bytes | None:
        """What ``of`` sealed for us; None if that is not what this is."""
        pad, key = self._keys(of)
        hidden, code = sealed[:-_CODE_BYTES], sealed[-_CODE_BYTES:]
        if len(hidden) > len(pad) or not hmac.compare_digest(code, hmac.digest(key, hidden, "sha256")):
            return None
        return bytes(a ^ b for a, b in zip(hidden, pad, strict=False))

    def _keys(self, theirs: bytes) -> tuple[bytes, bytes]:
        number = int.from_bytes(theirs, "big")
        if len(theirs) != _NUMBER_BYTES or not 1 < number < _PRIME - 1:
            raise ValueError("that is no public number of this exchange")
        shared = pow(number, self._private, _PRIME).to_bytes(_NUMBER_BYTES, "big")
        both = b"".join(sorted((self.public, theirs)))
        pad = hashlib.sha512(b"hora pad" + shared + both).digest()
        return pad, hashlib.sha256(b"hora code" + shared + both).digest()
