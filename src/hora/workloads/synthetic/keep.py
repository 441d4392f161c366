"""What a synthetic run keeps in its folder: run.json, and a line a step in metrics.jsonl. No checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import hora.torch as hvd
from hora.engine.preempt import preempted
from hora.schedule import LearningRatePlan
from hora.workloads.agree import everywhere
from hora.workloads.folder import RunNote
from hora.workloads.run_record import RunRecord
from hora.workloads.synthetic.options import Options
from hora.workloads.turns import Turns

__all__ = ["SyntheticRecord"]


class SyntheticRecord:
    """The record of a run, which the first worker keeps."""

    def __init__(self, options: Options, plan: LearningRatePlan, turns: Turns | None, began: str) -> None:
        self._plan, self._turns, self._began = plan, turns, began
        self._step = 0
        self.result: Mapping[str, Any] = {}
        self._record: RunRecord | None
        self._note: RunNote | None
        self._record, self._note = everywhere(self._open, options)

    def _open(self, options: Options) -> tuple[RunRecord, RunNote] | tuple[None, None]:
        if hvd.rank():
            return None, None
        threads = torch.get_num_threads()
        return RunRecord(options.out_folder), RunNote(
            options, self._plan, workers=hvd.size(), hosts=hvd.cross_size(), threads=threads, began=self._began
        )

    def each(self, step: Callable[[], float]) -> Callable[[], float]:
        """The same step, noted down with its loss."""

        def noted() -> float:
            began = time.perf_counter()
            loss = step()
            if self._turns is not None and self._turns.mode == "in step":
                preempted()
            seconds = time.perf_counter() - began
            self._step += 1
            if self._turns is not None:
                self._turns.step(seconds, 0.0)
            if self._step == 1 and self._note is not None:
                self._note.first_step()
            samples = self._plan.global_batch
            if self._record is not None:
                self._record.step(
                    {
                        "step": self._step,
                        "epoch": 0,
                        "samples": self._step * samples,
                        "loss": loss,
                        "lr": self._plan.peak_lr,
                        "images_per_s": samples / seconds,
                        "data_s": 0.0,
                    }
                )
            return loss

        return noted

    def __enter__(self) -> SyntheticRecord:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._record is not None and self._note is not None:
            self._record.close()
            self._note.end(error, self.result)
