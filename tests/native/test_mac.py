"""The codes of frames (``native/mac.c``) against the same computed in Python, with and without the processor's vectors.

Two hosts of one build agree whatever they compute, so only a second computation notices that it is another one, or a
weaker one, than is written there.
"""

from __future__ import annotations

import ctypes
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
NATIVE = Path(__file__).parents[2] / "native"
HEADER = (NATIVE / "link.h").read_text()
TYPES = re.findall(r"FRAME_\w+", HEADER[HEADER.index("enum frame_type") : HEADER.index("}")])
DATA, TELL = TYPES.index("FRAME_DATA") + 1, TYPES.index("FRAME_TELL") + 1
MASK = (1 << 64) - 1


class Frame(ctypes.Structure):
    """``struct frame``."""

    _fields_ = [
        ("bytes", ctypes.c_uint32), ("type", ctypes.c_uint16), ("pad", ctypes.c_uint16), ("order", ctypes.c_uint64),
        ("at", ctypes.c_uint64), ("head", ctypes.c_uint64), ("code", ctypes.c_uint64),
    ]  # fmt: skip


class Key(ctypes.Structure):
    """``struct key``."""

    _fields_ = [("sip", ctypes.c_uint64 * 2), ("nh", ctypes.c_uint32 * 256)]


def siphash(key: bytes, words: list[int]) -> int:
    """SipHash-2-4 of whole words, as its authors describe it."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def turn(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) & MASK

    def half(a: int, b: int, by: int) -> None:
        v[a] = (v[a] + v[b]) & MASK
        v[b] = turn(v[b], by) ^ v[a]

    def rounds(n: int) -> None:
        for _ in range(n):
            half(0, 1, 13)
            v[0] = turn(v[0], 32)
            half(2, 3, 16)
            half(0, 3, 21)
            half(2, 1, 17)
            v[2] = turn(v[2], 32)

    for word in words:
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def words_of(data: bytes) -> list[int]:
    padded = data + bytes(-len(data) % 8)
    return [word for (word,) in struct.iter_unpack("<Q", padded)]


def nh(key: list[int], block: bytes) -> int:
    """Of RFC 4418: a sum of products of sums."""
    m = [word for (word,) in struct.iter_unpack("<I", block)]
    pairs = zip(m[::2], m[1::2], key[::2], key[1::2], strict=True)
    return sum(((a + ka) % 2**32) * ((b + kb) % 2**32) for a, b, ka, kb in pairs) & MASK


def nh_key(secret: bytes) -> list[int]:
    words = [siphash(secret[16:], [i]) for i in range(128)]
    return [half for word in words for half in (word % 2**32, word >> 32)]


def expected(secret: bytes, number: int, frame: Frame, body: bytes) -> tuple[int, int]:
    """The code of the header, and of the whole."""
    said = [frame.bytes << 32 | frame.type, frame.order, frame.at]
    hashed: list[int] = []
    if frame.type == DATA:
        key, whole = nh_key(secret), len(body) // 1024 * 1024
        hashed = [nh(key, body[at : at + 1024]) for at in range(0, whole, 1024)]
        body = body[whole:]
    head = siphash(secret[:16], [number ^ MASK, *said])
    return head, siphash(secret[:16], [number, *said, *hashed, *words_of(body)])


@pytest.fixture(scope="module", params=["vectors", "plain"])
def mac(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """mac.c alone, as it is built for this processor, and as it is for others."""
    library = tmp_path_factory.mktemp("mac") / "mac.so"
    plain = request.param == "plain"
    source = tmp_path_factory.mktemp("source") / "mac.c"
    text = (NATIVE / "mac.c").read_text().replace('"link.h"', f'"{NATIVE}/link.h"')
    # only in this file: the system's headers have to know the processor
    source.write_text(text.replace("defined(__x86_64__)", "0") if plain else text)
    subprocess.run(
        ["cc", "-O2", "-D_FORTIFY_SOURCE=2", "-std=gnu11", "-shared", "-fPIC", "-w", "-o", str(library), str(source)],
        check=True,
        timeout=60,
    )
    loaded = ctypes.CDLL(str(library))
    loaded.prove.restype = loaded.prove_head.restype = ctypes.c_uint64
    return loaded


def test_the_reference_is_siphash() -> None:
    message = bytes(range(15))  # the example of the paper, whose last word has the length in its last byte
    assert siphash(bytes(range(16)), words_of(message + bytes([15]))) == 0xA129CA6149BE45E5


@pytest.mark.parametrize("kind", [DATA, TELL])
def test_codes_are_as_computed_elsewhere(mac: ctypes.CDLL, kind: int) -> None:
    for secret, key, number, frame, body in frames(mac, kind):
        code = mac.prove(ctypes.byref(key), ctypes.c_uint64(number), ctypes.byref(frame), body)
        head = mac.prove_head(ctypes.byref(key), ctypes.c_uint64(number), ctypes.byref(frame))
        assert (head, code) == expected(secret, number, frame, body), len(body)


@pytest.mark.parametrize("kind", [DATA, TELL])
def test_whatever_is_altered_the_code_is_another(mac: ctypes.CDLL, kind: int) -> None:
    for _, key, number, frame, body in frames(mac, kind):

        def codes(number: int, frame: Frame, body: bytes, key: Key = key) -> tuple[int, int]:
            given = ctypes.byref(key), ctypes.c_uint64(number), ctypes.byref(frame)
            return mac.prove_head(*given), mac.prove(*given, body)

        head, code = codes(number, frame, body)
        for field in ("type", "order", "at"):
            other = Frame.from_buffer_copy(frame)
            setattr(other, field, getattr(frame, field) ^ 1)
            if (other.type == DATA) == (kind == DATA):
                assert codes(number, other, body)[0] != head and codes(number, other, body)[1] != code, field
        assert codes(number + 1, frame, body)[0] != head and codes(number + 1, frame, body)[1] != code
        for at in {0, len(body) // 2, len(body) - 1} if body else ():
            altered = bytes(byte ^ (i == at) for i, byte in enumerate(body))
            assert codes(number, frame, altered) == (head, codes(number, frame, altered)[1])
            assert codes(number, frame, altered)[1] != code, at


def frames(mac: ctypes.CDLL, kind: int) -> list[tuple[bytes, Key, int, Frame, bytes]]:
    draw, made = random.Random(kind), []
    for size in (0, 1, 7, 8, 9, 1016, 1023, 1024, 1025, 2048, 3000):
        secret, key, body = draw.randbytes(32), Key(), draw.randbytes(size)
        mac.make_key(ctypes.byref(key), secret)
        frame = Frame(size, kind, 0, draw.getrandbits(64), draw.getrandbits(64), 0, 0)
        made.append((secret, key, draw.getrandbits(40), frame, body))
    return made
