"""Memorized phrases: eight by one block of width 6, two by StatQuest's model of width 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import torch
from transformers import DataCollatorForSeq2Seq, set_seed

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from hf_vanilla_transformer.training.visualization import plot_attention, plot_position_encoding

from .common import UNTIED, TutorialArguments, TutorialResult, seed_range, train


class Phrases(NamedTuple):
    """A few pairs, a model small enough to draw that memorizes them, and target words that occur in no pair."""

    pairs: tuple[tuple[str, str], ...]
    config: dict[str, Any]
    training: dict[str, Any]
    other_words: str = ""


# Adam with learning rate 0.1, as in both tutorials.
ADAM_TENTH: dict[str, Any] = {"learning_rate": 0.1, "label_smoothing_factor": 0.0, "max_tokens": 0}
ONE_BLOCK_ONE_HEAD: dict[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 1,
    "decoder_attention_heads": 1,
    **UNTIED,
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
    # All pairs in every step. At this learning rate, only some seeds would learn with layer norms of width 6.
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
    # Both pairs in every step. Adam's beta1 is low, since 30 steps are too few for a long average of gradients.
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


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, which is fastest for models this small and fixes the order of summation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def reproduce_phrases(args: TutorialArguments, data_args: DataArguments) -> TutorialResult:
    wrong = [wrong_phrases(PHRASES, *train_phrases(PHRASES, seed, args)) for seed in seed_range(args, 10)]
    exact = [len(PHRASES.pairs) - len(errors) for errors in wrong]
    perfect = sum(number == len(PHRASES.pairs) for number in exact)
    return TutorialResult(
        "phrases",
        "8 English-Spanish phrases learned by one block of width 6, under teacher forcing",
        f"all 8 exact with generate() in {perfect} of {len(exact)} seeds",
        {"exact": exact, "perfect_seeds": perfect, "seeds": len(exact)},
        perfect >= 0.9 * len(exact),
    )


@one_thread()
def reproduce_statquest(args: TutorialArguments, data_args: DataArguments) -> TutorialResult:
    """Learn two phrases with embeddings of width 2 from several seeds, and draw positions and attention."""
    trained = [train_phrases(STATQUEST, seed, args) for seed in seed_range(args, 10)]
    wrong = [wrong_phrases(STATQUEST, model, tokenizer) for model, tokenizer in trained]
    perfect = sum(not errors for errors in wrong)
    draw_statquest(*trained[0], Path(args.output_dir, "statquest"))
    return TutorialResult(
        "statquest",
        'width 2, one head, no feed-forward layer, no normalization: "lets go" -> "vamos", "to go" -> "ir"',
        f"both with generate() in {perfect} of {len(wrong)} seeds",
        {"wrong": wrong, "perfect_seeds": perfect, "seeds": len(wrong)},
        perfect >= 0.9 * len(wrong),
    )


def train_phrases(
    phrases: Phrases, seed: int, args: TutorialArguments
) -> tuple[VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer]:
    sources, targets = map(list, zip(*phrases.pairs, strict=True))
    tokenizer = VanillaTransformerTokenizer.from_pair(
        train_tokenizer(sources, algorithm="word"),
        train_tokenizer([*targets, *phrases.other_words.split()], algorithm="word"),
    )
    set_seed(seed)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer),
        decoder_vocab_size=tokenizer.target_vocab_size,
        **{**ONE_BLOCK_ONE_HEAD, **phrases.config},
    )
    model = VanillaTransformerForConditionalGeneration(config)
    train(
        model,
        datasets.Dataset.from_dict(dict(tokenizer(sources, text_target=targets))),
        DataCollatorForSeq2Seq(tokenizer, model=model),
        Path(args.output_dir),
        seed=seed,
        disable_tqdm=True,
        **phrases.training,
    )
    return model, tokenizer


def wrong_phrases(
    phrases: Phrases, model: VanillaTransformerForConditionalGeneration, tokenizer: VanillaTransformerTokenizer
) -> dict[str, str]:
    hypotheses = translate(model, tokenizer, [source for source, _ in phrases.pairs], num_beams=1, show_progress=False)
    translations = zip(phrases.pairs, hypotheses, strict=True)
    return {source: best.text for (source, target), (best, *_) in translations if best.text != target}


def draw_statquest(
    model: VanillaTransformerForConditionalGeneration, tokenizer: VanillaTransformerTokenizer, folder: Path
) -> None:
    """Draw both position curves, and the attention of each word of the first phrase."""
    plot_position_encoding(model.model.encoder.embed_positions.weight, folder / "position_encoding.png")
    source, target = STATQUEST.pairs[0]
    batch = tokenizer([source], text_target=[target], return_tensors="pt")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(**batch, output_attentions=True)
    words = tokenizer.source_tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    predicted = tokenizer.target_tokenizer.convert_ids_to_tokens(batch["labels"][0])
    # The decoder's input: the start token, then the target without its end.
    decoder_input = ["<s>", *predicted[:-1]]
    for name, attentions, (keys, columns), (queries, rows) in (
        ("encoder_attention", outputs.encoder_attentions, ("source", words), ("source", words)),
        ("decoder_attention", outputs.decoder_attentions, ("target so far", decoder_input), ("target", predicted)),
        ("cross_attention", outputs.cross_attentions, ("source", words), ("target", predicted)),
    ):
        title, path = name.replace("_", " ").capitalize(), folder / f"{name}.png"
        plot_attention(attentions[0][0], columns, rows, path, title=title, keys=keys, queries=queries)
