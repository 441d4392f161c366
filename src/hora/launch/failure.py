"""Why a job failed: which rank failed first, how it ended, and what it printed last.

Ranks that fail because a peer failed are consequences, not causes; ``first_failure`` looks past them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import TextIO

from hora.launch.host.ending import Ending, how_it_ended
from hora.launch.output import Tail

__all__ = [
    "Ending", "adds_nothing", "exit_code", "explain", "first_failure", "how_it_ended", "is_consequence",
    "is_interruption", "show",
]  # fmt: skip

# An exception that says that another rank has gone.
_CONSEQUENCE = re.compile(r"^(?:hora\.errors\.)?(?:PeerLostError|ShutDownError)\b")
_INTERRUPTION = re.compile(rb"^(?:KeyboardInterrupt\b|hora: this rank ends too: )", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_FEW_LINES, _MANY_LINES = 20, 60

_HINTS: dict[int, str] = {
    signal.SIGSEGV: "a crash in native code; run with PYTHONFAULTHANDLER=1 to see where",
    signal.SIGBUS: "often a full /dev/shm or a truncated file; see 'df /dev/shm'",
    signal.SIGILL: "native code built for another processor",
    signal.SIGABRT: "native code gave up; its message is usually just above",
    signal.SIGFPE: "an arithmetic fault in native code",
    signal.SIGXCPU: "its limit on CPU time; see 'ulimit -t'",
    signal.SIGXFSZ: "its limit on file size; see 'ulimit -f'",
    signal.SIGPIPE: "it wrote to a pipe that nobody reads any more",
}


def exit_code(returncode: int) -> int:
    """What a shell would report.

    >>> exit_code(7), exit_code(-9)
    (7, 137)
    """
    return returncode if returncode >= 0 else 128 - returncode


def is_consequence(tail: Tail) -> bool:
    """Whether a worker's last words say that it lost another one. (Which lines are a message and which a traceback
    cannot be told: the message may quote the other one's traceback.)"""
    return any(map(_CONSEQUENCE.match, tail.lines("stderr")))


def is_interruption(said: bytes) -> bool:
    """Whether a worker's last words only say that it was interrupted, or that it lost one that was.

    >>> is_interruption(b"Traceback (most recent call last):\\nKeyboardInterrupt\\n"), is_interruption(b"OSError: full")
    (True, False)
    """
    return bool(_INTERRUPTION.search(said)) or any(
        map(_CONSEQUENCE.match, said.decode("utf-8", "replace").splitlines())
    )


def first_failure(endings: Sequence[Ending], tails: Mapping[int, Tail]) -> Ending | None:
    """The failure that caused the others; ``endings`` are in the order they were seen."""
    failed = [ending for ending in endings if ending.failed]
    causes = [ending for ending in failed if not ending.stopped and not is_consequence(tails[ending.rank])]
    for candidates in (causes, [ending for ending in failed if not ending.stopped], failed):
        if candidates:
            return candidates[0]
    return None


def explain(
    first: Ending, endings: Sequence[Ending], tail: Tail | None, last_words: Mapping[int, bytes] | None = None
) -> tuple[str, list[str]]:
    """A title and the lines under it. ``last_words`` are those that nobody has seen yet; without a ``tail`` its last
    lines have just been seen."""
    said = last_words or {}
    if first.lost:
        return _explain_loss(first, endings)
    process = f", pid {first.pid}" if first.pid else ""
    where = f"host {first.host}{process}" if first.rank >= 0 else f"{first.host} does not say which rank failed"
    lines = [f"{where}, {_cause(first)}, after {first.seconds:.1f} s"]
    others = [ending for ending in endings if ending.rank != first.rank]
    if others:
        lines.append("the others: " + _others(others, {e.rank: _beside(e.rank, first.rank, said) for e in others}))
    if first.rank in said:
        lines += ["", *_shortened(said[first.rank].decode("utf-8", "replace").splitlines())]
    elif tail is None:
        pass
    elif words := _last_words(tail, raised=first.returncode > 0):
        lines += ["", "its last lines:", *words]
    else:
        lines += ["", "it printed nothing"]
    who = f"rank {first.rank}" if first.rank >= 0 else "the job"
    return f"{who} failed first" if others else f"{who} failed", lines


