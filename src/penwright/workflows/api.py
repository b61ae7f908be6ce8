"""A single place to import the workflows from, for the commands and the Python API."""

from penwright.training.distributed.launcher import is_launched, launch
from penwright.workflows.alternatives import budget_options, columns_of, encoders_beside, forecast, size_options
from penwright.workflows.ensemble import member_settings, minutes_for, train_ensemble
from penwright.workflows.evaluate import check_labels, evaluate, novelty
from penwright.workflows.export import export
from penwright.workflows.import_model import import_model, with_imported_base
from penwright.workflows.load import kept_precision, load, load_classifier, load_generator, load_translator
from penwright.workflows.optimize import load_aligner, optimize, quicken, tune_decoding
from penwright.workflows.plan import Prepared, new_run_folder, prepare, read_recipe
from penwright.workflows.resume import follow, resume
from penwright.workflows.train import train

__all__ = [
    "Prepared",
    "budget_options",
    "check_labels",
    "columns_of",
    "encoders_beside",
    "evaluate",
    "export",
    "follow",
    "forecast",
    "import_model",
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
    "size_options",
    "train",
    "train_ensemble",
    "tune_decoding",
    "with_imported_base",
]
