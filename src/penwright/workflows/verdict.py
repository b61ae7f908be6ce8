"""The verdict on a trained model: which baselines it does not beat."""

from collections.abc import Iterator, Sequence
from math import nan

from penwright.evaluation.scores import Score
from penwright.run.folder import Run
from penwright.run.records import METRICS, is_overfitted
from penwright.tasks import RunContext
from penwright.tasks.labelled import LINEAR_BASELINE
from penwright.text import count

FEWEST_JUDGED = 30  # minimum number of held-out texts for comparing a classifier with its baselines


def verdicts(run: Run, context: RunContext, step: int, baselines: Sequence[Score]) -> Iterator[str]:
    """Yield a message about each baseline that the checkpoint of `step` does not beat. Skip perfect scores.

    Skip differences within one standard error, too; macro-F1 uses that of the first score of the same baseline. If
    fine-tuning changed nothing, report them all. For the linear classifier, report the first of them as "level".
    """
    n, is_unchanged = len(context.held_out), not step and not context.skips_training
    if baselines and context.recipe.task == "classify" and n < FEWEST_JUDGED:
        yield f"{count(n, 'held-out text')}: too few to tell whether the model beats its baselines"
        return
    history = run.records(METRICS)
    scores = next((record for record in history if record["step"] == step), {})
    needs = "more text" if is_overfitted(history, run.checkpoints.last_step(), step) else "more minutes, or more text"
    known = [each for each in reversed(baselines) if each.standard_error]  # the first with a note counts
    errors = {(each.note, each.higher_is_better): each.standard_error or 0.0 for each in known}
    is_level = False
    for baseline in (each for each in baselines if each.name in scores):
        value, error = scores[baseline.name], baseline.standard_error
        error = errors.get((baseline.note, baseline.higher_is_better), 0.0) if error is None else error
        score = baseline._replace(value=nan if value is None else value)  # a score of None was not finite
        is_perfect = score.higher_is_better and score.value >= 100  # scores where higher is better are percentages
        is_alike = abs(score.value - baseline.value) <= error and not is_unchanged
        if is_alike and error and not is_perfect and not is_level and LINEAR_BASELINE in baseline.note:
            is_level = True
            yield f"level with the {LINEAR_BASELINE}: {baseline.name} {score.value:.3f} and {baseline.value:.3f}"
        if not is_perfect and not is_alike and not score.beats(baseline.value):
            has = f"The model has {score.value:.3f}{', as before fine-tuning' if is_unchanged else ''}"
            other = ". Also try without --from" * ("5-gram" in baseline.note and context.recipe.finetuning is not None)
            yield f"not beaten: {baseline.name} {baseline.value:.3f} ({baseline.note}). {has}, and needs {needs}{other}"
