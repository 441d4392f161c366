"""The table of flags: every one reaches the setting it names, from the command line and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hora.cli import flags
from hora.config import env
from hora.errors import EnvironmentUnfit, UsageError

CONFIG = """
controller = "gloo"
[params]
fusion_threshold_mb = 32
cycle_time_ms = 2.5
cache_capacity = 7
hierarchical_allreduce = true
[autotune]
enabled = true
[timeline]
filename = "t.json"
mark_cycles = true
[stall_check]
enabled = false
warning_time_seconds = 9
[library_options]
gloo_timeout_seconds = 12
thread_affinity = 1
[logging]
level = "info"
with_timestamp = false
"""


def test_every_flag_sets_a_known_variable() -> None:
    known = {variable.name for variable in env.VARIABLES}
    assert {flag.variable for flag in flags.FLAGS} <= known
    assert len({flag.key for flag in flags.FLAGS}) == len(flags.FLAGS)


def test_parameter_names_are_clicks() -> None:
    assert [flag.parameter for flag in flags.FLAGS] == [option.name for option in flags.options()]


def test_a_file_becomes_settings(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(CONFIG)
    values = flags.read_config_file(file)
    assert values["controller"] == "gloo"
    settings = env.settings(flags.environment_of({}, values))
    assert settings.fusion_bytes == 32 << 20
    assert settings.cycle_time_ms == 2.5
    assert settings.cache_capacity == 7
    assert (settings.timeline, settings.timeline_mark_cycles) == ("t.json", True)
    assert (settings.stall_check, settings.stall_warn_s) == (False, 9.0)
    assert (settings.gloo_timeout_s, settings.thread_affinity) == (12.0, (1,))
    assert (settings.log_level, settings.log_hide_time) == ("info", True)


def test_a_flag_beats_the_file() -> None:
    given = {"cycle_time_ms": 1.0, "stall_check": True}
    environment = flags.environment_of(given, {"params.cycle_time_ms": 9.0, "stall_check.enabled": False})
    settings = env.settings(environment)
    assert settings.cycle_time_ms == 1.0 and settings.stall_check
    assert environment["HOROVOD_CYCLE_TIME"] == "1.0", "scripts may read Horovod's name"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[params]\nfusion = 3", "params.fusion"),
        ("dance = 3", "dance"),
        ("[params]\ncycle_time_ms = 'fast'", "'fast'"),
        ("[params]\ncache_capacity = -1", "-1"),
        ("controller = 'pigeon'", "pigeon"),
        ("[params", "not valid"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        flags.read_config_file(file)
    assert named in str(caught.value) and "c.toml" in str(caught.value)


def test_yaml_needs_pyyaml_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("params:\n  cycle_time_ms: 4\n")
    try:
        values = flags.read_config_file(file)
    except EnvironmentUnfit as error:
        assert "pip install pyyaml" in str(error) and "TOML" in str(error)
    else:
        assert values == {"params.cycle_time_ms": 4.0}
