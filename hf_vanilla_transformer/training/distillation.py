"""Sequence-level distillation: a small student learns from a large teacher's translations (Kim and Rush, 2016)."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..data.arguments import DataArguments
from ..data.features import Features
from ..errors import DataError
from ..export.formats import export_model
from ..files import atomic_write
from ..inference.ctranslate2 import CTranslate2Model, ctranslate2_missing, load_ctranslate2
from ..inference.translation import load, translate
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..pretrained.cards import CARD, add_base_models
from ..pretrained.languages import is_multilingual, model_languages
from .arguments import (
    ModelArguments,
    VanillaTransformerTrainingArguments,
    join_overrides,
    parse_overrides,
    with_fields,
)
from .experiment import train_translation
from .metrics import translation_scores
from .plan import bleu_tokenizer
from .run_folder import find_checkpoint
from .setup import check_arguments, configuration
from .synthetic import translate_to_files, with_synthetic
from .text_splits import TextSplits, load_text

# Added to the student's folder.
EXPORT_FOLDER, COMPARISON_FILE = "ctranslate2", "distillation.json"

STUDENT_PRESETS = ("student", "student-12-1")

# Shape of a student that would otherwise be larger than its teacher.
NARROW = {"d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512}

# Sentences to translate before timing starts.
WARM_UP_SENTENCES = 8


def distill(
    teacher: Any,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    *,
    num_hypotheses: int = 1,
    num_beams: int | None = None,
    max_tokens: int = 4096,
) -> dict[str, Any]:
    """Train a student on its teacher's translations of the training sources, and on the training pairs themselves.

    In addition to the output of `train_translation`, `args.output_dir` gets the teacher's translations, which later
    calls reuse, the student as an int8 CTranslate2 model in `ctranslate2`, and `distillation.json`.

    Args:
        teacher: Any model that `translate_lines` accepts.
        tokenizer: The teacher's tokenizer.
        model_args: The student; to share the teacher's vocabulary, set `tokenizer_name_or_path` to its folder. The
            presets `student` and `student-12-1`, of width 256 and feed-forward width 1,024, get 128 and 512 if they
            would otherwise be larger than the teacher, unless `config_overrides` sets `d_model`.
        data_args: Parallel text, in memory. `train_weight=0` trains on the teacher's translations alone.
        args: Training of the student, as for `train_translation`.
        num_hypotheses: Translations of each source, the best ones of a beam search.
        num_beams: Beams of the teacher (default: its own setting).
        max_tokens: Source tokens x beams that the teacher decodes at once.

    Returns:
        The entries of `distillation.json`: scores, speed and size of teacher, student and export on the test pairs,
        or else the validation pairs. Empty without such pairs, and in all processes but the first.

    Raises:
        ValueError: As `train_translation` and `translate_lines`; or CTranslate2 is not installed.
    """
    # Fail before hours of translation.
    if missing := ctranslate2_missing():
        raise ValueError(f"CTranslate2, which the student is exported to, cannot be used: {missing}")
    if data_args.streaming:
        raise DataError("`streaming`: the teacher needs the training pairs in memory; leave it out")
    if others := data_args.corpora or data_args.monolingual_target:
        raise DataError(f"{others}: distillation uses only the training pairs and the teacher's; leave other text out")
    if (Features.of(tokenizer) is None) != (not data_args.feature_columns):
        raise DataError("teacher and text must both have feature columns, or neither; set `feature_columns` likewise")
    languages = model_languages(tokenizer, data_args.source_lang, data_args.target_lang, "the teacher")
    check_arguments(data_args, args, None)
    find_checkpoint(args)
    student = _narrowed(model_args, teacher, tokenizer)
    with args.main_process_first(local=False, desc="reading the data"):
        text = load_text(replace(data_args, train_weight=1.0))
    folder = Path(data_args.synthetic_dir or args.output_dir)
    sources = (source for batch in text.train.iter(1000) for source in batch["source"])
    options: dict[str, Any] = {"num_beams": num_beams, "max_source_length": data_args.max_source_length, **languages}
    options |= {"num_hypotheses": num_hypotheses, "max_tokens": max_tokens}
    files = translate_to_files(teacher, tokenizer, sources, folder / "distilled", args, **options)
    sentences, translations = map(str, files)
    data_args = with_synthetic(data_args, args, source_file=sentences, target_file=translations, hold_out="false")
    if student is not model_args and args.process_index == 0:
        print(f"student      width {NARROW['d_model']}: with 256, it would be larger than its teacher", flush=True)
    train_translation(student, data_args, args)
    if args.process_index > 0:
        return {}
    card = Path(args.output_dir, CARD)
    if card.is_file():
        add_base_models(card, [str(model.name_or_path) for model in getattr(teacher, "members", [teacher])])
    export = Path(args.output_dir, EXPORT_FOLDER)
    # Left by a run that was interrupted later.
    shutil.rmtree(export, ignore_errors=True)
    export_model(args.output_dir, "ctranslate2", export, model_args.trust_remote_code, quantization="int8")
    return _compare(teacher, tokenizer, text, model_args.trust_remote_code, args, languages)


def _narrowed(model_args: ModelArguments, teacher: Any, tokenizer: PreTrainedTokenizerBase) -> ModelArguments:
    """Return the student, narrowed if its preset would make it larger than the teacher."""
    overrides = parse_overrides(model_args.config_overrides)
    # The size of a teacher in another format, such as CTranslate2's, is unknown.
    if model_args.preset not in STUDENT_PRESETS or "d_model" in overrides or not isinstance(teacher, nn.Module):
        return model_args
    with torch.device("meta"):
        student = VanillaTransformerForConditionalGeneration(configuration(model_args, tokenizer))
    if student.num_parameters() <= sum(weight.numel() for weight in teacher.parameters()):
        return model_args
    return with_fields(model_args, config_overrides=join_overrides(NARROW | overrides))


def _compare(
    teacher: Any,
    tokenizer: PreTrainedTokenizerBase,
    text: TextSplits,
    trust_remote_code: bool,
    args: VanillaTransformerTrainingArguments,
    languages: dict[str, str | None],
) -> dict[str, Any]:
    """Measure teacher, student and export; print and save the results."""
    export = Path(args.output_dir, EXPORT_FOLDER)
    split, pairs = ("validation", text.validation) if text.test is None else ("test", text.test)
    if pairs is None:
        print(f"student      {export}; without validation or test pairs it is not compared with its teacher")
        return {}
    tokenize = bleu_tokenizer(args, text)
    student = load(args.output_dir, device=str(args.device), trust_remote_code=trust_remote_code)
    exported = load_ctranslate2(export, trust_remote_code=trust_remote_code)

    def measure(model: Any, own: PreTrainedTokenizerBase, **options: Any) -> dict[str, Any]:
        # A student with its own tokenizer has one direction.
        options |= languages if is_multilingual(own) else {}
        return _measure(model, own, pairs, tokenize, **options)

    systems = {
        "teacher": measure(teacher, tokenizer),
        "student": measure(*student),
        "student int8": measure(*exported),
        "student int8, greedy": measure(*exported, num_beams=1),
    }
    threads = torch.get_num_threads()
    comparison = {"split": split, "sentences": len(pairs), "threads": threads, "systems": systems}
    with atomic_write(Path(args.output_dir, COMPARISON_FILE)) as file:
        file.write(f"{json.dumps(comparison, indent=2)}\n".encode())
    print(_table(comparison), flush=True)
    return comparison


def _measure(
    model: Any, tokenizer: PreTrainedTokenizerBase, pairs: datasets.Dataset, tokenize: str | None, **options: Any
) -> dict[str, Any]:
    """Return device, BLEU, chrF2, translation time and size (10^6 bytes) of a model."""
    sources = pairs["source"][:]
    translate(model, tokenizer, sources[:WARM_UP_SENTENCES], **options)
    begin = time.perf_counter()
    translations = [hypotheses[0].text for hypotheses in translate(model, tokenizer, sources, **options)]
    seconds = time.perf_counter() - begin
    scores = translation_scores(translations, pairs["target"][:], tokenize=tokenize)
    if isinstance(model, CTranslate2Model):
        size = (model.folder / "model.bin").stat().st_size
    else:
        size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return {
        "device": str(model.device),
        "bleu": scores["bleu"],
        "chrf": scores["chrf"],
        "seconds": seconds,
        "sentences_per_second": len(sources) / seconds,
        "megabytes": size / 1e6,
    }


def _table(comparison: dict[str, Any]) -> str:
    systems = comparison["systems"]
    teacher = systems["teacher"]
    lines = [
        "",
        f"{comparison['sentences']} {comparison['split']} pairs, {comparison['threads']} threads",
        f"{'':20}  {'BLEU':>6}  {'chrF2':>6}  {'sentences/s':>11}  {'MB':>7}  {'speed':>6}  {'size':>6}",
    ]
    for name, system in systems.items():
        figures = "{bleu:6.2f}  {chrf:6.2f}  {sentences_per_second:11.1f}  {megabytes:7.1f}".format(**system)
        speed, size = teacher["seconds"] / system["seconds"], system["megabytes"] / teacher["megabytes"]
        lines.append(f"{name:20}  {figures}  {speed:5.1f}x  {size:5.2f}x")
    return "\n".join(lines)
