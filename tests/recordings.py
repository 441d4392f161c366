"""`python -m tests.recordings`: what each command shows on a terminal of 80 columns, written to docs/terminal.md.

Every command is run here, in an empty folder, on a pseudo-terminal; what is recorded is what is left on the screen.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.launch.jobs import on_terminal
from tests.screen import screen

__all__ = ["SCRIPTS", "main"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "terminal.md"
SCRIPTS = {
    "shapes.py": """\
import torch
import hora.torch as hvd

hvd.init()
mine = torch.ones(2 + hvd.rank())
hvd.allreduce(mine, name="mine")
""",
    "uneven.py": """\
import torch
import hora.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 2)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for batch in range(10 + hvd.rank()):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
""",
}


class Recording(NamedTuple):
    line: str  # what is typed after `hora`
    says: str
    lines: int = 40  # that are shown at most


RECORDINGS = (
    Recording("", "All commands."),
    Recording("trian mnist", "A typing mistake."),
    Recording("doctor --only processor", "What works on this machine, or a part of the checks."),
    Recording("train mnist -np 2", "Missing data."),
    Recording("data make digits --samples 2000", "A data set to begin with."),
    Recording("data make textures --samples 40 --classes 4 --size 64 --format tars --to published",
              "ImageNet's archives, in small."),
    Recording("data prepare imagenet --train published/ILSVRC2012_img_train.tar --val published/ILSVRC2012_img_val.tar "
              "--labels published/validation_labels.txt --format tar", "And shards to train on, made from them."),
    Recording("train mnist -np 2 --epochs 2", "Training on two workers; a bar has steps, speed and ETA meanwhile."),
    Recording("train mnist -np 2", "An existing run is not overwritten; a message of all workers is printed once."),
    Recording("data stats imagenet", "What is in a data set."),
    Recording("data convert imagenet --to shards --format tfrecord", "The same in another format."),
    Recording("data stage imagenet --to local", "A copy on a node's own disk, made once."),
    Recording("run python shapes.py -np 2", "Options come before the command."),
    Recording("run -np 2 python shapes.py", "Workers that disagree."),
    Recording("run -np 2 python uneven.py", "A worker with more batches than the other."),
    Recording("run -np 3 --summary true", "More workers than cores."),
    Recording("lab sweep mnist --grid 'lr=0.01,0.1' --epochs 1 --set network=horovod", "A table of options."),
    Recording("lab throughput synthetic --set model=mnist --workers 1,2 --batch 32 --steps 20 --repeats 1",
              "Images per second of combinations, and the best."),
    Recording("lab scaling synthetic --set model=mnist --workers 1,2 --batch 64 --steps 20 --repeats 1 --no-try",
              "How well it scales, and why not better.", 50),
    Recording("lab quality mnist --set network=horovod --workers 1,2 --epochs 1 --seeds 1,2",
              "Whether more workers cost accuracy."),
    Recording("lab elastic mnist --set network=horovod --workers 1:2 --kills 1 --every 5s",
              "What it costs that workers are killed."),
    Recording("lab list", "What was run."),
    Recording("lab show runs/mnist", "One run.", 24),
    Recording("lab report", "One page of all of it."),
    Recording("plan --workers 8 --batch 32 --base-lr 0.1", "A learning-rate plan.", 24),
    Recording("train mnist -np 2 --max-steps 12 --out runs/traced --timeline-filename timeline.json",
              "A run with a timeline."),
    Recording("timeline timeline.json", "Where its time went.", 50),
    Recording("submit --scheduler slurm --nodes 2 --tasks-per-node 4 --time 1h --dry-run hora train mnist",
              "A job script, not submitted."),
    Recording("completion bash", "Shell completion.", 6),
    Recording("bench train -np 2 --models mnist --rounds 3 --against ddp", "Training beside DDP."),
    Recording("bench allreduce -np 2 --sizes 4K,1M --rounds 3", "A measurement, here too short to mean anything."),
)  # fmt: skip


def main() -> None:
    """Record all, in order: later ones find what earlier ones left."""
    parts = [PAGE.read_text().partition("<!-- recordings -->")[0] if PAGE.exists() else _HEAD]
    with tempfile.TemporaryDirectory() as place:
        for name, text in SCRIPTS.items():
            (Path(place) / name).write_text(text)
        for recording in RECORDINGS:
            print(f"hora {recording.line}", file=sys.stderr)
            shown = on_terminal(
                *shlex.split(recording.line), columns=80, timeout_s=600, cwd=Path(place),
                PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin",
            )  # fmt: skip
            parts.append(_section(recording, _nobodys(screen(shown.text), place), shown.exit_code))
    PAGE.write_text("<!-- recordings -->".join([parts[0], "\n" + "\n".join(parts[1:])]))


_HEAD = """# The terminal

What commands show on a terminal of 80 columns, as recorded by `python -m tests.recordings` on a machine with two cores.
Where output goes to a file or a pipe, or the terminal cannot draw (`TERM=dumb`), there are plain lines, and no escape
codes; `NO_COLOR=1` turns colours off. [Errors](errors.md) says what each error means.

"""


def _nobodys(text: str, place: str) -> str:
    """Without the names of folders of this machine."""
    return text.replace(place, "/scratch/you/dir").replace(str(PAGE.parents[1] / ".venv"), "/scratch/you/venv")


def _section(recording: Recording, text: str, exit_code: int) -> str:
    text = re.sub(r"/\S*/docs ", "docs" + " " * (len(str(PAGE.parent)) - 3), text)
    lines = text.strip("\n").splitlines()
    if len(lines) > recording.lines:
        lines = [*lines[: recording.lines], "…"]
    code = f" Exit code {exit_code}." if exit_code else ""
    return "\n".join(
        [f"{recording.says}{code}", "", "```console", f"$ hora {recording.line}".rstrip(), *lines, "```", ""]
    )


if __name__ == "__main__":
    main()
