"""What a failure's report says, without starting anything."""

from __future__ import annotations

import io
import signal

from hora.launch.failure import (
    Ending,
    adds_nothing,
    exit_code,
    explain,
    first_failure,
    how_it_ended,
    is_consequence,
    show,
)
from hora.launch.output import Tail


def ending(rank: int, returncode: int, stopped: bool = False) -> Ending:
    return Ending(rank, "h", 100 + rank, returncode, 1.5, stopped, 0.0, 0)


def tail(text: str, stream: str = "stderr") -> Tail:
    result = Tail()
    for line in text.splitlines(keepends=True):
        result.add(stream, line.encode())
    return result


LOST = tail("""Traceback (most recent call last):
  File "train.py", line 1
hora.errors.PeerLostError: rank 1 was killed
The last it said:
Traceback (most recent call last):
  File "train.py", line 2
KeyError: 1
""")
OWN = tail("Traceback (most recent call last):\n  File …\nValueError: boom\n")


def test_every_signal_has_words() -> None:
    for number in signal.valid_signals():
        assert f"signal {int(number)}" in how_it_ended(-number)
        assert exit_code(-number) == 128 + number
        title, lines = explain(ending(0, -number), [ending(0, -number)], Tail())
        assert f"signal {int(number)}" in lines[0] and "failed" in title


def test_consequences_are_recognised() -> None:
    assert is_consequence(LOST)
    assert is_consequence(tail("hora.errors.ShutDownError: rank 0 left\n"))
    assert not is_consequence(OWN)
    assert not is_consequence(Tail())


def test_the_cause_is_first_even_if_seen_last() -> None:
    endings = [ending(0, 1), ending(2, 1), ending(1, -9)]
    first = first_failure(endings, {0: LOST, 1: Tail(), 2: LOST})
    assert first is not None and first.rank == 1


def test_those_we_stopped_are_not_the_cause() -> None:
    first = first_failure([ending(0, -15, stopped=True), ending(1, 1)], {0: Tail(), 1: LOST})
    assert first is not None and first.rank == 1


def test_nobody_failed() -> None:
    assert first_failure([ending(0, 0)], {0: Tail()}) is None


def test_out_of_memory_is_said_as_surely_as_it_is_known() -> None:
    for oom_kills, said in (
        (None, "probably out of memory"),
        (2, "out of memory (the kernel killed 2"),
        (0, "by someone"),
    ):
        killed = ending(0, -9)._replace(oom_kills=oom_kills)
        assert said in explain(killed, [killed], Tail())[1][0]


def test_a_long_traceback_is_shown_from_its_start() -> None:
    frames = "".join(f'  File "deep.py", line {n}, in f\n' for n in range(200))
    lines = explain(ending(0, 1), [ending(0, 1)], tail(f"Traceback (most recent call last):\n{frames}E: end\n"))[1]
    assert "Traceback (most recent call last):" in lines
    assert "E: end" in lines
    assert any("left out" in line for line in lines)
    assert len(lines) < 80


def test_without_an_exception_the_last_lines_of_both_streams() -> None:
    lines = explain(ending(0, 4), [ending(0, 4)], tail("".join(f"line {n}\n" for n in range(100)), "stdout"))[1]
    assert lines[-1] == "line 99" and "line 80" in lines and "line 79" not in lines


def test_plain_box_is_ascii_safe() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    show("rank 0 failed", ["naïve …"], stream)
    text = raw.getvalue().decode("ascii")
    assert text.startswith("+-- hora: rank 0 failed -")
    assert "| na\\xefve" in text


def test_box_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    show("rank 0 failed", ["[bold]not markup[/bold]"], stream)
    assert "rank 0 failed" in stream.getvalue() and "[bold]not markup[/bold]" in stream.getvalue()


def test_a_lost_host_is_named_with_all_its_ranks() -> None:
    why = "h has not answered for 10 s (10.0.0.2): the host is down, or the link to it is"
    lost = [ending(rank, 3)._replace(lost=why) for rank in (2, 3)]
    others = [ending(0, 1)._replace(host="h1"), ending(1, -15, stopped=True)._replace(host="h1")]
    title, lines = explain(lost[0], [*lost, *others], Tail())
    assert title == "host h was lost"
    assert lines[0].startswith(why) and "ranks 2, 3 ran there" in lines
    assert "rank 0 exit code 1; rank 1 stopped by Hora" in lines[-1]


def test_an_mpirun_that_does_not_say_who_failed() -> None:
    unknown = ending(-1, 4)._replace(host="MPICH", pid=1)
    title, lines = explain(unknown, [unknown], Tail())
    assert title == "the job failed" and "MPICH does not say which rank failed, exit code 4" in lines[0]


def test_what_others_said_is_told_by_one_word() -> None:
    """A text that ranks share, and that they have lost somebody, is not shown again."""
    mine = b"Traceback (most recent call last):\nValueError: boom\n"
    lost = b"Traceback\nhora.errors.PeerLostError: r1\n"
    said = {0: lost, 1: mine, 2: mine, 3: b"KeyError: 7\n"}
    assert [rank for rank in said if not adds_nothing(rank, 1, said)] == [3]
    endings = [ending(rank, 1) for rank in (1, 0, 2, 3)]
    lines = explain(endings[0], endings, OWN, said)[1]
    assert (
        lines[1] == "the others: rank 0 exit code 1, because of that; rank 2 exit code 1, saying the same; "
        "rank 3 exit code 1"
    )
    assert lines[2:] == ["", "Traceback (most recent call last):", "ValueError: boom"]


def test_what_has_just_been_seen_is_not_shown_again() -> None:
    assert len(explain(ending(0, 1), [ending(0, 1)], None)[1]) == 1
