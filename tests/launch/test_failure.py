"""Fifty ways for a worker to fail: the right rank is named, its words are shown, its exit code is ours."""

from __future__ import annotations

import pytest
from tests.launch.jobs import python, rest_of, run_hora, start_hora

# (name, what rank 1 does, exit code, what the report must say). Rank 0 ends well, at once.
KINDS: list[tuple[str, str, int, str]] = [
    ("exception", "raise ValueError('boom')", 1, "ValueError: boom"),
    ("chained", "try:\n  1/0\nexcept Exception as e:\n  raise KeyError('k') from e", 1, "KeyError: 'k'"),
    ("group", "raise ExceptionGroup('many', [ValueError(1), OSError(2)])", 1, "ExceptionGroup: many"),
    ("assertion", "assert 1 == 2, 'sums differ'", 1, "AssertionError: sums differ"),
    ("division", "1/0", 1, "ZeroDivisionError"),
    ("missing file", "open('/nowhere/at/all')", 1, "FileNotFoundError"),
    ("missing module", "import nothing_of_that_name", 1, "ModuleNotFoundError"),
    ("missing name in module", "from os import nothing_of_that_name", 1, "ImportError"),
    ("syntax", "compile('a b', 'bad.py', 'exec')", 1, "SyntaxError"),
    ("unprintable", "class E(Exception):\n  def __str__(self): 1/0\nraise E", 1, "<exception str() failed>"),
    ("recursion", "f = lambda: f()\nf()", 1, "RecursionError"),
    ("deep traceback", "def f(n):\n  return f(n - 1) if n else [][0]\nf(300)", 1, "IndexError"),
    ("ascii only", "sys.stdout.reconfigure(encoding='ascii'); print('\\u00e9')", 1, "UnicodeEncodeError"),
    ("memory", "resource.setrlimit(resource.RLIMIT_AS, (1 << 28,) * 2); bytes(1 << 30)", 1, "MemoryError"),
    ("called process", "subprocess.run(['false'], check=True)", 1, "CalledProcessError"),
    ("cannot exec", "os.execvp('/nowhere/at/all', ['x'])", 1, "FileNotFoundError"),
    ("not an exception", "raise 3", 1, "TypeError"),
    ("exit 7", "sys.exit(7)", 7, "exit code 7"),
    ("exit text", "sys.exit('cannot go on')", 1, "cannot go on"),
    ("exit 255", "sys.exit(255)", 255, "exit code 255"),
    ("exit from a thread", "threading.Thread(target=os._exit, args=(5,)).start(); time.sleep(30)", 5, "exit code 5"),
    ("exit at exit", "atexit.register(os._exit, 4)", 4, "exit code 4"),
    ("hard exit", "print('bye'); os._exit(9)", 9, "bye"),
    ("silent", "os._exit(1)", 1, "printed nothing"),
    ("child's code", "sys.exit(os.waitstatus_to_exitcode(os.system('exit 6')))", 6, "exit code 6"),
    ("interrupted", "raise KeyboardInterrupt", 130, "signal 2 (SIGINT)"),
    ("abort", "os.abort()", 134, "signal 6 (SIGABRT)"),
    ("null pointer", "import ctypes; ctypes.string_at(0)", 139, "signal 11 (SIGSEGV): a crash in native code"),
    ("fault handler", "faulthandler.enable(); faulthandler._sigsegv()", 139, "Fatal Python error: Segmentation fault"),
    ("alarm", "signal.alarm(1); time.sleep(30)", 142, "signal 14 (SIGALRM)"),
    ("cpu limit", "resource.setrlimit(resource.RLIMIT_CPU, (1, 9))\nwhile True: pass", 152, "limit on CPU time"),
    *(
        (name, f"signal.signal(signal.{name}, signal.SIG_DFL); os.kill(os.getpid(), signal.{name})", 128 + number, name)
        for name, number in (
            ("SIGHUP", 1), ("SIGQUIT", 3), ("SIGILL", 4), ("SIGTRAP", 5), ("SIGBUS", 7), ("SIGFPE", 8), ("SIGUSR1", 10),
            ("SIGUSR2", 12), ("SIGPIPE", 13), ("SIGTERM", 15), ("SIGSYS", 31),
        )
    ),
    ("killed", "os.kill(os.getpid(), 9)", 137, "signal 9 (SIGKILL): "),
    ("real-time signal", "os.kill(os.getpid(), signal.SIGRTMIN + 3)", 165, "signal 37"),
    ("not utf-8", "os.write(2, b'caf\\xe9 \\x00\\n'); sys.exit(3)", 3, "caf"),
    ("no line end", "os.write(1, b'half a line'); os._exit(3)", 3, "half a line"),
    ("very long line", "os.write(1, b'x' * 300_000 + b'end'); os._exit(3)", 3, "xxx"),
    ("flood", "for n in range(20_000): print('noise', n, file=sys.stderr)\nraise OSError('last')", 1, "OSError: last"),
    ("progress bar", "for n in range(500): print(n, end='\\r')\nsys.exit('after 499')", 1, "after 499"),
    ("closed stdout", "os.close(1); raise ValueError('mute')", 1, "ValueError: mute"),
    ("closed both", "os.close(1); os.close(2); os._exit(8)", 8, "exit code 8"),
    ("grandchild holds the pipes", "subprocess.Popen(['sleep', '60']); os._exit(3)", 3, "exit code 3"),
    ("escaped grandchild holds them", "subprocess.Popen(['sleep', '60'], start_new_session=True); os._exit(3)", 3, "3"),
    ("daemon holds them", "if os.fork() == 0:\n  os.setsid()\n  os.fork() or time.sleep(60)\nos._exit(3)", 3, "3"),
]  # fmt: skip

