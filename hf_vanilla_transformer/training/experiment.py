"""Experiments: from parallel text to a trained, evaluated and saved translation model."""

from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, set_seed

from ..data.arguments import DataArguments
from ..files import disk_errors
from .arguments import ModelArguments, VanillaTransformerTrainingArguments
from .evaluation import Evaluation, training_results
from .model_card import TEMPLATE
from .report import end_summary, save_card, save_entries, save_pictures, save_results, start_summary
from .run_folder import ROOM_AND_RESUME, find_checkpoint, run_lock, save_final
from .setup import check_arguments, set_up
from .synthetic import with_back_translations
from .time_budget import TimeBudget, final_pairs


def train_translation(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    card_template: str | Path | None = TEMPLATE,
) -> dict[str, Any]:
    """Train a translation model and save it in `args.output_dir` with tokenizer, results, pictures and card.

    Several processes train together; the first one evaluates and saves.

    Args:
        model_args: Model and tokenizer.
        data_args: Parallel text.
        args: Training. `resume_from_checkpoint="last"` resumes from the newest checkpoint of the folder, with its
            model and tokenizer; see `resuming` for what may change.
        card_template: Jinja template of the model card; None writes no card.

    Returns:
        The entries of `all_results.json`: counts, losses, scores and times.

    Raises:
        ValueError: Data, arguments or output folder cannot be used (`DataError` for data), or training diverged.
    """
    start = TimeBudget.clock()
    check_arguments(data_args, args, card_template)
    with run_lock(args):
        checkpoint = find_checkpoint(args)
        data_args = with_back_translations(data_args, args, model_args.trust_remote_code)
        set_seed(args.seed)

        # Set-up
        experiment = set_up(model_args, data_args, args, checkpoint)
        plan, tokenizer, trainer = experiment.plan, experiment.tokenizer, experiment.trainer
        if trainer.is_world_process_zero():
            print(start_summary(experiment), flush=True)

        # Training
        if trainer.time_budget:
            trainer.time_budget.start = start
            trainer.time_budget.final_pairs = final_pairs(experiment.text, plan.args)
        outcome = trainer.train(resume_from_checkpoint=checkpoint)
        training = training_results(trainer, outcome.metrics, experiment.ids)
        training["directions"] = [*map(list, experiment.text.trained)]
        if not trainer.is_world_process_zero():
            return training
        # Before the evaluation, so that an interruption loses nothing.
        save_final(cast(PreTrainedModel, trainer.model), args.output_dir)
        save_final(tokenizer, args.output_dir)

        # Evaluation and report
        limits = experiment.ids.counts["train"].limits
        evaluation = Evaluation(experiment.text, tokenizer, plan.args, limits, model_args.trust_remote_code)
        results = evaluation.results(training)
        with disk_errors(args.output_dir, ROOM_AND_RESUME):
            save_results(results, trainer)
        save_pictures(results, experiment)
        if card_template:
            save_card(results, plan.data_args, trainer.args, card_template, model_args.model_name_or_path)
        if trainer.time_budget:
            seconds = trainer.run_record.seconds + TimeBudget.clock() - start
            results.entries.update(time_budget=args.time_budget, minutes_used=seconds / 60)
            save_entries(results, args.output_dir)
        print(end_summary(results, args.output_dir), flush=True)
        return results.entries
