"""What an elastic job makes of a discovery script that prints too much, lingers, or talks nonsense."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest
from tests.prompt import PROMPT_S

from hora.errors import EnvironmentUnfit
from hora.launch.elastic.hosts import HostScript


def script(folder: Path, text: str) -> str:
    path = folder / "hosts.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def is_gone(pid: int) -> bool:
    """Within a while: a killed process may take a moment to be reaped by whoever inherits it."""
    deadline = time.monotonic() + PROMPT_S
    while time.monotonic() < deadline:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_script_that_does_not_stop_printing_is_ended_and_not_kept(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EnvironmentUnfit, match=r"printed more than 1 MB\. Without it"):
        HostScript(script(tmp_path, f"echo $$ >{tmp_path}/pid; exec yes"))()
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 100 << 10, grown_kb
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_errors_without_end_are_not_kept_either_and_their_last_line_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match="exit code 3, saying: 'the last'"):
        HostScript(script(tmp_path, "head -c 3000000 /dev/zero >&2; echo >&2; echo the last >&2; exit 3"))()


@pytest.mark.parametrize("wrong", ["h2:0", "h 2", "h2:x", "x" * 400_000 + "!", "\x01\x02", "[1-"])
def test_only_the_line_that_is_wrong_is_told_cut_and_with_one_full_stop(wrong: str, tmp_path: Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_text(f"h1:2\n{wrong}\nh3\n")
    with pytest.raises(EnvironmentUnfit) as raised:
        HostScript(f"cat {listed}")()
    said = str(raised.value).removeprefix(f"--host-discovery-script 'cat {listed}' ")
    assert said.startswith(f"printed a line that is no list of hosts: {repr(wrong)[:80]}"), said
    assert ". Without it nobody knows" in said and ".." not in said, said
    assert len(said) < 350 and said.isprintable(), said


def test_hosts_without_a_number_get_the_slots_of_the_flag(tmp_path: Path) -> None:
    assert HostScript(script(tmp_path, "echo h1; echo h2:5; echo h1:2"), 3)() == {"h1": 5, "h2": 5}


def test_an_answer_counts_though_a_child_holds_the_output_open_and_the_child_is_ended(tmp_path: Path) -> None:
    asked = HostScript(script(tmp_path, f"sleep 301 & echo $! >{tmp_path}/pid; echo localhost:2"), timeout_s=60)
    assert asked() == {"localhost": 2}
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_one_that_does_not_answer_is_ended_with_its_children(tmp_path: Path) -> None:
    asked = HostScript(script(tmp_path, f"sleep 301 & echo $! >{tmp_path}/pid; exec sleep 302"), timeout_s=0.5)
    with pytest.raises(EnvironmentUnfit, match=r"did not answer within 0\.5 s\. Without it"):
        asked()
    written = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""  # else it had not come that far
    assert not written or is_gone(int(written))
