"""Lines about a start: for those who want them, and for everybody when it takes long."""

from __future__ import annotations

from hora.launch.ways.stages import StartStages


def test_a_quick_start_is_not_announced() -> None:
    said: list[str] = []
    announced: list[str] = []
    stages = StartStages(said.append, announced.append)
    stages.tell("starting")
    stages.step()
    stages.settle()
    stages.tell("in init")
    stages.step()
    assert (said, announced) == (["starting", "in init"], [])


def test_a_long_start_is_announced_from_its_beginning_to_its_end() -> None:
    announced: list[str] = []
    stages = StartStages(lambda line: None, announced.append, long_s=0.0)
    stages.tell("starting")
    stages.tell("h1 connected")
    stages.step()
    stages.settle()
    stages.tell("in init")
    stages.step()
    assert announced == ["starting", "h1 connected", "in init"]
