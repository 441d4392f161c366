"""Orders: what is understood, and that everything else is refused in one sentence that names it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.errors import UsageError
from hora.launch.submit import BatchJob, order
from hora.launch.submit.order import Stage


@given(st.integers(1, 10**7))
def test_times_are_read_in_every_form(seconds: int) -> None:
    days, rest = divmod(seconds, 86400)
    hours, minutes, left = rest // 3600, rest // 60 % 60, rest % 60
    assert order.parse_time(f"{days}-{hours:02}:{minutes:02}:{left:02}") == seconds
    assert order.parse_time(f"{days}d{hours}h{minutes}m{left}s") == seconds
    assert order.parse_time(f"{seconds // 3600}:{minutes:02}:{left:02}") == seconds
    assert order.parse_time(f"{seconds // 60}:{left:02}") == seconds


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (order.parse_time, text) for text in ("", "0", "soon", "4x", "-1", "1:2:3:4", "h", "1e3")
    ] + [
        (order.parse_mem, text) for text in ("", "lots", "-1G", "4 Q", "1..5G")
    ] + [
        (order.parse_warn, text) for text in ("", "KILL@10", "USR1@", "USR1@0", "USR1@99999", "12@x")
    ] + [
        (order.parse_stage, text) for text in ("", ":x", "a:", "a:b/c", "a:..", "a:b c", "/")
    ] + [
        (order.parse_env, text) for text in ("", "A", "=x", "1A=x", "A B=x", "A-B=c")
    ] + [
        (order.split_words, "--resume 'x")
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(read: Any, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(text.lower() if read is order.parse_time else text))):
        read(text)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"command": ()}, "no command"),
        ({"name": "a b"}, "--job-name 'a b'"),
        ({"queue": "x\n#SBATCH --uid=0"}, "--partition"),
        ({"account": "$(id)"}, "--account"),
        ({"output": "my logs/"}, "--output"),
        ({"directives": ("a\nb",)}, "--directive"),
        ({"gpus_per_node": "many"}, "--gpus-per-node 'many'"),
        ({"gpus_per_node": "0"}, "--gpus-per-node '0'"),
        ({"array": "1-"}, "--array '1-'"),
        ({"array": "9-0"}, "--array '9-0' has no task"),
        ({"array": "0-4:0"}, "--array '0-4:0' has no task"),
        ({"epochs_per_job": 10, "chain": 2}, "{epochs}"),
        ({"epochs_per_job": 10, "command": ("x", "{epochs}")}, "--chain"),
        ({"checkpoint_args": ("--resume",)}, "--chain N or --requeue"),
        ({"stage": (Stage("a.tar", "a"),)}, "{stage}"),
        ({"stage": (Stage("a.tar", "a"), Stage("b", "a")), "command": ("x", "{stage}")}, "same name"),
        ({"command": ("a\0b",)}, "NUL"),
        ({"command": ("hora", "lab", "scaling", "mnist"), "launcher": "srun"}, "starts its own workers"),
        ({"elastic": (1, 3), "nodes": 2}, "the job has 2 x 1 tasks"),
        ({"elastic": (1, 2), "nodes": 2, "launcher": "srun"}, "--elastic needs hora run"),
        (
            {"elastic": (1, 2), "tasks_per_node": 2, "container": "/i/h", "container_runtime": "slurm"},
            "with --container /i/h on 1 x 2 srun starts a container for each",
        ),
        ({"elastic": (1, 2), "nodes": 2, "command": ("hora", "lab", "scaling")}, "--elastic is for training"),
    ],
)
def test_orders_that_make_no_sense_are_refused(more: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=re.escape(named)):
        BatchJob(**{"command": ("x",), "name": "x", **more})


@pytest.mark.parametrize(
    ("output", "array", "expected"),
    [
        ("", "", "logs/%x-2x4-%j.log"),
        ("", "0-9", "logs/%x-2x4-%A_%a.log"),
        ("runs/lr0.1/", "", "runs/lr0.1/%x-2x4-%j.log"),
        ("/", "", "//%x-2x4-%j.log"),
        ("runs/%x.out", "", "runs/%x.out"),
    ],
)
def test_output_tells_the_experiment(output: str, array: str, expected: str) -> None:
    asked = BatchJob(command=("x",), name="x", nodes=2, tasks_per_node=4, output=output, array=array)
    assert asked.output_pattern == expected


@given(st.lists(st.text(), min_size=1))
def test_every_command_has_a_name_that_schedulers_take(command: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", order.name_of(command))
