"""Writes the type stubs of the front-ends' collectives, which are functions made from ``hora.ops.table``.

python docs/stubs.py            rewrite src/hora/*/collectives.pyi
python docs/stubs.py --check    change nothing; exit 1 if that would have changed something
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from hora.ops.dialects import DIALECTS, Dialect, signatures

SOURCE = Path(__file__).resolve().parents[1] / "src" / "hora"

USUAL = (
    "from collections.abc import Sequence",
    "from typing import Any",
    "from hora.engine.process_set import ProcessSet, global_process_set",
    "from hora.types import ReduceOp",
)


def stub(dialect: Dialect) -> str:
    """The stub of one front-end, as ruff would write it."""
    lines = ["# Made by docs/stubs.py from hora.ops.table and hora.ops.dialects. Do not edit.", ""]
    names = [each.name for each in signatures(dialect)]
    lines += [*USUAL, *dialect.imports, "", f"__all__ = {sorted(names)}", ""]
    lines += [each.text(f'\n    """{each.collective.summary}"""\n') for each in signatures(dialect)]
    text = "\n".join(lines)
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    for command in (["check", "--fix-only", "--select", "F401,I", "-q"], ["format", "-q"]):
        done = subprocess.run(
            [ruff, *command, "--stdin-filename", str(SOURCE / "collectives.pyi"), "-"],
            input=text, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        text = done.stdout
    return text


def main() -> None:
    stale = []
    for framework, dialect in DIALECTS.items():
        path, text = SOURCE / framework / "collectives.pyi", stub(dialect)
        if not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(SOURCE.parents[1])))
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale and "--check" in sys.argv:
        sys.exit(f"not current: {', '.join(stale)}. Run: python docs/stubs.py")


if __name__ == "__main__":
    main()
