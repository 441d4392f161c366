"""``hora env``: fast, whole, without secrets."""

from __future__ import annotations

import json

from tests.cli.test_main import imported_by
from tests.launch.jobs import run_hora


def test_text_and_json() -> None:
    done = run_hora("env", HORA_SECRET="00ff00ff", HORA_LOG_LEVEL="debug")
    assert done.returncode == 0 and "00ff00ff" not in done.stdout and "HORA_LOG_LEVEL: debug" in done.stdout
    facts = json.loads(run_hora("env", "--json").stdout)
    assert facts["hora"]["version"] and facts["world"]["launcher"] == "alone"


def test_it_imports_no_framework() -> None:
    program = "from hora.cli.main import main\ntry: main(['env'])\nexcept SystemExit: pass"
    assert not imported_by(program) & {"torch", "numpy", "tensorflow", "jax", "rich"}
