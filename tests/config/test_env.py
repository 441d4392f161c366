"""The table of variables: complete, honoured under both names, and never silently wrong."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.config import env
from hora.config.settings import Settings
from hora.errors import UsageError

FIELDS = {field.name for field in msgspec.structs.fields(Settings)}

# Each variable that tunes something: a text for it, and what the field must become.
EXAMPLES = {
    "TRANSPORT": ("gloo", "gloo"),
    "CPU_OPERATIONS": ("gloo", "gloo"),
    "HIERARCHICAL_ALLREDUCE": ("0", False),
    "FUSION_THRESHOLD": ("64MB", 64 << 20),
    "DISABLE_GROUP_FUSION": ("yes", True),
    "CYCLE_TIME": ("3.5", 3.5),
    "CACHE_CAPACITY": ("0", 0),
    "SPIN_US": ("-1", -1),
    "ARENA_BYTES": ("1GiB", 1 << 30),
    "THREAD_AFFINITY": ("0,1", (0, 1)),
    "GLOO_IFACE": ("eth0", "eth0"),
    "GLOO_TIMEOUT_SECONDS": ("60", 60.0),
    "STRICT": ("on", True),
    "JOIN_AVERAGE": ("active", "active"),
    "START_TIMEOUT": ("7", 7.0),
    "HOST_TIMEOUT": ("3", 3.0),
    "STOPPED_TIMEOUT": ("0.5", 0.5),
    "STALL_CHECK_DISABLE": ("1", False),
    "STALL_CHECK_TIME_SECONDS": ("5", 5.0),
    "STALL_SHUTDOWN_TIME_SECONDS": ("0", 600.0),
    "BUCKET": ("1MB", 1 << 20),
    "SHARED_GRADIENTS": ("0", False),
    "NONFINITE": ("skip", "skip"),
    "DIVERGENCE_CHECK": ("7", 7),
    "SUMMARY": ("1", True),
    "LOG_LEVEL": ("TRACE", "trace"),
    "LOG_HIDE_TIME": ("true", True),
    "TIMELINE": ("/tmp/t.json", "/tmp/t.json"),
    "TIMELINE_MARK_CYCLES": ("1", True),
    "TIMELINE_MAX_BYTES": ("10k", 10240),
}
BAD = {
    "TRANSPORT": "carrier-pigeon",
    "CPU_OPERATIONS": "smoke",
    "HIERARCHICAL_ALLREDUCE": "deep",
    "FUSION_THRESHOLD": "64 parsecs",
    "DISABLE_GROUP_FUSION": "maybe",
    "CYCLE_TIME": "-1",
    "CACHE_CAPACITY": "1.5",
    "SPIN_US": "-2",
    "ARENA_BYTES": "-5",
    "THREAD_AFFINITY": "0,x",
    "GLOO_TIMEOUT_SECONDS": "nan",
    "STRICT": "2",
    "JOIN_AVERAGE": "some",
    "START_TIMEOUT": "inf",
    "HOST_TIMEOUT": "never",
    "STOPPED_TIMEOUT": "never",
    "STALL_CHECK_DISABLE": "no way",
    "STALL_CHECK_TIME_SECONDS": "soon",
    "STALL_SHUTDOWN_TIME_SECONDS": "-1",
    "BUCKET": "a pail",
    "SHARED_GRADIENTS": "some",
    "NONFINITE": "ignore",
    "DIVERGENCE_CHECK": "-1",
    "SUMMARY": "brief",
    "LOG_LEVEL": "loud",
    "LOG_HIDE_TIME": "sometimes",
    "TIMELINE_MARK_CYCLES": "x",
    "TIMELINE_MAX_BYTES": "MB",
}


def test_every_field_has_a_variable_and_every_variable_an_example() -> None:
    assert {variable.field for variable in env.VARIABLES if variable.field} == FIELDS
    assert {variable.name for variable in env.VARIABLES if variable.field} == set(EXAMPLES)


def test_names_are_unique() -> None:
    names = [variable.name for variable in env.VARIABLES]
    assert len(names) == len(set(names))


def test_defaults() -> None:
    assert env.settings({}) == Settings()
    assert env.settings({f"HORA_{name}": "" for name in EXAMPLES}) == Settings(), "an empty value counts as unset"


@pytest.mark.parametrize("prefix", env.PREFIXES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_variable_sets_its_field(prefix: str, name: str) -> None:
    text, expected = EXAMPLES[name]
    field = next(variable.field for variable in env.VARIABLES if variable.name == name)
    assert getattr(env.settings({prefix + name: text}), field) == expected


@pytest.mark.parametrize("name", BAD)
def test_unreadable_values_name_variable_value_and_what_is_allowed(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        env.settings({f"HOROVOD_{name}": BAD[name]})
    assert f"HOROVOD_{name}={BAD[name]!r}" in str(caught.value)
    assert "must be" in str(caught.value)


def test_hora_comes_before_horovod() -> None:
    assert env.settings({"HORA_CYCLE_TIME": "2", "HOROVOD_CYCLE_TIME": "9"}).cycle_time_ms == 2.0
    assert env.settings({"HORA_TRANSPORT": "shm", "HOROVOD_CPU_OPERATIONS": "gloo"}).transport == "shm"
    assert env.settings({"HOROVOD_CPU_OPERATIONS": "mpi"}).transport == "auto"


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for variable in env.VARIABLES:
        try:
            env.find({f"HORA_{variable.name}": text}, variable.name)
        except UsageError as error:
            assert repr(text) in str(error)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_bytes_are_read_back(count: int) -> None:
    assert env.settings({"HORA_FUSION_THRESHOLD": str(count)}).fusion_bytes == count
    assert env.settings({"HORA_FUSION_THRESHOLD": f"{count}K"}).fusion_bytes == count * 1024


def test_reference_lists_every_variable() -> None:
    page = env.reference()
    assert all(f"| `{variable.name}` |" in page for variable in env.VARIABLES)