def show(title: str, lines: Sequence[str], stream: TextIO) -> None:
    """A box: drawn by rich on a terminal; plain ASCII, with a bar at the left only, in a log."""
    if stream.isatty():
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        panel = Panel(Text("\n".join(lines)), title=f"[bold red]hora: {title}", title_align="left", border_style="red")
        Console(file=stream).print(panel)
        return
    width = 100
    box = [f"+-- hora: {title} ".ljust(width, "-"), *(f"| {line}".rstrip() for line in lines), "+" + "-" * (width - 1)]
    text = "\n".join(box) + "\n"
    stream.write(text.encode(stream.encoding or "ascii", "backslashreplace").decode(stream.encoding or "ascii"))
    stream.flush()


def _explain_loss(first: Ending, endings: Sequence[Ending]) -> tuple[str, list[str]]:
    gone = [ending for ending in endings if ending.host == first.host and ending.lost]
    others = [ending for ending in endings if ending not in gone]
    ranks = ", ".join(str(ending.rank) for ending in sorted(gone))
    lines = [f"{first.lost}, after {first.seconds:.1f} s", f"{'rank' if len(gone) == 1 else 'ranks'} {ranks} ran there"]
    if others:
        lines.append("the others: " + _others(others))
    return f"host {first.host} was lost", lines


def _cause(ending: Ending) -> str:
    text, oom_kills = how_it_ended(ending.returncode), ending.oom_kills
    if ending.returncode >= 0:
        return text
    if ending.returncode == -signal.SIGKILL:
        if oom_kills:
            return f"killed by {text}: out of memory (the kernel killed {oom_kills} for that during this job)"
        if oom_kills is None:
            return f"killed by {text}: probably out of memory"
        return f"killed by {text}: by someone, by a batch system, or probably out of memory in a container"
    hint = _HINTS.get(-ending.returncode)
    return f"killed by {text}" + (f": {hint}" if hint else "")


def adds_nothing(rank: int, first: int, last_words: Mapping[int, bytes]) -> bool:
    """Whether a rank's last words are those of the first that failed, or say that it has lost that one."""
    return bool(_beside(rank, first, last_words)) or rank == first


def _beside(rank: int, first: int, last_words: Mapping[int, bytes]) -> str:
    """What a rank's last words are beside those of the first that failed; empty if they are of their own."""
    if (said := last_words.get(rank)) is None:
        return ""
    if said == last_words.get(first):
        return ", saying the same"
    return ", because of that" if any(map(_CONSEQUENCE.match, said.decode("utf-8", "replace").splitlines())) else ""


def _others(endings: Sequence[Ending], beside: Mapping[int, str] | None = None) -> str:
    """How the other ranks ended, alike ones together.

    >>> _others([Ending(2, "h", 1, -15, 1.0, True, 0.0, 0), Ending(1, "h", 1, 0, 1.0, False, 0.0, 0)])
    'rank 1 finished; rank 2 stopped by Hora'
    """
    alike: dict[str, list[int]] = {}
    for ending in sorted(endings):
        ended = "stopped by Hora" if ending.stopped and not ending.lost else ending.how
        how = (ended if ending.failed else "finished") + (beside or {}).get(ending.rank, "")
        alike.setdefault(how, []).append(ending.rank)
    parts = []
    for how, ranks in alike.items():
        named = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        parts.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {named} {how}")
    return "; ".join(parts)


def _last_words(tail: Tail, raised: bool) -> list[str]:
    """The last lines; after an exception those on stderr, back to the start of its traceback however long that is."""
    errors = tail.lines("stderr")
    starts = [index for index, line in enumerate(errors) if line.startswith(_TRACEBACK)]
    if raised and starts:
        lines = errors[min(starts[-1], max(0, len(errors) - _FEW_LINES)) :]
    else:
        lines = tail.lines("stdout", "stderr")[-_FEW_LINES:]
    return _shortened(lines)


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) > _MANY_LINES:
        half = _MANY_LINES // 2
        lines = [*lines[:half], f"... {len(lines) - 2 * half} lines left out ...", *lines[-half:]]
    return lines
