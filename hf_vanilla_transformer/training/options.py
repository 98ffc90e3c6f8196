"""Options of training, each declared once: which model, and how to train it; `arguments` has their rules.

Imports little, so that help appears at once.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ..options import Beams, Fraction, NotNegative, NotNegativeFloat, Positive, PositiveFloat, option

# Metric of the best model, until the text decides.
AUTO_METRIC = "auto"

# What to do about a loss or gradient that is NaN or infinite.
OnNonfinite = Literal["stop", "skip"]

# A shorter warm-up gets the peak learning rate of this one. In 120 steps with a warm-up of 20, models of width 128
# learn most at about that rate, and next to nothing at the formula's 0.02; widths 256 and 512 still learn at theirs.
MIN_RATE_WARMUP = 1000

# Default of a field that `arguments` sets.
UNSET: Any = None


@dataclass
class ModelOptions:
    """Model and tokenizer to train."""

    preset: str = option(
        UNSET,
        "Model shape: base (the default), big, small, deep-encoder, tiny, student (default of distill), "
        "student-12-1 or a row of the paper's Table 3; its label smoothing replaces the default one. auto: shape, "
        "vocabulary, dropout, batches and schedule by the size of the corpus, except what other options set.",
    )
    config_overrides: str | None = option(
        None, "Fields that replace those of the preset: encoder_layers=4,decoder_layers=4,dropout=0.3."
    )
    model_name_or_path: str | None = option(
        None,
        "Continue from this model and its tokenizer (folder or Hub name) instead of from scratch.",
        aliases=["--init_from"],
    )
    extend_vocab: NotNegative = option(
        0, "Add this many tokens to its tokenizer, learned on the training pairs (BPE only)."
    )
    trust_remote_code: bool = option(
        False, "Run Python code that comes with this model or tokenizer; only from sources you trust."
    )
    attn_implementation: str | None = option(
        None, "Attention: sdpa (the default), eager (faster for short sentences on a CPU) or flex_attention."
    )
    tokenizer_name_or_path: str | None = option(
        None, "Use this tokenizer (folder or Hub name); by default one is trained."
    )
    tokenizer_algorithm: str = option(
        UNSET, "Tokens to learn: bpe (the default), unigram, word, whitespace or character."
    )
    vocab_size: Positive = option(UNSET, "Largest vocabulary to learn (default: 8000, unless --preset auto chooses).")
    min_frequency: Positive | None = option(None, "Fewest occurrences of a token to learn (default: 2; unigram: 1).")
    separate_vocabularies: bool = option(False, "Learn a vocabulary for each side instead of a shared one.")
    lowercase: bool = option(False, "Lowercase all text, in training and in use.")
    normalization: str | None = option(None, "Unicode normalization: NFC, NFD, NFKC or NFKD.")


@dataclass
class TrainingOptions:
    """How to train: the fields that this package adds to those of transformers, or gives another default or help."""

    output_dir: str = option("trainer_output", "Folder of the checkpoints and, in the end, of the model.")
    learning_rate: NotNegativeFloat | None = option(
        None,
        "Peak learning rate (default: the paper's (d_model * warmup_steps) ** -0.5, where fewer than "
        f"{MIN_RATE_WARMUP} steps count as {MIN_RATE_WARMUP}).",
    )
    warmup_steps: NotNegativeFloat = option(UNSET, "Steps of linear warm-up (default and paper: 4000).")
    lr_scheduler_type: str = option(UNSET, "Schedule after the warm-up (default and paper: inverse_sqrt).")
    adam_beta2: float = option(0.98, "Adam's beta2.")
    adam_epsilon: float = option(1e-9, "Adam's epsilon.")
    max_grad_norm: NotNegativeFloat = option(0.0, "Clip gradients to this norm; 0, as in the paper: no clipping.")
    label_smoothing_factor: Fraction = option(UNSET, "Label smoothing in training (default: the preset's, or 0.1).")
    max_tokens: NotNegative = option(
        UNSET,
        "Size of a batch of one process in tokens: source, target and padding (default: 8192; 0: batches "
        "of per_device_train_batch_size sentences instead). The paper's 50,000 need gradient_accumulation_steps.",
    )
    packing: bool = option(
        False,
        "Train without padding: the same batches, but their pairs one after another in a row, each "
        "attending to itself only. A GPU in bf16 or fp16 then computes no padding; on a CPU nothing changes.",
    )
    guided_alignment_weight: PositiveFloat = option(
        0.1, "Weight of --guided_alignment in the loss, beside the translation's 1."
    )
    bpe_dropout: Fraction = option(
        0.0,
        "Leave out each merge of BPE with this probability while training, so that a pair is split into "
        "other tokens in each epoch (0.1 in Provilkov et al. 2020).",
    )
    augment: str = option(
        UNSET,
        "Train on text as people type it: none (the default), default, or shares of the batches, others each epoch: "
        "items=0.2,lower=0.05,typos=0.05,punctuation=0.05, which default stands for, inserts placeholders of what is "
        "not translated, lower-cases sources, makes typos in them and changes final marks. With items, the "
        "vocabulary has the placeholders.",
    )
    rdrop_alpha: NotNegativeFloat = option(
        0.0,
        "R-Drop: weight of the divergence of two passes with different dropout (5 in Wu et al. 2021); "
        "a step takes two to three times as long.",
    )
    ema_decay: Fraction = option(
        0.0,
        "Evaluate, save and end with an exponential moving average of the weights, of this decay a step "
        "(for example 0.999).",
    )
    muon: bool = option(UNSET, "Optimize the matrices of the layers with Muon; Adam keeps all else (default: false).")
    num_train_epochs: float = option(UNSET, "Passes over the training pairs (default: 20).")
    per_device_eval_batch_size: Positive = option(64, "Sentences in an evaluation batch.")
    predict_with_generate: bool = option(True, "Evaluate with generate().")
    generation_num_beams: Beams | None = option(1, "Beams of evaluations during training.")
    generation_max_length: Positive | None = option(
        None,
        "Longest output, in tokens, of evaluations during training (default: that of its source plus "
        "50, as in section 6.1).",
    )
    eval_strategy: str = option("epoch", "When to evaluate: no, steps or epoch.")
    save_strategy: str | None = option(
        None, "When to save a checkpoint: no, steps or epoch (default: after each evaluation)."
    )
    save_steps: float | None = option(None, "Steps between checkpoints (default: eval_steps, or 500).")
    logging_steps: float = option(50, "Steps between logs of the loss.")
    logging_first_step: bool = option(True, "Log the loss of the first step too.")
    logging_nan_inf_filter: bool = option(
        False, "Hide NaN and infinite losses from the log; on_nonfinite applies in any case."
    )
    on_nonfinite: OnNonfinite = option(
        "stop",
        "On a NaN or infinite loss or gradient: stop, or skip the step, which is counted and changes "
        "neither weights nor optimizer. Skipping synchronizes a GPU at every step.",
    )
    load_best_model_at_end: bool = option(
        True, "End with the best checkpoint, if there are evaluations and checkpoints."
    )
    metric_for_best_model: str | None = option(
        AUTO_METRIC,
        "Metric of the best model: auto (the default: bleu where it suits the validation targets, else "
        "chrf; loss if nothing computes them), bleu, chrf, exact_match or loss. Ties are broken by chrf, "
        "exact_match and bleu, or by loss if all are 0.",
    )
    bleu_tokenize: str | None = option(
        None,
        "sacreBLEU's tokenizer of BLEU, in evaluations and results: 13a, intl, zh, char, ..., or none for "
        "text that is tokenized already (default: that of target_lang, zh, ja-mecab or ko-mecab, else 13a).",
    )
    ddp_find_unused_parameters: bool | None = option(
        False, "Search for parameters without a gradient; an encoder-decoder has none."
    )
    average_last_checkpoints: NotNegative = option(
        5,
        "Average this many of the last checkpoints (section 6.1: 5) and keep the average if it scores "
        "better on the validation pairs, or if there are none; 0: no averaging.",
    )
    bf16_if_fast: bool = option(False, "Set bf16 if the GPU or CPU computes faster in bfloat16.")
    early_stopping_patience: Positive | None = option(
        None, "Stop after this many evaluations without a better metric_for_best_model."
    )
    resume_from_checkpoint: str | None = option(
        None, "Continue from this checkpoint; last: the newest one in output_dir, if any."
    )
    resume_with_changes: bool = option(False, "Resume even if text, batches, seed, loss or optimizer have changed.")
    final_num_beams: Beams = option(4, "Beams of the final evaluation and of the saved model's generate().")
    final_length_penalty: float = option(1.0, "Their length penalty: scores are divided by length ** penalty.")
