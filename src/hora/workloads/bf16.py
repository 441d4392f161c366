"""Whether this machine computes in bfloat16. Some processors announce it and do not have it: above all AMX in virtual
machines, where a linear layer ends its process by SIGILL or finds no kernel. So a small step is tried in a process of
its own before workers start, and again without AMX if that failed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from signal import Signals
from typing import NamedTuple

from hora.errors import EnvironmentUnfit
from hora.workloads.options import WorkloadOptions

__all__ = ["HELPS", "PROGRAMS", "Bf16Support", "examine", "settings", "try_out"]

# What is known to help: oneDNN, which torch and TensorFlow compute with, leaves AMX alone; TensorFlow, oneDNN.
_WITHOUT_AMX = {"DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}
HELPS = {"torch": (_WITHOUT_AMX,), "keras": (_WITHOUT_AMX, {"TF_ENABLE_ONEDNN_OPTS": "0"})}
_DEADLINE_S = 120.0  # on a busy machine; a quiet one needs 2, for Keras 8

# A convolution, a linear layer and their gradients, which must be about those of float32. What is not installed is for
# others to say. Nothing is left behind, not even a core file.
_TORCH = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    import torch
except ImportError:
    sys.exit()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 64)).to(device)
found, images = [], torch.randn(32, 3, 8, 8, device=device)
for dtype in (torch.float32, torch.bfloat16):
    model.zero_grad()
    with torch.autocast(device, torch.bfloat16, enabled=dtype is torch.bfloat16):
        output = model(images)
    output.float().square().mean().backward()
    found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
error = ((found[1] - found[0]).norm() / found[0].norm()).item()
assert error < 0.1, f"gradients in bfloat16 are wrong by {error:.0%}"
"""
_KERAS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    import keras, numpy
except ImportError:
    sys.exit()
keras.config.set_dtype_policy("mixed_bfloat16")
layers = keras.layers
model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(64)])
model.compile("sgd", "mse")
loss = model.fit(numpy.ones((32, 8, 8, 3), "float32"), numpy.ones((32, 64), "float32"), verbose=0).history["loss"][0]
assert loss == loss, "the loss is not a number"
"""
PROGRAMS = {"torch": _TORCH, "keras": _KERAS}
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


class Bf16Support(NamedTuple):
    """``wrong`` is how it failed, empty if it did not; ``variables`` are those with which it works, None if it never
    does."""

    wrong: str
    variables: dict[str, str] | None


def examine(framework: str, attempt: Callable[[dict[str, str]], str], environ: Mapping[str, str]) -> Bf16Support:
    """Try as it is, then as it is known to help; ``attempt`` says what went wrong with these variables set besides.
    What the user has set is left as it is.

    >>> examine("torch", lambda more: "" if more else "ended by SIGILL", {})
    Bf16Support(wrong='ended by SIGILL', variables={'DNNL_MAX_CPU_ISA': 'AVX512_CORE_BF16'})
    >>> examine("torch", lambda more: "" if more else "ended by SIGILL", {"DNNL_MAX_CPU_ISA": "ALL"}).variables is None
    True
    """
    wrong = attempt({})
    if not wrong:
        return Bf16Support("", {})
    free = (help for help in HELPS[framework] if not help.keys() & environ.keys())
    return Bf16Support(wrong, next((help for help in free if not attempt(help)), None))


def try_out(framework: str, environ: Mapping[str, str]) -> Bf16Support:
    """Compute a little in bfloat16 with a framework, in a process with these variables."""
    return examine(framework, lambda more: _attempt(PROGRAMS[framework], {**environ, **_QUIET, **more}), environ)


def settings(options: WorkloadOptions, environ: Mapping[str, str], say: Callable[[str], None]) -> dict[str, str]:
    """The variables that workers need to compute in the chosen precision; ``say`` reports them. Raises if there
    are none.

    >>> settings(WorkloadOptions(), {}, print)
    {}
    """
    if options.precision != "bf16":
        return {}
    wrong, variables = try_out(options.framework, environ)
    if variables is None:
        known = {name: value for help in HELPS[options.framework] for name, value in help.items()}
        yours = _text({name: environ[name] for name in known if name in environ})
        fails = f"this processor does not compute in bfloat16: a small training step failed ({wrong})"
        raise EnvironmentUnfit(
            f"--precision bf16: with {yours} {fails}. Unset that, or train with --precision float32."
            if yours
            else f"--precision bf16: {fails}, also with {_text(known)}. Train with --precision float32."
        )
    if variables:
        announced = f"this processor reports bfloat16, but it does not work ({wrong})"
        say(f"{announced}; with {_text(variables)} it works, so that is set for this run")
    return variables


def _attempt(program: str, environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_DEADLINE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:  # which says nothing about arithmetic
        return ""
    if done.returncode < 0:
        return f"ended by {Signals(-done.returncode).name}"
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""


def _text(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())
