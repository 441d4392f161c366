"""Every public signature of Horovod 0.28.1 is Hora's too: the same parameters and defaults, in the same order.

Hora may have more parameters after them, if they need not be given; and from the twelfth on, which nobody gives by
position, only names count. ``horovod_0_28_1.txt`` is the frozen list.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hora
from hora.ops.dialects import DIALECTS, signatures

FROZEN = Path(__file__).with_name("horovod_0_28_1.txt")
SHIM = Path(hora.__file__).parent / "as_horovod"

# Keras's to call, with arguments of its own.
LEFT_OUT = {"SyncBatchNormalization.call"}

BY_POSITION = 12

# On purpose: Horovod's allreduce(op=Sum) of this module raises, because average is True already; and run() without a
# number starts as many as the hosts have slots, if hosts are given.
OTHER_DEFAULTS = {("horovod.keras", "allreduce", "average"), ("horovod", "run", "num_proc")}


def frozen() -> dict[str, list[str]]:
    modules: dict[str, list[str]] = {}
    for line in FROZEN.read_text().splitlines():
        if line.startswith("["):
            lines = modules.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return modules


def arguments(signature: str) -> tuple[str, ast.arguments]:
    name, _, rest = signature.partition("(")
    (function,) = ast.parse(f"def f({rest}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return name, function.args


LOOK = """
import importlib, inspect, json, sys

def default(value):
    return "required" if value is inspect.Parameter.empty else repr(value)

found = {}
for module, names in json.loads(sys.argv[1]).items():
    place = importlib.import_module(module)
    for name in names:
        thing = place
        for part in name.split("."):
            thing = getattr(thing, part, None)
        if thing is None:
            continue
        shown = [p for p in inspect.signature(thing).parameters.values() if p.name != "self"]
        usual = {said: getattr(place, said, None) for said in ("Average", "global_process_set")}
        usual["Compression.none"] = getattr(getattr(place, "Compression", None), "none", None)
        names_of = {id(value): said for said, value in usual.items() if value is not None}
        found[f"{module}:{name}"] = [
            [p.name, p.kind.name, names_of.get(id(p.default)) or default(p.default)] for p in shown
        ]
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, list[list[str]]]:
    wanted: dict[str, list[str]] = {}
    for module, said in frozen().items():
        if module not in ("basics", "horovod.mxnet"):  # the latter is not installed everywhere
            wanted[module] = [line.partition("(")[0] for line in said]
    for module in FRONT_ENDS:
        wanted[module] += [line.partition("(")[0] for line in frozen()["basics"]]
    done = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps(wanted)],
        env={"PYTHONPATH": f"{SHIM}:{SHIM.parents[1]}", "PATH": "", "KERAS_BACKEND": "tensorflow"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, list[list[str]]] = json.loads(done.stdout.partition("FOUND")[2])
    return answer


FRONT_ENDS = ("horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras")
CASES = [
    (module, line)
    for module, lines in frozen().items()
    for line in [*lines, *(frozen()["basics"] if module in FRONT_ENDS else [])]
    if module not in ("basics", "horovod.mxnet") and line.partition("(")[0] not in LEFT_OUT
]


@pytest.mark.parametrize(("module", "line"), CASES, ids=lambda text: text.partition("(")[0])
def test_a_signature_is_horovods(found: dict[str, list[list[str]]], module: str, line: str) -> None:
    name, wanted = arguments(line)
    ours = found[f"{module}:{name}"]
    assert compare(module, name, wanted, ours) == []


def compare(module: str, name: str, wanted: ast.arguments, ours: list[list[str]]) -> list[str]:
    """What a call that Horovod takes would meet here."""
    problems = []
    plain = [each for each in ours if each[1] in ("POSITIONAL_OR_KEYWORD", "POSITIONAL_ONLY")]
    takes_any = {each[1] for each in ours if each[1].startswith("VAR_")}
    offset = len(wanted.args) - len(wanted.defaults)
    for place, argument in enumerate(wanted.args):
        default = None if place < offset else ast.unparse(wanted.defaults[place - offset])
        if place >= BY_POSITION:
            if argument.arg not in [each[0] for each in ours] and not takes_any:
                problems.append(f"{argument.arg} is missing")
            continue
        if place >= len(plain):
            if not takes_any:
                problems.append(f"{argument.arg} is missing")
            continue
        said, _, shown = plain[place]
        if said != argument.arg:
            problems.append(f"argument {place + 1} is {said}, Horovod's {argument.arg}")
        elif default is not None and (module, name, said) not in OTHER_DEFAULTS and not same(default, shown):
            problems.append(f"{said} is {shown} unless given, Horovod's {default}")
    for said, _, shown in plain[len(wanted.args) :]:
        if shown == "required":
            problems.append(f"{said} must be given, which Horovod does not know")
    any_wanted = (wanted.vararg, "VAR_POSITIONAL"), (wanted.kwarg, "VAR_KEYWORD")
    if any(wants and kind not in takes_any for wants, kind in any_wanted):
        problems.append("Horovod's takes any arguments")
    return problems


def same(wanted: str, shown: str) -> bool:
    # No compressor and no reduce operation given mean none and Average.
    return wanted == shown or (shown == "None" and wanted in ("Compression.none", "Average"))


def test_mxnet_has_horovods_signatures() -> None:
    """Its functions are made from a dialect, which can be read where MXNet is not installed."""
    made = {each.name: each for each in signatures(DIALECTS["mxnet"])}
    for line in frozen()["horovod.mxnet"]:
        name, wanted = arguments(line)
        if name in made:
            ours = [[a.name, "POSITIONAL_OR_KEYWORD", a.default or "required"] for a in made[name].arguments]
            ours = [[a, kind, default.replace("ReduceOp.AVERAGE", "Average")] for a, kind, default in ours]
            assert compare("horovod.mxnet", name, wanted, ours) == []
