"""A torch without its compiler, for the workers that tests start by the hundred.

Every optimizer imports torch._dynamo, which takes as long as torch itself, only to be left alone by it. Nothing of Hora
asks for it; a test that compiles brings the ``whole_torch`` first.
"""

from __future__ import annotations

import importlib
import sys

# Put before the import of torch, in the text of a worker.
LIGHT_TORCH = """
import sys, types
sys.modules["torch._dynamo"] = dynamo = types.ModuleType("torch._dynamo")
dynamo.spared = []
dynamo.disable = lambda function, *args, **more: dynamo.spared.append(function) or function
dynamo.graph_break = lambda: None
dynamo.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
"""


def light_torch() -> None:
    """The same, in a process that is one worker; never in the test process."""
    exec(LIGHT_TORCH, {})


def whole_torch() -> None:
    """Bring what was left out, if it was."""
    name = "torch._dynamo"
    if hasattr(sys.modules.get(name), "spared"):
        for function in sys.modules.pop(name).spared:
            del function.__dynamo_disable  # where torch remembers it
        importlib.import_module(name)
