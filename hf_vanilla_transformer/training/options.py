"""Model and training options, each declared once; `arguments` validates them.

Imports little, so that `--help` is instant.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ..options import Fraction, NotNegative, NotNegativeFloat, NumBeams, Positive, PositiveFloat, option

# Metrics that are better if lower.
LOWER_IS_BETTER = frozenset(("wer", "ser", "ter", "loss"))

# `metric_for_best_model` until the validation text determines it.
AUTO_METRIC = "auto"

# Response to a NaN or infinite loss or gradient.
OnNonfinite = Literal["stop", "skip"]

# Shorter warm-ups use the peak learning rate of this one. In 120 steps with a warm-up of 20, models of width 128 learn
# most at about that rate and almost nothing at the formula's 0.02; widths 256 and 512 still learn at the formula's.
MIN_RATE_WARMUP = 1000

# Default of a field that `arguments` fills in.
UNSET: Any = None


@dataclass
class ModelOptions:
    """Model and tokenizer to train."""

    preset: str = option(
        UNSET,
        "Model shape: base (default), big, small, deep-encoder, tiny, student (default for distill), "
        "student-12-1 or a row of the paper's Table 3; also sets the default label smoothing. auto: choose shape, "
        "vocabulary, dropout, batches and schedule by corpus size, except what other options set.",
    )
    config_overrides: str | None = option(
        None, "Configuration fields to override in the preset: encoder_layers=4,decoder_layers=4,dropout=0.3."
    )
    model_name_or_path: str | None = option(
        None,
        "Start from this model and its tokenizer (folder or Hub name) instead of from scratch.",
        aliases=["--init_from"],
    )
    extend_vocab: NotNegative = option(
        0, "Add this many tokens, learned on the training pairs, to that model's tokenizer (BPE only)."
    )
    trust_remote_code: bool = option(
        False, "Run Python code shipped with this model or tokenizer; only for sources you trust."
    )
    attn_implementation: str | None = option(
        None, "Attention: sdpa (default), eager (faster for short sentences on a CPU) or flex_attention."
    )
    tokenizer_name_or_path: str | None = option(
        None, "Use this tokenizer (folder or Hub name); by default one is trained."
    )
    tokenizer_algorithm: str = option(
        UNSET,
        "Tokens to learn: bpe (default), unigram, word, whitespace (symbols separated by spaces), character or smiles "
        "(atoms and bonds of molecules); --preset auto chooses by the texts of each side.",
    )
    source_tokenizer_algorithm: str | None = option(
        None,
        "Tokens of the source side (default: --tokenizer_algorithm); sides that differ have a vocabulary each.",
    )
    target_tokenizer_algorithm: str | None = option(None, "Tokens of the target side, likewise.")
    vocab_size: Positive = option(UNSET, "Maximum vocabulary size (default: 8000, unless --preset auto chooses).")
    min_frequency: Positive | None = option(None, "Minimum frequency of a learned token (default: 2; unigram: 1).")
    separate_vocabularies: bool = option(
        UNSET,
        "Learn a vocabulary for each side instead of a shared one (default: false, unless --preset auto chooses).",
    )
    lowercase: bool = option(False, "Lowercase all text, in training and inference.")
    normalization: str | None = option(None, "Unicode normalization: NFC, NFD, NFKC or NFKD.")
    source_normalization: str | None = option(
        None,
        "Unicode normalization of the source side (default: --normalization); NFD splits Hangul into its letters.",
    )


@dataclass
class TrainingOptions:
    """Training fields that this package adds to those of transformers, or gives a different default or help."""

    output_dir: str = option("trainer_output", "Folder for checkpoints and the final model.")
    learning_rate: NotNegativeFloat | None = option(
        None,
        "Peak learning rate (default: the paper's (d_model * warmup_steps) ** -0.5, where fewer than "
        f"{MIN_RATE_WARMUP} steps count as {MIN_RATE_WARMUP}).",
    )
    warmup_steps: NotNegativeFloat = option(UNSET, "Linear warm-up steps (default: 4000, as in the paper).")
    lr_scheduler_type: str = option(UNSET, "Schedule after the warm-up (default: inverse_sqrt, as in the paper).")
    adam_beta2: float = option(0.98, "Adam's beta2.")
    adam_epsilon: float = option(1e-9, "Adam's epsilon.")
    max_grad_norm: NotNegativeFloat = option(0.0, "Clip gradients to this norm; 0, as in the paper: no clipping.")
    label_smoothing_factor: Fraction = option(UNSET, "Label smoothing in training (default: the preset's, or 0.1).")
    max_tokens: NotNegative = option(
        UNSET,
        "Batch size per process in tokens: source, target and padding (default: 8192; 0: batches of "
        "per_device_train_batch_size sentences). For the paper's 50,000, raise gradient_accumulation_steps.",
    )
    packing: bool = option(
        False,
        "Train without padding: concatenate the pairs of a batch into one row, each attending only to itself. "
        "In bf16 or fp16, a GPU then computes no padding; a CPU gains nothing.",
    )
    guided_alignment_weight: PositiveFloat = option(
        0.1, "Weight of the --guided_alignment loss, relative to 1 for translation."
    )
    augment: str = option(
        UNSET,
        "Train on text as people type it: none (default), default, or the share of batches that get each kind of "
        "noise, redrawn each epoch. default is items=0.2,lower=0.05,typos=0.05,punctuation=0.05: insert placeholders "
        "for untranslatable items, lowercase sources, add typos to them, and change final punctuation. items adds "
        "the placeholders to the vocabulary. default,copies=0.5 also lets targets be their own sources, for corpora "
        "of a few thousand pairs with one vocabulary.",
    )
    ema_decay: Fraction = option(
        0.0,
        "Evaluate, save and finish with an exponential moving average of the weights, with this decay per step "
        "(for example 0.999).",
    )
    muon: bool = option(UNSET, "Optimize the layers' matrices with Muon, everything else with Adam (default: false).")
    num_train_epochs: float = option(UNSET, "Passes over the training pairs (default: 20).")
    time_budget: PositiveFloat | None = option(
        None,
        "Minutes for the whole run, instead of num_train_epochs or max_steps: after a minute or a tenth of it, the "
        "measured speed sets the number of steps and the schedule.",
    )
    per_device_eval_batch_size: Positive = option(
        UNSET, "Sentences per evaluation batch (default: 64, unless --preset auto chooses)."
    )
    predict_with_generate: bool = option(True, "Evaluate with generate().")
    generation_num_beams: NumBeams | None = option(1, "Beams in evaluations during training.")
    generation_max_length: Positive | None = option(
        None,
        "Maximum output length, in tokens, in evaluations during training (default: source length plus 50, as in "
        "section 6.1).",
    )
    eval_strategy: str = option(
        UNSET, "When to evaluate: no, steps or epoch (default: epoch, unless --preset auto chooses)."
    )
    save_strategy: str | None = option(
        None, "When to save a checkpoint: no, steps or epoch (default: after each evaluation)."
    )
    save_steps: float | None = option(None, "Steps between checkpoints (default: eval_steps, or 500).")
    logging_steps: float = option(50, "Steps between logs of the loss.")
    logging_first_step: bool = option(True, "Log the loss of the first step too.")
    logging_nan_inf_filter: bool = option(
        False, "Hide NaN and infinite losses from the log; on_nonfinite applies regardless."
    )
    on_nonfinite: OnNonfinite = option(
        "stop",
        "On a NaN or infinite loss or gradient: stop, or skip the step, which still counts but changes "
        "neither weights nor optimizer. skip synchronizes a GPU at every step.",
    )
    load_best_model_at_end: bool = option(
        True, "Finish with the best checkpoint, if there are evaluations and checkpoints."
    )
    metric_for_best_model: str | None = option(
        AUTO_METRIC,
        "Metric that selects the best model: auto (default: wer if targets are words, symbols or SMILES; bleu if it "
        "suits the validation targets, else chrf; loss if none is computed), bleu, chrf, exact_match, wer (share of "
        "sources without a right output), ser (errors per symbol) or loss. Ties are broken by chrf, ser, exact_match "
        "and bleu, or by loss if nothing is right.",
    )
    bleu_tokenize: str | None = option(
        None,
        "sacreBLEU tokenizer for BLEU: 13a, intl, zh, char, ..., or none for text that is already tokenized "
        "(default: by target_lang, zh, ja-mecab or ko-mecab, else 13a).",
    )
    ddp_find_unused_parameters: bool | None = option(
        False, "Search for parameters without a gradient; an encoder-decoder has none."
    )
    average_last_checkpoints: NotNegative = option(
        5,
        "Average this many of the last checkpoints (section 6.1: 5), and use the average if it scores at least as "
        "well on the validation pairs, or if there are none; 0: no averaging.",
    )
    bf16_if_fast: bool = option(False, "Set bf16 if the GPU or CPU is faster in bfloat16.")
    early_stopping_patience: Positive | None = option(
        None, "Stop after this many evaluations without improvement in metric_for_best_model."
    )
    resume_from_checkpoint: str | None = option(
        None, "Resume from this checkpoint; last: the newest one in output_dir, if any."
    )
    resume_with_changes: bool = option(False, "Resume even if text, batches, seed, loss or optimizer have changed.")
    final_num_beams: NumBeams = option(4, "Beams in the final evaluation and in the saved model's generate().")
    final_length_penalty: float = option(
        UNSET,
        "Length penalty with final_num_beams: scores are divided by length ** penalty (default: 1, unless tuned).",
    )
    tune_search: bool = option(
        UNSET,
        "Tune the length penalty and no_repeat_ngram_size of the saved model's generate() on the validation pairs, "
        "where this improves BLEU or chrF significantly (default: false, unless --preset auto chooses).",
    )
