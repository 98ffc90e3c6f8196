"""The seven tutorials that this model grew from, each reproduced with it by one command.

A tutorial is a recipe (data), and a function that follows it and returns a `Row`: what the tutorial shows, what comes
out here, and the figures behind it. Only what `generate()` gives on its own counts, never the word that a model says
after being told all the words before.
"""

import json
import math
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import torch
import transformers
from torch import Tensor
from tqdm.auto import tqdm
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    default_data_collator,
    set_seed,
)

from benchmarks.figures import Panel, plot_growth
from benchmarks.power_law import fit_exponent
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.inference.translation import load, translate
from hf_vanilla_transformer.inference.visualization import plot_attention, plot_position_encoding
from hf_vanilla_transformer.model.attention_vanilla_transformer import VanillaTransformerAttention, eager_attention
from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from hf_vanilla_transformer.presets import preset_config
from hf_vanilla_transformer.training.arguments import ModelArguments, VanillaTransformerTrainingArguments, bf16_is_fast
from hf_vanilla_transformer.training.checkpoints import newest_checkpoint
from hf_vanilla_transformer.training.experiment import train_translation
from hf_vanilla_transformer.training.run_folder import check_same_run, make_folder
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer


@dataclass
class TutorialArguments:
    """How far to go; for `transformers.HfArgumentParser`.

    Raises:
        ValueError: A number is too small; names the argument.
    """

    output_dir: str = field(
        default="runs/tutorials", metadata={"help": "Folder of the rows (JSON), pictures and models."}
    )
    seeds: int | None = field(
        default=None, metadata={"help": "Train from so many seeds; by default 10 for phrases and statquest, else 1."}
    )
    light: bool = field(default=False, metadata={"help": "copy: 2 layers of width 128 instead of 6 of width 512."})
    preset: str = field(default="base", metadata={"help": "opus_books: the model's shape; small suits a laptop."})
    num_train_epochs: float | None = field(default=None, metadata={"help": "opus_books: passes over the pairs."})
    max_steps: int = field(default=-1, metadata={"help": "copy and opus_books: stop after so many steps."})

    def __post_init__(self) -> None:
        """Refuse what cannot be, before anything is trained."""
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"--seeds {self.seeds} trains nothing; set at least 1")


@dataclass(frozen=True)
class Row:
    """What a tutorial shows and what ours gives; a row of the README.

    Attributes:
        tutorial: Its name.
        shows: What the tutorial shows.
        gives: What came out here.
        figures: The figures behind `gives`.
        holds: Whether the tutorial's claim holds here.
    """

    tutorial: str
    shows: str
    gives: str
    figures: dict[str, Any]
    holds: bool


# Matrices of their own for embedding source and target and for the output, as in the tutorials; tied to the embedding,
# an untrained output repeats its input for ever.
SEPARATE: dict[str, Any] = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}


# Word by word: eight phrases, and two


@dataclass(frozen=True)
class Phrases:
    """A model small enough to draw, and the few pairs that it learns by heart.

    Attributes:
        pairs: Source and target phrases.
        config: Fields of `VanillaTransformerConfig` besides the vocabularies.
        training: Fields of `VanillaTransformerTrainingArguments`.
        other_words: Target words that occur in no pair.
    """

    pairs: tuple[tuple[str, str], ...]
    config: dict[str, Any]
    training: dict[str, Any]
    other_words: str = ""


