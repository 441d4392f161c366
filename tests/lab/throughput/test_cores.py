"""What others did on the machine meanwhile is said."""

from __future__ import annotations

import pytest

from hora.lab.throughput import cores


class Times(tuple[float, ...]):
    _fields = ("user", "idle", "iowait", "guest")


@pytest.mark.parametrize(("busy_s", "idle_s", "said"), [(22.0, 17.0, ""), (30.0, 9.0, "took 25 %")])
def test_a_busy_machine_is_cautioned_about(
    monkeypatch: pytest.MonkeyPatch, busy_s: float, idle_s: float, said: str
) -> None:
    """Of 40 s of the processors our own took 20."""
    times = iter([Times((100.0, 50.0, 2.0, 0.0)), Times((100.0 + busy_s, 50.0 + idle_s, 3.0, 9.0))])
    own = iter([7.0, 27.0])
    monkeypatch.setattr(cores.psutil, "cpu_times", lambda: next(times))
    monkeypatch.setattr(cores, "_own_s", lambda: next(own))
    caution = cores.LoadMonitor().caution()
    assert said in caution and bool(said) == bool(caution)


def test_hosts_that_cannot_be_asked_are_taken_to_be_like_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(cores.subprocess, "run", refuse)
    monkeypatch.setattr(cores, "cores", lambda: 8)
    assert cores.survey(4, "h1:2,h2:2") == cores.FullestHost(8, 2) and cores.survey(4, "").threads == 2


def test_the_machine_with_the_fewest_cores_a_worker_decides() -> None:
    said = "[0]:room aa 16\n[1]:room bb 4\n[2]:room bb 4\nnoise\n"
    assert cores.fullest(said) == cores.FullestHost(4, 2) and cores.fullest("nothing") is None
