"""Records of what was run, which nothing loses: folders of runs and experiments, and the index of them.

A run folder is what `hora train --out` writes: ``run.json`` (what it was), ``metrics.jsonl`` (a line a step and an
epoch), checkpoints; from the lab also ``log.txt``, ``outcome.json`` and timelines. An experiment folder has
``experiment.json`` and in ``trials/`` a run folder for each trial. Every JSON file is complete or absent.
"""

from hora.lab.records.experiment_writer import ExperimentWriter, experiment
from hora.lab.records.files import Experiment, RunFolder, open_experiment, open_run, state_of
from hora.lab.records.index import IndexEntry, scan

__all__ = [
    "Experiment",
    "ExperimentWriter",
    "IndexEntry",
    "RunFolder",
    "experiment",
    "open_experiment",
    "open_run",
    "scan",
    "state_of",
]