PRELUDE = """
import atexit, faulthandler, os, resource, signal, subprocess, sys, threading, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if os.environ["HORA_RANK"] == "0":
    sys.exit()
"""


def test_there_are_fifty() -> None:
    assert len(KINDS) >= 50


@pytest.mark.parametrize(("program", "code", "said"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS])
def test_kind(program: str, code: int, said: str) -> None:
    done = run_hora("run", "-np", "2", *python(PRELUDE + program), timeout_s=20)
    report = done.stderr[done.stderr.index("+-- hora:") :]
    assert done.returncode == code
    assert report.startswith("+-- hora: rank 1 failed first")
    assert said in report
    assert "rank 0 finished" in report


@pytest.mark.parametrize("command", [["sh", "-c", "exit 3"], ["sh", "-c", "no_such_program"], ["false"]])
def test_commands_that_are_not_python(command: list[str]) -> None:
    done = run_hora("run", "-np", "1", *command)
    assert done.returncode == {"exit 3": 3, "no_such_program": 127}.get(command[-1], 1)
    assert "+-- hora: rank 0 failed -" in done.stderr


def test_peers_get_a_second_to_speak_then_are_stopped() -> None:
    program = """
import os, signal, sys, time
if os.environ["HORA_RANK"] == "1":
    sys.exit(5)
signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
time.sleep(30)
"""
    done = run_hora("run", "-np", "3", *python(program))
    assert done.returncode == 5
    assert "rank 1 failed first" in done.stderr
    assert "[0]<stderr>:told to stop" in done.stderr and "[2]<stderr>:told to stop" in done.stderr
    assert "ranks 0, 2 stopped by Hora" in done.stderr


def test_a_peer_that_ignores_sigterm_or_is_stopped_is_killed() -> None:
    program = """
import os, signal, sys, time
rank = os.environ["HORA_RANK"]
if rank == "0":
    sys.exit(5)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
"""
    done = run_hora("run", "-np", "3", *python(program))
    assert done.returncode == 5
    assert "ranks 1, 2 stopped by Hora" in done.stderr


def test_the_cause_is_named_even_when_its_victims_end_before_it() -> None:
    """Rank 0 lost rank 1, says so and ends; rank 1, whose fault it is, takes longer to end than the usual second."""
    program = """
import os, sys, time
if os.environ["HORA_RANK"] == "0":
    sys.exit("hora.errors.ShutDownError: rank 1 left")
print("ValueError: mine", file=sys.stderr)
time.sleep(1.8)
sys.exit(6)
"""
    done = run_hora("run", "-np", "2", *python(program))
    assert done.returncode == 6
    assert "rank 1 failed first" in done.stderr and "ValueError: mine" in done.stderr


@pytest.mark.parametrize(
    ("leave", "code"),
    [("raise ValueError('mine')", 1), ("os.kill(os.getpid(), 9)", 137), ("sys.exit(4)", 4), ("os._exit(4)", 4)],
)
def test_the_cause_is_named_when_peers_fail_in_a_collective(leave: str, code: int) -> None:
    program = f"""
import os, sys
from hora.engine import session
from hora.engine.process_set import global_process_set
session.init()
session.engine().barrier(global_process_set)
if session.rank() == 1:
    {leave}
session.engine().barrier(global_process_set)
"""
    done = run_hora("run", "-np", "3", *python(program))
    assert done.returncode == code, done.stderr
    assert "rank 1 failed first" in done.stderr
    assert "ranks 0, 2 exit code 1" in done.stderr, "peers raise by themselves, before they are stopped"


SAME = """
import sys
from hora.engine import session
session.init()
{program}
"""


@pytest.mark.parametrize(
    ("program", "said", "others"),
    [
        ("raise KeyError(7)", "KeyError: 7", "exit code 1, saying the same"),
        ("import argparse; argparse.ArgumentParser(prog='x').parse_args(['-q'])", "usage: x", "exit code 2, saying"),
        ("compile('a b', 'bad.py', 'exec')", "SyntaxError: ", "exit code 1, saying the same"),
        ("raise KeyError(7) if session.rank() else ValueError(8)", "KeyError: 7", "exit code 1"),
    ],
)
def test_what_ranks_share_is_printed_once(program: str, said: str, others: str) -> None:
    done = run_hora("run", "-np", "3", *python(SAME.format(program=program)))
    assert done.stderr.count(said) == 1 and others in done.stderr, done.stderr
    assert ("ValueError: 8" in done.stderr) == ("8" in program)


def test_a_refusal_is_printed_once_and_as_it_is() -> None:
    program = "import sys; print('hora: no.\\nReally.', file=sys.stderr); sys.exit(2)"
    done = run_hora("run", "-np", "3", *python(program))
    assert done.stderr.count("Really.") == 1


def test_who_lives_on_is_heard() -> None:
    """An exception that a worker has only printed is kept back for a while, and then shown."""
    process = start_hora(
        "run", "-np", "2", *python("import sys, traceback, time; print('usage: me', file=sys.stderr); time.sleep(60)")
    )
    assert process.stdout is not None
    try:
        said = {process.stdout.readline(), process.stdout.readline()}
        assert said == {"[0]<stderr>:usage: me\n", "[1]<stderr>:usage: me\n"}
    finally:
        process.terminate()
        rest_of(process, 60.0)
        process.stdout.close()


def test_one_workers_last_lines_are_not_repeated() -> None:
    done = run_hora("run", "-np", "1", *python("raise KeyError('nobody has it')"))
    assert done.stderr.count("KeyError") == 1 and "rank 0 failed -" in done.stderr
