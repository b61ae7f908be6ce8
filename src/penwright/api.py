"""The Python door: a run is made (preparing.py, making.py, ensemble.py) and used (using.py)."""

from penwright.ensemble import member_settings, minutes_for, train_ensemble
from penwright.making import follow, resume, train
from penwright.preparing import Prepared, expect, new_run_folder, prepare, read_recipe
from penwright.refining import load_aligner, optimize, quicken, tune_decoding
from penwright.training.launcher import is_launched, launch
from penwright.using import (
    evaluate,
    export,
    kept_precision,
    load,
    load_classifier,
    load_generator,
    load_translator,
    novelty,
)

__all__ = [
    "Prepared",
    "evaluate",
    "expect",
    "export",
    "follow",
    "is_launched",
    "kept_precision",
    "launch",
    "load",
    "load_aligner",
    "load_classifier",
    "load_generator",
    "load_translator",
    "member_settings",
    "minutes_for",
    "new_run_folder",
    "novelty",
    "optimize",
    "prepare",
    "quicken",
    "read_recipe",
    "resume",
    "train",
    "train_ensemble",
    "tune_decoding",
]
