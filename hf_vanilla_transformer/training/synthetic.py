"""Synthetic pairs: sentences and their translations by a model, in files that later runs reuse."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, tee
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.arguments import DataArguments
from ..data.corpora import BACK_TRANSLATED, with_entry
from ..errors import DataError
from ..files import LINE_ENDS_TO_SPACES, atomic_write, read_lines
from ..inference.decoding import Hypothesis
from ..inference.fingerprint import model_fingerprint
from ..inference.line_output import Share, line_output
from ..inference.translation import CHUNK_SIZE, load, translate_lines
from ..pretrained.languages import model_languages
from .arguments import VanillaTransformerTrainingArguments
from .run_folder import make_folder
from .text_splits import load_text

logger = logging.get_logger(__name__)

# List of corpora in the folder of a run with synthetic pairs; it may differ between runs that share translations.
CORPORA_FILE = "corpora.json"


class SyntheticText(NamedTuple):
    """Two line-aligned files: sentences, each repeated for every translation, and their translations."""

    sentences: Path
    translations: Path


def translate_to_files(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    files: str | Path,
    args: VanillaTransformerTrainingArguments,
    *,
    num_hypotheses: int = 1,
    **options: Any,
) -> SyntheticText:
    """Translate sentences into files whose names begin with `files`, or reuse those of an earlier call.

    The names also contain a fingerprint of model, settings and sentences. After an interruption, the same call
    continues. Blank and repeated sentences are left out. Translations that are blank, or were cut off at the length
    limit, become empty lines; training drops these pairs, like all pairs with an empty side. Options are those of
    `translate_lines`; None means the default.

    Raises:
        DataError: There are no sentences, a file cannot be written, or several processes would write the files.
        ValueError: As for `translate_lines`.
    """
    lines = [line for sentence in sentences if (line := sentence.translate(LINE_ENDS_TO_SPACES)).strip()]
    lines = [*dict.fromkeys(lines)]
    if not lines:
        raise DataError("there are no sentences to translate, except for blank ones; check the text")
    settings = {"num_hypotheses": num_hypotheses} | {key: value for key, value in options.items() if value is not None}
    stem = f"{files}-{_fingerprint(model_fingerprint(model, tokenizer), settings, lines)}"
    text = SyntheticText(*(Path(f"{stem}.{part}.txt") for part in SyntheticText._fields))
    if not all(file.is_file() for file in text):
        if args.world_size > 1:
            raise DataError(
                f"{text.translations} must be written by one process, not by {args.world_size}; start without a "
                "launcher until it exists"
            )
        make_folder(Path(files).parent, "synthetic_dir")
        _translate(model, tokenizer, lines, text, settings, show_progress=not args.disable_tqdm)
    if args.process_index == 0:
        empty = sum(not line for line in read_lines(text.translations))
        count = len(lines) * num_hypotheses
        print(f"synthetic    {count} in {text.translations}, {empty} empty or cut off", flush=True)
        if empty == count:
            logger.warning(f"{text.translations}: no translation is usable; train its model for longer")
    return text


def with_back_translations(
    data_args: DataArguments, args: VanillaTransformerTrainingArguments, trust_remote_code: bool = False
) -> DataArguments:
    """Return arguments with an additional corpus of monolingual text and its back-translations, if there is such text.

    Sentences that are validation or test targets are left out, because the model is scored on them.
    """
    if not (data_args.monolingual_target and data_args.reverse_model):
        return data_args
    with args.main_process_first(local=False, desc="reading the data"):
        text = load_text(replace(data_args, monolingual_target=None, reverse_model=None, train_weight=1.0))
    if text.has_several_directions:
        raise DataError(
            "`monolingual_target` supports only one direction; translate the text, and list the pairs with a tag"
        )
    held_out = {line.strip() for pairs in (text.validation, text.test) if pairs for line in pairs["target"][:]}
    lines = [line for path in data_args.monolingual_target for line in read_lines(path)]
    usable = [line for line in lines if line.strip() not in held_out]
    if (excluded := len(lines) - len(usable)) and args.process_index == 0:
        logger.warning(f"{excluded} of {len(lines)} monolingual sentences are validation or test targets: left out")
    model, tokenizer = load(data_args.reverse_model, device=str(args.device), trust_remote_code=trust_remote_code)
    source_lang, target_lang = text.parts[0].direction
    options: dict[str, Any] = {
        **model_languages(tokenizer, target_lang, source_lang, f"`reverse_model` {data_args.reverse_model}"),
        "max_source_length": data_args.max_target_length,
    }
    folder = Path(data_args.synthetic_dir or args.output_dir)
    files = translate_to_files(model, tokenizer, usable, folder / "back-translated", args, **options)
    pairs = {"source_file": str(files.translations), "target_file": str(files.sentences)}
    if source_lang and target_lang:
        pairs |= {"source_lang": source_lang, "target_lang": target_lang}
    return with_synthetic(data_args, args, **pairs, tag=BACK_TRANSLATED)


def with_synthetic(data_args: DataArguments, args: VanillaTransformerTrainingArguments, **entry: str) -> DataArguments:
    """Return arguments with an additional corpus, given by the keys of its entry, in the run's `corpora.json`."""
    make_folder(Path(args.output_dir))
    # Processes of several machines may share the folder.
    with args.main_process_first(local=False, desc="listing the corpora"):
        return with_entry(data_args, Path(args.output_dir, CORPORA_FILE), **entry)


def _fingerprint(model: str, settings: dict[str, Any], lines: Sequence[str]) -> str:
    # The batch size does not change translations.
    decisive = {key: value for key, value in settings.items() if key != "max_tokens"}
    digest = hashlib.blake2b(json.dumps([model, decisive], sort_keys=True).encode(), digest_size=6)
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _translate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    lines: Sequence[str],
    text: SyntheticText,
    settings: dict[str, Any],
    show_progress: bool,
) -> None:
    number = settings["num_hypotheses"]
    repeated = [line for line in lines for _ in range(number)]
    with atomic_write(text.sentences) as stream:
        stream.writelines(f"{line}\n".encode() for line in repeated)
    # Resume at whole chunks, which have all translations of each sentence.
    share = Share(CHUNK_SIZE * number)
    again = "start it again"
    with line_output(str(text.translations), repeated, settings, share, resume=True, again=again) as output:
        sources, pending = tee(islice(output.sources, None, None, number))
        translations = translate_lines(model, tokenizer, sources, show_progress=show_progress, **settings)
        for hypotheses, _ in zip(translations, pending, strict=True):
            for hypothesis in hypotheses:
                translation = hypothesis.text.translate(LINE_ENDS_TO_SPACES)
                output.write("" if is_cut_off(hypothesis) or not translation.strip() else translation)


def is_cut_off(hypothesis: Hypothesis) -> bool:
    """Whether a translation ended only at the length limit."""
    return "limit" in (hypothesis.remarks or ())
