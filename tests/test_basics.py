"""Every front-end offers all of ``hora.basics`` and every error, without saying their names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hora import basics, errors

SOURCE = Path(basics.__file__).parent


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "keras", "mxnet"])
def test_a_front_end_takes_all_of_it(framework: str) -> None:
    """Read, not run: not every framework is installed everywhere."""
    tree = ast.parse((SOURCE / framework / "__init__.py").read_text())
    stars = [node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
    assert {"hora.basics", "hora.errors"} <= set(stars)
    said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not said & set(basics.__all__)


def test_basics_have_every_error() -> None:
    assert set(errors.__all__) < set(basics.__all__)
    assert len(basics.__all__) == len(set(basics.__all__))
    assert all(hasattr(basics, name) for name in basics.__all__)