# Adam with 0.1, as in both tutorials.
ADAM_TENTH: dict[str, Any] = {"learning_rate": 0.1, "label_smoothing_factor": 0.0, "max_tokens": 0}
ONE_BLOCK_ONE_HEAD: dict[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 1,
    "decoder_attention_heads": 1,
    **SEPARATE,
    "lm_head_bias": True,
    "scale_embedding": False,
    "norm_position": "none",
    "dropout": 0.0,
    "max_position_embeddings": 16,
}
PHRASES = Phrases(
    pairs=(
        ("i love you", "te amo"),
        ("you love me", "me amas"),
        ("i see you", "te veo"),
        ("you see me", "me ves"),
        ("i like pizza", "me gusta pizza"),
        ("you like cake", "te gusta pastel"),
        ("i eat pizza", "yo como pizza"),
        ("you eat cake", "tú comes pastel"),
    ),
    config={"d_model": 6, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    # All pairs at each step. At so large a rate, a normalization of 6 numbers lets some seeds only learn.
    training={
        **ADAM_TENTH,
        "num_train_epochs": 60,
        "per_device_train_batch_size": 8,
        "lr_scheduler_type": "linear",
        "warmup_steps": 10,
        "max_grad_norm": 1.0,
    },
)
STATQUEST = Phrases(
    pairs=(("lets go", "vamos"), ("to go", "ir")),
    config={"d_model": 2, "encoder_ffn_dim": 0, "decoder_ffn_dim": 0, "init_std": 1.0},
    # Both pairs at each of 30 steps, which are few for a long memory of gradients.
    training={
        **ADAM_TENTH,
        "num_train_epochs": 30,
        "per_device_train_batch_size": 2,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "adam_beta1": 0.5,
        "adam_beta2": 0.999,
        "label_smoothing_factor": 0.05,
    },
    other_words="y",
)


def seeds_of(args: TutorialArguments, default: int) -> Iterable[int]:
    """Return the seeds to train from, with a bar where there are several and somebody looks."""
    number = args.seeds or default
    return tqdm(range(number), desc="seeds", disable=None if number > 1 else True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute by one thread, which models this small are fastest by, and which sums in the same order everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def reproduce_phrases(args: TutorialArguments, data_args: DataArguments) -> Row:
    """Learn eight phrases by heart, from several seeds."""
    trained = [train_phrases(PHRASES, seed, args) for seed in seeds_of(args, 10)]
    exact = [len(PHRASES.pairs) - len(wrong_phrases(PHRASES, *each)) for each in trained]
    perfect = sum(number == len(PHRASES.pairs) for number in exact)
    return Row(
        "phrases",
        "8 English-Spanish phrases learned by one block of width 6, each word told the words before it",
        f"all 8 exact by generate() in {perfect} of {len(exact)} seeds",
        {"exact": exact, "perfect_seeds": perfect, "seeds": len(exact)},
        perfect >= 0.9 * len(exact),
    )


@one_thread()
def reproduce_statquest(args: TutorialArguments, data_args: DataArguments) -> Row:
    """Learn two phrases with two numbers a word, from several seeds, and draw how."""
    trained = [train_phrases(STATQUEST, seed, args) for seed in seeds_of(args, 10)]
    wrong = [wrong_phrases(STATQUEST, *each) for each in trained]
    perfect = sum(not each for each in wrong)
    draw_statquest(*trained[0], Path(args.output_dir, "statquest"))
    return Row(
        "statquest",
        'width 2, one head, no feed-forward layer, no normalization: "lets go" -> "vamos", "to go" -> "ir"',
        f"both by generate() in {perfect} of {len(wrong)} seeds",
        {"wrong": wrong, "perfect_seeds": perfect, "seeds": len(wrong)},
        perfect >= 0.9 * len(wrong),
    )


def wrong_phrases(
    phrases: Phrases, model: VanillaTransformerForConditionalGeneration, tokenizer: VanillaTransformerTokenizer
) -> dict[str, str]:
    """Return what a model says wrongly of the pairs it was trained on."""
    hypotheses = translate(model, tokenizer, [source for source, _ in phrases.pairs], num_beams=1, show_progress=False)
    said = zip(phrases.pairs, hypotheses, strict=True)
    return {source: best.text for (source, target), (best, *_) in said if best.text != target}


def train_phrases(
    phrases: Phrases, seed: int, args: TutorialArguments
) -> tuple[VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer]:
    """Train a model and its word-level tokenizer on the pairs."""
    sources, targets = map(list, zip(*phrases.pairs, strict=True))
    tokenizer = VanillaTransformerTokenizer.from_pair(
        train_tokenizer(sources, algorithm="word"),
        train_tokenizer([*targets, *phrases.other_words.split()], algorithm="word"),
    )
    set_seed(seed)
    model = VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig(
            vocab_size=len(tokenizer),
            decoder_vocab_size=tokenizer.target_vocab_size,
            **{**ONE_BLOCK_ONE_HEAD, **phrases.config},
        )
    )
    ids = datasets.Dataset.from_dict(dict(tokenizer(sources, text_target=targets)))
    train(
        model,
        ids,
        DataCollatorForSeq2Seq(tokenizer, model=model),
        Path(args.output_dir),
        seed=seed,
        disable_tqdm=True,
        **phrases.training,
    )
    return model, tokenizer


def train(model: Any, ids: datasets.Dataset, collator: Any, folder: Path, **training: Any) -> None:
    """Train a model: no evaluation, no log; from the last checkpoint of the folder on, if it holds one."""
    settings = {"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "no", "report_to": "none"}
    arguments = VanillaTransformerTrainingArguments(
        output_dir=str(folder), logging_first_step=False, **{**settings, **training}
    )
    trainer = VanillaTransformerTrainer(model=model, args=arguments, train_dataset=ids, data_collator=collator)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
    model.eval()


def draw_statquest(
    model: VanillaTransformerForConditionalGeneration, tokenizer: VanillaTransformerTokenizer, folder: Path
) -> None:
    """Draw the two position curves, and where each word of the first phrase looks."""
    plot_position_encoding(model.model.encoder.embed_positions.weight, folder / "position_encoding.png")
    source, target = STATQUEST.pairs[0]
    batch = tokenizer([source], text_target=[target], return_tensors="pt")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(**batch, output_attentions=True)
    words = tokenizer.source_tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    predicted = tokenizer.target_tokenizer.convert_ids_to_tokens(batch["labels"][0])
    # What the decoder reads: the start token, then the target without its end.
    read = ["<s>", *predicted[:-1]]
    for name, attentions, (keys, columns), (queries, rows) in (
        ("encoder_attention", outputs.encoder_attentions, ("source", words), ("source", words)),
        ("decoder_attention", outputs.decoder_attentions, ("target so far", read), ("target", predicted)),
        ("cross_attention", outputs.cross_attentions, ("source", words), ("target", predicted)),
    ):
        title, path = name.replace("_", " ").capitalize(), folder / f"{name}.png"
        plot_attention(attentions[0][0], columns, rows, path, title=title, keys=keys, queries=queries)


# Attention without learning

WORD_VECTORS = {
    "the": (1, 0, 0, 0, 0, 0, 0, 0),
    "cat": (0, 1, 0, 0, 0.1, 0.2, 0.3, 0.4),
    "sits": (0, 0.9, 1, 0, 0.2, 0.1, 0.4, 0.3),
    "on": (0, 0, 0, 1, 0, 0, 0, 0),
    "mat": (0, 0.8, 0.6, 0.3, 0, 0.6, 0.3, 0.2),
    "a": (1, 0, 0, 0, 0, 0, 0, 0.1),
    "dog": (0, 0.9, 0.1, 0, 0, 0.3, 0.4, 0.3),
    "lies": (0, 1, 0.8, 0.1, 0.3, 0.1, 0.4, 0.2),
    "rug": (0, 0.9, 0.6, 0.3, 0, 0.5, 0.3, 0.1),
}
# The notebook's two sentences, and the attention weights that it prints for them, to eight decimals.
ATTENTION_SENTENCES: dict[str, tuple[tuple[float, ...], ...]] = {
    "the cat sits on the mat": (
        (0.20795408, 0.14602296, 0.14602296, 0.14602296, 0.20795408, 0.14602296),
        (0.1320772, 0.20914044, 0.20045296, 0.1320772, 0.1320772, 0.194175),
        (0.11958619, 0.18149541, 0.25215275, 0.11958619, 0.11958619, 0.20759326),
        (0.15299844, 0.15299844, 0.15299844, 0.21788799, 0.15299844, 0.17011824),
        (0.20795408, 0.14602296, 0.14602296, 0.14602296, 0.20795408, 0.14602296),
        (0.12397355, 0.18226132, 0.21520941, 0.13784561, 0.12397355, 0.21673656),
    ),
    "a dog lies on the rug": (
        (0.20789086, 0.14701445, 0.1464956, 0.14546337, 0.20715715, 0.14597857),
        (0.13342497, 0.19895022, 0.20393542, 0.13201726, 0.13201726, 0.19965486),
        (0.12073931, 0.18519945, 0.23888728, 0.12420309, 0.11988857, 0.2110823),
        (0.15216063, 0.15216063, 0.15763656, 0.21669485, 0.15216063, 0.16918669),
        (0.20795408, 0.14602296, 0.14602296, 0.14602296, 0.20795408, 0.14602296),
        (0.12305363, 0.18544201, 0.21589025, 0.13633987, 0.12261934, 0.21665489),
    ),
}
ATTENTION_TOLERANCE = 1e-7


def reproduce_attention(args: TutorialArguments, data_args: DataArguments) -> Row:
    """Attend from the words of two sentences to themselves, by vectors given by hand."""
    attention = plain_attention(width=8)
    errors = []
    for sentence, expected in ATTENTION_SENTENCES.items():
        words = sentence.split()
        vectors = torch.tensor([[WORD_VECTORS[word] for word in words]], dtype=torch.float64)
        _, weights = attention(vectors)
        errors.append(float((weights[0, 0] - torch.tensor(expected, dtype=torch.float64)).abs().max()))
        path = Path(args.output_dir, "attention", f"{words[1]}.png")
        title = f"Attention in {sentence!r}"
        plot_attention(weights[0], words, words, path, title=title, limit=0.3, keys="words", queries="words")
    return Row(
        "attention",
        "two 6 x 6 matrices of attention weights, by word vectors made by hand",
        f"the same matrices; greatest difference {max(errors):.1e}",
        {"greatest_difference": errors},
        max(errors) < ATTENTION_TOLERANCE,
    )


def plain_attention(width: int) -> VanillaTransformerAttention:
    """Return our attention with one head and no projections: queries, keys and values are the inputs themselves."""
    config = VanillaTransformerConfig(d_model=width, encoder_attention_heads=1, decoder_attention_heads=1)
    config._attn_implementation = "eager"
    attention = VanillaTransformerAttention(config, heads=1, layer_idx=0).double().eval()
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
        torch.nn.init.eye_(projection.weight)
    return attention.requires_grad_(False)


# Copying

COPY_SYMBOLS, COPY_LENGTH, COPY_START = 11, 10, 1
COPY_TEST_SEQUENCES = 1000
COPY_STEPS_BETWEEN_CHECKPOINTS = 200
# Symbol 0 is never drawn, every sequence begins with symbol 1, and none ends before its length.
COPY_CONFIG: dict[str, Any] = {
    **SEPARATE,
    "vocab_size": COPY_SYMBOLS,
    "pad_token_id": 0,
    "bos_token_id": COPY_START,
    "decoder_start_token_id": COPY_START,
    "eos_token_id": None,
    "norm_position": "pre",
    "max_position_embeddings": 32,
}
COPY_TRAINING: dict[str, Any] = {
    "lr_scheduler_type": "cosine",
    "label_smoothing_factor": 0.0,
    "max_tokens": 0,
    "per_device_train_batch_size": 64,
    "num_train_epochs": 1,
}


@dataclass(frozen=True)
class CopyTask:
    """A size of the copy task.

    Attributes:
        preset: The model's shape.
        steps: Steps of training, each on fresh sequences.
        learning_rate: The peak.
        warmup_steps: Steps until then.
    """

    preset: str
    steps: int
    learning_rate: float
    warmup_steps: int


COPY_TASK = CopyTask("base", steps=600, learning_rate=3e-4, warmup_steps=100)
LIGHT_COPY_TASK = CopyTask("tiny", steps=1500, learning_rate=1e-3, warmup_steps=150)


def reproduce_copy(args: TutorialArguments, data_args: DataArguments) -> Row:
    """Learn to copy sequences of symbols, and copy fresh ones by greedy decoding."""
    task = LIGHT_COPY_TASK if args.light else COPY_TASK
    if args.max_steps > 0:
        task = replace(task, steps=args.max_steps, warmup_steps=min(task.warmup_steps, args.max_steps - 1))
    untrained = [copy_by(build_copier(task, seed), torch.arange(COPY_LENGTH)[None] + 1)[0] for seed in range(10)]
    started = time.perf_counter()
    exact = [learn_to_copy(task, seed, args) for seed in seeds_of(args, 1)]
    seconds = (time.perf_counter() - started) / len(exact)
    shape = preset_config(task.preset, **COPY_CONFIG)
    return Row(
        "copy",
        f"{COPY_SYMBOLS} symbols, length {COPY_LENGTH}, N={shape.encoder_layers}, d_model={shape.d_model}, "
        f"h={shape.encoder_attention_heads}, d_ff={shape.encoder_ffn_dim}: never trained, as its loss is none",
        f"{np.mean(exact):.1%} of {COPY_TEST_SEQUENCES:,} fresh sequences exact by greedy decoding"
        f" (seeds: {len(exact)}, the worst {min(exact):.1%}), {task.steps} steps, {seconds / 60:.1f} minutes a seed; "
        f"{len(untrained)} untrained models decode {len(untrained[0])} symbols each",
        {
            "exact": exact,
            "seeds": len(exact),
            "steps": task.steps,
            "seconds_a_seed": seconds,
            "untrained": [each.tolist() for each in untrained],
        },
        min(exact) >= 0.99 and all(len(each) == COPY_LENGTH for each in untrained),
    )


def build_copier(task: CopyTask, seed: int) -> VanillaTransformerForConditionalGeneration:
    """Return an untrained model."""
    set_seed(seed)
    return VanillaTransformerForConditionalGeneration(preset_config(task.preset, **COPY_CONFIG)).eval()


def draw_sequences(number: int, generator: torch.Generator) -> Tensor:
    """Return random sequences (number, COPY_LENGTH) of the symbols from 1 on, the first one COPY_START."""
    sequences = torch.randint(1, COPY_SYMBOLS, (number, COPY_LENGTH), generator=generator)
    sequences[:, 0] = COPY_START
    return sequences


def copy_by(model: VanillaTransformerForConditionalGeneration, sequences: Tensor) -> Tensor:
    """Return what greedy decoding makes of sequences (B, COPY_LENGTH): as many symbols, the first one given."""
    return greedy(model, sequences.to(model.device), COPY_LENGTH - 1)[0].cpu()


def greedy(model: PreTrainedModel, source: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return what greedy decoding gives for `source` (B, S): symbols (B, 1 + steps), and logits (B, steps, V)."""
    output = cast(Any, model).generate(
        input_ids=source,
        attention_mask=torch.ones_like(source),
        max_new_tokens=steps,
        min_new_tokens=steps,
        num_beams=1,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return output.sequences, torch.stack(output.logits, dim=1)


def learn_to_copy(task: CopyTask, seed: int, args: TutorialArguments) -> float:
    """Train from a seed, and return the fraction of fresh sequences that are copied without a mistake."""
    generator = torch.Generator().manual_seed(seed)
    test = draw_sequences(COPY_TEST_SEQUENCES, generator)
    train_sequences = draw_sequences(task.steps * COPY_TRAINING["per_device_train_batch_size"], generator)
    # Among a billion sequences none is likely to come twice, but fresh shall mean fresh.
    known = set(map(tuple, test.tolist()))
    rows = [row for row in train_sequences.tolist() if tuple(row) not in known]
    ids = datasets.Dataset.from_dict({"input_ids": rows, "labels": [row[1:] for row in rows]})
    model = build_copier(task, seed)
    folder = Path(args.output_dir, "copy", f"{task.preset}-{task.steps}-{seed}")
    train(
        model,
        ids,
        default_data_collator,
        folder,
        seed=seed,
        save_strategy="steps",
        save_steps=COPY_STEPS_BETWEEN_CHECKPOINTS,
        save_total_limit=1,
        learning_rate=task.learning_rate,
        warmup_steps=task.warmup_steps,
        bf16=bf16_is_fast(),
        **COPY_TRAINING,
    )
    copies = torch.cat([copy_by(model, batch) for batch in test.split(250)])
    shutil.rmtree(folder, ignore_errors=True)  # the checkpoints, which nobody needs any more
    return float((copies == test).all(-1).float().mean())


# Translating books, or any pairs

OPUS_BOOKS = {
    "dataset_name": "Helsinki-NLP/opus_books",
    "dataset_config_name": "en-es",
    "source_lang": "en",
    "target_lang": "es",
}
# Nine tenths to train on, of which a few pairs choose the checkpoint, and one tenth to test.
OPUS_BOOKS_TEST, OPUS_BOOKS_VALIDATION = 0.1, 1000
# One vocabulary a language: words that occur twice, as in the notebook, or byte-level pieces of words.
OPUS_BOOKS_TOKENIZERS: dict[str, dict[str, Any]] = {
    "word": {"tokenizer_algorithm": "word", "vocab_size": 30_000, "min_frequency": 2},
    "bpe": {"tokenizer_algorithm": "bpe", "vocab_size": 8_000, "min_frequency": 2},
}
OPUS_BOOKS_TRAINING: dict[str, dict[str, Any]] = {
    "base": {"max_tokens": 16384, "num_train_epochs": 20.0},
    "small": {
        "max_tokens": 4096,
        "learning_rate": 0.0015,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 400,
        "num_train_epochs": 3.0,
        "per_device_eval_batch_size": 256,
    },
}
OPUS_BOOKS_EXAMPLES = 10
OPUS_BOOKS_FIGURES = ("test_bleu", "test_chrf", "test_bleu_signature", "train_runtime", "steps", "parameters")
# Longer than any that the models have seen.
LONG_SENTENCE = " ".join(["I saw the old house by the river , and then"] * 60) + " I went home ."


def reproduce_opus_books(args: TutorialArguments, data_args: DataArguments) -> Row:
    """Train the same model with words and with byte-level BPE as tokens, and compare them on the same test pairs."""
    data_args = books_arguments(data_args)
    own = {name: getattr(args, name) for name in ("preset", "num_train_epochs", "max_steps")}
    check_same_run(Path(args.output_dir, "opus_books"), {**asdict(data_args), **own})
    folders = {name: Path(args.output_dir, "opus_books", name) for name in OPUS_BOOKS_TOKENIZERS}
    results = {name: train_on_books(name, folder, args, data_args) for name, folder in folders.items()}
    test = load_parallel_text(data_args)["test"]
    figures: dict[str, Any] = {"data": data_args.description, "preset": args.preset, "test_pairs": len(test)}
    for name, each in results.items():
        model, tokenizer = load(str(folders[name]))
        long = translate(model, tokenizer, [LONG_SENTENCE], num_beams=1, show_progress=False)[0][0].text
        figures[name] = {
            **{key: each[key] for key in OPUS_BOOKS_FIGURES},
            **unknown_rates(tokenizer, test),
            "long_sentence_words": len(long.split()),
        }
    figures["examples"] = examples(test, folders)
    for each in figures["examples"]:
        print("\n".join(f"{name:<12} {text}" for name, text in each.items()), end="\n\n")
    word, bpe = figures["word"], figures["bpe"]
    return Row(
        "opus_books",
        "word-level tokens, one vocabulary a language, of which training never ran; a long sentence is an error",
        f"BLEU {word['test_bleu']:.1f}, chrF {word['test_chrf']:.1f} with words ({word['unknown_target']:.1%} of the "
        f"reference's unknown); {bpe['test_bleu']:.1f}, {bpe['test_chrf']:.1f} with byte-level BPE (none unknown); "
        f"{len(test):,} test pairs, {args.preset} model",
        figures,
        bpe["unknown_target"] == 0 and all(each["long_sentence_words"] for each in (word, bpe)),
    )


def books_arguments(data_args: DataArguments) -> DataArguments:
    """Return the arguments with the tutorial's data set where none is named, and with its split."""
    missing: dict[str, Any] = {}
    if not (data_args.dataset_name or data_args.toy_corpus or data_args.files("train")):
        missing |= OPUS_BOOKS
    for split, size in (("validation", OPUS_BOOKS_VALIDATION), ("test", OPUS_BOOKS_TEST)):
        if not data_args.files(split):
            missing[f"{split}_split_size"] = size
    return replace(data_args, **{name: value for name, value in missing.items() if getattr(data_args, name) is None})


def train_on_books(name: str, folder: Path, args: TutorialArguments, data_args: DataArguments) -> dict[str, Any]:
    """Train with a tokenizer of `OPUS_BOOKS_TOKENIZERS`, or go on training, and return the results.

    Those of a run that has ended are read from its folder.
    """
    file = folder / "all_results.json"
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    training = dict(OPUS_BOOKS_TRAINING.get(args.preset, OPUS_BOOKS_TRAINING["base"]))
    if args.num_train_epochs is not None:
        training["num_train_epochs"] = args.num_train_epochs
    return train_translation(
        ModelArguments(
            preset=args.preset,
            separate_vocabularies=True,
            attn_implementation=None if torch.accelerator.is_available() else "eager",
            **OPUS_BOOKS_TOKENIZERS[name],
        ),
        data_args,
        VanillaTransformerTrainingArguments(
            output_dir=str(folder),
            max_steps=args.max_steps,
            bf16_if_fast=True,
            report_to="none",
            resume_from_checkpoint=newest_checkpoint(folder),
            **training,
        ),
    )


def unknown_rates(tokenizer: PreTrainedTokenizerBase, pairs: datasets.Dataset) -> dict[str, float]:
    """Return the fraction of the tokens of each side, end tokens left out, that the vocabulary does not hold."""
    encoded = tokenizer(pairs["source"][:], text_target=pairs["target"][:])
    rates = {}
    for side, column in (("source", "input_ids"), ("target", "labels")):
        ids = np.concatenate([each[:-1] for each in encoded[column]])
        rates[f"unknown_{side}"] = float(np.mean(ids == tokenizer.unk_token_id))
    return rates


def examples(test: datasets.Dataset, folders: dict[str, Path]) -> list[dict[str, str]]:
    """Return some test pairs, evenly spread, with the translation of each model."""
    places = np.linspace(0, len(test) - 1, min(OPUS_BOOKS_EXAMPLES, len(test))).astype(int).tolist()
    chosen = [{"source": test[i]["source"], "reference": test[i]["target"]} for i in places]
    for name, folder in folders.items():
        lines = (folder / "test_translations.txt").read_text(encoding="utf-8").split("\n")
        chosen = [{**each, name: lines[i]} for each, i in zip(chosen, places, strict=True)]
    return chosen


# Shapes

ENCODER_DECODER_SOURCE = ((0, 2, 5, 6, 4, 3, 9, 5, 2, 9, 10, 1), (0, 2, 8, 7, 3, 4, 5, 6, 7, 2, 10, 1))
ENCODER_DECODER_TARGET = ((0, 1, 7, 4, 3, 5, 9, 2, 8, 10, 9, 1), (0, 1, 5, 6, 2, 4, 7, 6, 2, 8, 10, 1))
# 0 starts a sequence and 1 ends it; no symbol is padding.
ENCODER_DECODER_CONFIG: dict[str, Any] = {
    **SEPARATE,
    "vocab_size": 11,
    "pad_token_id": None,
    "bos_token_id": 0,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
}


@torch.no_grad()
def reproduce_encoder_decoder(args: TutorialArguments, data_args: DataArguments) -> Row:
    """Run a batch of integers through an untrained base model, and decode with and without a memory of keys."""
    set_seed(0)
    model = VanillaTransformerForConditionalGeneration(preset_config("base", **ENCODER_DECODER_CONFIG)).eval()
    source, target = torch.tensor(ENCODER_DECODER_SOURCE), torch.tensor(ENCODER_DECODER_TARGET)
    logits = model(input_ids=source, decoder_input_ids=target).logits
    off = float((logits.softmax(-1).sum(-1) - 1).abs().max())
    steps = source.shape[1]
    (ids, remembered), (expected_ids, expected) = greedy(model, source, steps), decode_anew(model, source, steps)
    difference = float((remembered - expected).abs().max())
    holds = tuple(logits.shape) == (2, 12, 11) and max(off, difference) < 1e-5 and torch.equal(ids, expected_ids)
    return Row(
        "encoder_decoder",
        "a 2 x 12 batch of integers through N=6, d_model=512; a greedy loop that forgets all but the last token",
        f"logits {tuple(logits.shape)} whose softmax sums to 1 within {off:.0e}; greedy decoding keeps its history: "
        f"in {steps} steps the logits are within {difference:.0e} of those from reading it all anew",
        {
            "shape": list(logits.shape),
            "greatest_error_of_sum": off,
            "generated": ids.tolist(),
            "greatest_difference_of_logits": difference,
        },
        holds,
    )


def decode_anew(model: PreTrainedModel, source: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return what `greedy` does, found by reading all that was decoded before at every step."""
    config: Any = model.config
    decoded, logits = torch.full((len(source), 1), config.decoder_start_token_id), []
    for _ in range(steps):
        logits.append(model(input_ids=source, decoder_input_ids=decoded, use_cache=False).logits[:, -1])
        # Every row goes on for as many steps.
        choice = logits[-1].index_fill(-1, torch.tensor(config.eos_token_id), -math.inf).argmax(-1, keepdim=True)
        decoded = torch.cat([decoded, choice], dim=1)
    return decoded, torch.stack(logits, dim=1)


# How attention grows

# Table 1 of the paper: a layer of self-attention takes O(n^2 d) operations, and keeps n x n weights.
# From 32 MiB of weights on (n = 2,896) memory comes fresh from the system each time, page by page, which costs more;
# lengths on both sides of that would not lie on one line.
COMPLEXITY_LENGTHS, COMPLEXITY_AT_WIDTH = (3072, 4096, 6144, 8192), 64
COMPLEXITY_WIDTHS, COMPLEXITY_AT_LENGTH = (256, 512, 1024, 2048), 1024
COMPLEXITY_REPETITIONS = 9
TABLE_EXPONENTS = {"time_n": 2, "time_d": 1, "memory_n": 2, "memory_d": None}


def reproduce_complexity(args: TutorialArguments, data_args: DataArguments) -> Row:
    """Measure time and memory of self-attention over lengths and widths, and fit a power to each."""
    sizes = [(n, COMPLEXITY_AT_WIDTH) for n in COMPLEXITY_LENGTHS]
    sizes += [(COMPLEXITY_AT_LENGTH, d) for d in COMPLEXITY_WIDTHS]
    measured = measure_attention(sizes)
    by_length, by_width = measured[: len(COMPLEXITY_LENGTHS)], measured[len(COMPLEXITY_LENGTHS) :]
    exponents, panels = {}, []
    for name, xlabel, points, column, ylabel in (
        ("time_n", f"length n (d = {COMPLEXITY_AT_WIDTH})", by_length, "seconds", "seconds, forward"),
        ("time_d", f"width d (n = {COMPLEXITY_AT_LENGTH})", by_width, "seconds", "seconds, forward"),
        ("memory_n", f"length n (d = {COMPLEXITY_AT_WIDTH})", by_length, "bytes", "bytes kept for backward"),
        ("memory_d", f"width d (n = {COMPLEXITY_AT_LENGTH})", by_width, "bytes", "bytes kept for backward"),
    ):
        x = [each[name[-1]] for each in points]
        y = [each[column] for each in points]
        exponents[name] = fit_exponent(x, y)
        panels.append(Panel(xlabel, x, ylabel, y, exponents[name], TABLE_EXPONENTS[name]))
    path = Path(args.output_dir, "complexity", "complexity.png")
    title = "Self-attention: cost over length and width"
    plot_growth(panels, path, title=title)
    return Row(
        "complexity",
        "the paper's table: self-attention takes O(n^2 d) operations a layer",
        f"time ~ n^{exponents['time_n']:.2f} and d^{exponents['time_d']:.2f}; memory ~ n^{exponents['memory_n']:.2f} "
        f"and d^{exponents['memory_d']:.2f}, being n^2 + 3 n d numbers",
        {"exponents": exponents, "table": TABLE_EXPONENTS, "measured": measured, "threads": torch.get_num_threads()},
        all(abs(exponents[name] - exponent) < 0.35 for name, exponent in TABLE_EXPONENTS.items() if exponent),
    )


def measure_attention(sizes: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the median time of a forward pass, and the bytes that training keeps of it, for lengths n and widths d.

    The sizes take turns, so that what slows the machine down for a while slows all of them.
    """
    module = torch.nn.Identity().eval()
    # Queries, keys and values (3, n, d), taken as one sentence and one head.
    inputs = [torch.randn(3, n, d, requires_grad=True) for n, d in sizes]
    seconds: list[list[float]] = [[] for _ in sizes]

    def attend(x: Tensor) -> Tensor:
        query, key, value = x[:, None, None]
        return eager_attention(module, query, key, value, None, x.shape[-1] ** -0.5)[0]

    with torch.no_grad():
        for _ in range(COMPLEXITY_REPETITIONS + 1):
            for x, times in zip(inputs, seconds, strict=True):
                start = time.perf_counter()
                attend(x)
                times.append(time.perf_counter() - start)
    return [
        # The first turn warms up.
        {"n": n, "d": d, "seconds": float(np.median(times[1:])), "bytes": kept_bytes(attend, x)}
        for (n, d), x, times in zip(sizes, inputs, seconds, strict=True)
    ]


def kept_bytes(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return the size of what `function(x)` keeps for its backward pass, each piece of memory counted once."""
    storages = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = function(x)
    del output
    return sum(storages.values())


# All of them

TUTORIALS: dict[str, Callable[[TutorialArguments, DataArguments], Row]] = {
    "phrases": reproduce_phrases,
    "attention": reproduce_attention,
    "copy": reproduce_copy,
    "opus_books": reproduce_opus_books,
    "statquest": reproduce_statquest,
    "encoder_decoder": reproduce_encoder_decoder,
    "complexity": reproduce_complexity,
}


def reproduce(names: Iterable[str], args: TutorialArguments, data_args: DataArguments) -> list[Row]:
    """Reproduce tutorials, print the row of each, and leave it as JSON in `args.output_dir`.

    One that cannot be followed, for want of its data, does not keep the others from being.

    Raises:
        ValueError: The data, the shape or the output folder cannot be used; names the tutorials.
    """
    make_folder(Path(args.output_dir))
    rows, errors = [], []
    for name in names:
        start = time.perf_counter()
        try:
            row = TUTORIALS[name](args, data_args)
        except (ValueError, OSError) as error:
            errors.append(f"{name}: {error}")
            continue
        write_row(row, time.perf_counter() - start, Path(args.output_dir, f"{name}.json"))
        rows.append(row)
    if errors:
        raise ValueError("; ".join(errors))
    return rows


def write_row(row: Row, seconds: float, file: Path) -> None:
    """Print a row, and write it with where and how fast it came to be."""
    facts = {
        **asdict(row),
        "seconds": seconds,
        "machine": {"python": platform.python_version(), "processor": platform.machine()},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    file.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"| {row.tutorial} | {row.shows} | {row.gives} |", flush=True)
    if not row.holds:
        print(f"{row.tutorial}: not as it should be; see {file}", flush=True)


__all__ = ["TUTORIALS", "Row", "TutorialArguments", "reproduce"]
