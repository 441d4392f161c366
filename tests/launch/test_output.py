"""Prefixes, files, tails, and pipes that misbehave."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hora.launch.host.pump import Pump
from hora.launch.output import Console, Tail, WorkerStream


def stream(prefix: bool = True, timestamp: bool = False, tail: Tail | None = None) -> tuple[WorkerStream, bytearray]:
    console = bytearray()
    return (
        WorkerStream("stdout", 3, console.extend, tail or Tail(), prefix=prefix, timestamp=timestamp, file=None),
        console,
    )


def test_prefix_is_horovodruns() -> None:
    worker, console = stream()
    worker.take(b"one\ntw")
    assert console == b"[3]<stdout>:one\n"
    worker.take(b"o\r50%\rthree\r\nfour")
    worker.close()
    assert bytes(console).split(b"[3]<stdout>:")[1:] == [b"one\n", b"two\r", b"50%\r", b"three\r\n", b"four\n"]


def test_timestamp() -> None:
    worker, console = stream(timestamp=True)
    worker.take(b"x\n")
    time.strptime(bytes(console).decode().partition("[3]<stdout>:")[0], "%a %b %d %H:%M:%S %Y")


def test_without_prefix_bytes_pass_at_once() -> None:
    worker, console = stream(prefix=False)
    worker.take(b"name? ")
    assert console == b"name? "


@given(st.lists(st.binary(max_size=20)))
def test_nothing_is_lost_or_invented(chunks: list[bytes]) -> None:
    worker, console = stream()
    for chunk in chunks:
        worker.take(chunk)
    worker.close()
    data = b"".join(chunks)
    printed = bytes(console).replace(b"[3]<stdout>:", b"")
    assert printed == data or printed == data + b"\n"


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    worker, console = stream()
    for _ in range(100):
        worker.take(b"x" * 10_000)
    assert len(console) > 900_000


def test_tail_keeps_the_end_and_one_state_of_a_progress_bar() -> None:
    tail = Tail(most_lines=3)
    for line in (b"a\n", b"b\n", b"10%\r", b"20%\r", b"30%\n", b"c\n"):
        tail.add("stderr", line)
    assert tail.lines("stderr") == ["b", "30%", "c"]
    assert tail.lines("stdout") == []


def test_a_full_disk_ends_the_recording_only() -> None:
    console = bytearray()
    with open("/dev/full", "wb", buffering=0) as full:
        worker = WorkerStream("stdout", 0, console.extend, Tail(), prefix=True, timestamp=False, file=full)
        worker.take(b"one\n")
        worker.take(b"two\n")
        worker.close()
    assert b"no longer recorded" in console
    assert b"[0]<stdout>:two\n" in console


def test_text_console_replaces_what_is_not_utf8() -> None:
    out = io.StringIO()
    Console.of_streams(out, out).stdout(b"caf\xe9\n")
    assert out.getvalue() == "caf\ufffd\n"


def test_console_survives_a_nonblocking_descriptor(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    got = bytearray()
    pump = Pump(on_broken=lambda: None)
    pump.add(reader, got.extend)
    pump.start()
    from hora.launch.output import _to_descriptor

    _to_descriptor(writer)(b"y" * 500_000)
    os.close(writer)
    pump.finish()
    assert len(got) == 500_000


def test_tensorflow_is_quiet_at_its_start_and_its_errors_are_not() -> None:
    shown: list[bytes] = []
    stream = WorkerStream("stderr", 0, shown.append, Tail(), prefix=True, timestamp=False, file=None, hush=True)
    stream.take(
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        b"I0000 00:00:1794976790.076247    9077 port.cc:153] oneDNN custom operations are on.\n"
        b"E0000 00:00:1794976790.076247    9077 cuda.cc:153] there is no GPU\nInside: mine\n"
    )
    assert b"".join(shown).decode().splitlines() == [
        "[0]<stderr>:E0000 00:00:1794976790.076247    9077 cuda.cc:153] there is no GPU", "[0]<stderr>:Inside: mine",
    ]  # fmt: skip
