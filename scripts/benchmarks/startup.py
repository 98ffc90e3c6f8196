"""Start-up time: importing, and the first translation, each in a fresh process."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.data.toy_corpus import load_toy_corpus

from .arguments import BenchmarkArguments
from .baselines import marian_like, our_model
from .machine import run_python
from .measure import OURS, Case, Disagreement

IMPORTS = {
    OURS: "from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration",
    "marian": "from transformers import MarianMTModel",
}
MODEL_IMPORTS = {
    OURS: "import hf_vanilla_transformer; from transformers import AutoModelForSeq2SeqLM as Model",
    "marian": "from transformers import MarianMTModel as Model",
}
TRANSLATE = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = Model.from_pretrained(sys.argv[1])
source = tokenizer(["This is the first sentence."], return_tensors="pt", return_token_type_ids=False)
print(model.generate(**source, max_new_tokens=16, num_beams=1, do_sample=False)[0].tolist())
"""


def startup_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare the time to import, and to a saved model's first translation."""
    names = [OURS, *(["marian"] if "marian" in args.baselines else [])]
    yield Case("startup", "import", {name: fresh_process(f"{IMPORTS[name]}; print('done')") for name in names})
    for preset in args.preset:
        with tempfile.TemporaryDirectory() as folder:
            save_models(preset, Path(folder), args)
            programs = {
                name: fresh_process(MODEL_IMPORTS[name] + TRANSLATE, str(Path(folder, name))) for name in names
            }
            translations = {name: program() for name, program in programs.items()}
            if len(set(translations.values())) > 1:
                raise Disagreement(f"the first translations differ: {translations}; timings are not comparable")
            yield Case("startup", f"first translation, {preset}, float32", programs)


def fresh_process(program: str, *arguments: str) -> Callable[[], str]:
    """Return a function that runs a program in a fresh process and returns the last line of its output."""
    return lambda: run_python(program, *arguments, HF_HUB_OFFLINE="1")


def save_models(preset: str, folder: Path, args: BenchmarkArguments) -> None:
    """Save our model and Marian with the same weights and tokenizer, each in a folder with its name."""
    torch.manual_seed(args.seed)
    corpus = load_toy_corpus()["train"]
    tokenizer = train_tokenizer(corpus["source"][:], algorithm="bpe", vocab_size=args.text_vocab_size)
    ours: Any = our_model(preset, vocab_size=args.vocab_size[0])
    for name, model in ((OURS, ours), ("marian", marian_like(ours))):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
