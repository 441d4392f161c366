"""Carriers that are commands: fed, watched, ended; and what their last words mean."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import wait_until

from hora.errors import EnvironmentUnfit
from hora.launch.host.orders import AGENT_SAYS
from hora.launch.starters.starter import Command, explain_end


def test_it_is_fed_all_at_once(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    carrier = Command(["h1"], ["sh", "-c", f"cat > {tmp_path}/out; echo done >&2"])
    carrier.feed(data)
    wait_until(lambda: carrier.poll() is not None, what="its end")
    assert (tmp_path / "out").read_bytes() == data and carrier.said() == "done\n"
    carrier.stop()


@pytest.mark.parametrize("command", ["exec sleep 60", "trap '' TERM; while :; do sleep 1; done"])
def test_it_can_be_stopped(command: str) -> None:
    carrier = Command(["h1"], ["sh", "-c", command])
    assert carrier.poll() is None
    carrier.stop()
    assert carrier.poll() is not None


def test_a_program_that_is_missing() -> None:
    with pytest.raises(EnvironmentUnfit, match=r"'nowhere-to-be-found' could not be started.*needed to reach h1, h2"):
        Command(["h1", "h2"], ["nowhere-to-be-found"])


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (3, f"noise\n{AGENT_SAYS}h2: it rains\n", "h2: it rains"),
        (1, f"{sys.executable}: No module named hora", "Hora is not installed"),
        (1, "Traceback (most recent call last):\n  File\nImportError: x", "h2: ssh said: ImportError: x."),
        (1, "ModuleNotFoundError: No module named 'msgspec'", "Hora is not installed"),
        (127, "bash: /x/python: No such file or directory", f"{sys.executable} does not exist there"),
        (1, f"slurmstepd: error: execve(): {sys.executable}: No such file or directory", "does not exist there"),
        (255, "Host key verification failed.", "h2: ssh said: Host key verification failed."),
        (9, "", "h2: ssh ended with exit code 9 and printed nothing."),
    ],
)
def test_what_last_words_mean(code: int, said: str, told: str) -> None:
    assert told in explain_end("h2", "ssh", code, said)
