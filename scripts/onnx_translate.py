"""Translate lines of text with exported ONNX graphs, without PyTorch or transformers.

    python scripts/export_model.py --model my-model --to onnx --output_dir my-model-onnx
    pip install onnxruntime tokenizers numpy
    python onnx_translate.py --model my-model-onnx --input test.en --output test.de

Greedy search and beam search work as in `generate()`. The file is self-contained: copy it anywhere.

Shapes: B sentences, k beams, N = B * k rows, T target length, V target vocabulary.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

try:
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer
except ModuleNotFoundError as error:
    remedy = f"activate the environment that has it, or run: pip install {error.name}"
    print(f"onnx_translate.py: error: {sys.executable} has no package {error.name}; {remedy}", file=sys.stderr)
    raise SystemExit(2) from None
except KeyboardInterrupt:
    raise SystemExit(130) from None

# Section 6.1 of the paper: by how many tokens an output may exceed its source.
EXTRA_OUTPUT_TOKENS = 50

# Score of a masked beam; finite, so sums never become NaN.
MASKED_SCORE = np.float32(-1e9)

STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1")


class Translator:
    """An exported model and its tokenizer."""

    def __init__(
        self,
        folder: Path,
        threads: int = 0,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        target_lang: str | None = None,
    ):
        """Load both from a folder written by `export_model.py --to onnx`; None keeps the model's setting."""
        config, generation, tokenizer = (
            json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("config", "generation_config", "tokenizer_config")
        )
        self.max_positions = config["max_position_embeddings"]
        self.pad = config.get("pad_token_id") or 0
        starts = (generation.get("decoder_start_token_id"), config["decoder_start_token_id"])
        self.start = next(token for token in starts if token is not None)
        ends = generation.get("eos_token_id")
        self.ends = np.atleast_1d(np.array([] if ends is None else ends, int))
        new_tokens = generation.get("max_new_tokens")
        # Counts the start token, as `max_length` does; None: depends on the source length.
        self.max_length = generation.get("max_length") if new_tokens is None else 1 + new_tokens
        self.min_new_tokens = generation.get("min_new_tokens") or 0
        # `generate()` never bans the end token.
        self.banned = [word[0] for word in generation.get("bad_words_ids") or [] if word[0] not in self.ends]
        self.ngram_size = generation.get("no_repeat_ngram_size") or 0
        self.forced_end = generation.get("forced_eos_token_id")
        self.num_beams = num_beams or generation.get("num_beams") or 1
        penalties = (length_penalty, generation.get("length_penalty"), 1.0)
        self.length_penalty = next(value for value in penalties if value is not None)
        self.early_stopping = generation.get("early_stopping") or False
        # Separate vocabularies, or a shared one.
        sides = [folder / f"{side}_tokenizer.json" for side in ("source", "target")]
        files = [file if file.is_file() else folder / "tokenizer.json" for file in sides]
        if not files[0].is_file():
            raise ValueError(f"{folder} has no tokenizer.json: this kind of tokenizer needs transformers")
        self.source_tokenizer, self.target_tokenizer = (Tokenizer.from_file(str(file)) for file in files)
        # Added tokens, which the tokenizer recognizes in texts but does not skip in decoding.
        added = [self.target_tokenizer.token_to_id(token) for token in tokenizer.get("extra_special_tokens") or []]
        self.skipped = {index for index in added if index is not None}
        self.source_tokenizer.no_padding()
        self.source_tokenizer.no_truncation()
        # If set, text that spells a special token is split like any other.
        self.source_tokenizer.encode_special_tokens = tokenizer.get("split_special_tokens", False)
        self.language = None
        if target_lang is not None:
            # Multilingual models: the first source token names the target language.
            self.language = self.source_tokenizer.token_to_id(f"__{target_lang}__")
            known = dict.fromkeys(target for _, target in tokenizer.get("directions") or [])
            if target_lang not in known or self.language is None:
                raise ValueError(f"--target_lang {target_lang} is none of {', '.join(known) or 'no languages'}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # The names of 8-bit graphs end in "_quantized".
        files = [next(folder.glob(f"onnx/{name}*.onnx")) for name in ("encoder_model", "decoder_model_merged")]
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"]) for file in files
        )

    def translate(self, sentences: list[str]) -> list[str]:
        """Translate a batch of sentences; a blank one gives an empty translation."""
        rows = [i for i, sentence in enumerate(sentences) if sentence.strip()]
        texts = [""] * len(sentences)
        if rows:
            ids = [encoding.ids for encoding in self.source_tokenizer.encode_batch([sentences[i] for i in rows])]
            if self.language is not None:
                ids = [[self.language, *row[1:]] for row in ids]
            ids = [[index for index in row if index not in self.skipped] for row in self.generate(ids)]
            outputs = self.target_tokenizer.decode_batch(ids, skip_special_tokens=True)
            for i, text in zip(rows, outputs, strict=True):
                texts[i] = text
        return texts

    def generate(self, sources: list[list[int]]) -> list[list[int]]:
        """Return the target ids of a batch of sources."""
        longest = max(map(len, sources))
        if longest > self.max_positions:
            raise ValueError(
                f"a source has {longest} tokens, but the graphs hold {self.max_positions} positions; shorten it, or "
                "export with larger --max_positions"
            )
        # Per source, so that a translation does not depend on the rest of its batch.
        bounds = [min(self.max_length or len(ids) + EXTRA_OUTPUT_TOKENS, self.max_positions) for ids in sources]
        search = self._greedy_search if self.num_beams == 1 else self._beam_search
        return search(Hypotheses(self, sources), np.array(bounds))

    def log_probs(self, logits: Any, tokens: Any, bounds: Any) -> Any:
        """Return the log-probabilities (N, V) of the token after `tokens` (N, T), -inf where disallowed.

        `bounds` (N) are the maximum output lengths.
        """
        length = tokens.shape[1]
        if np.isnan(logits).any():
            raise ValueError("the graphs return NaN; export another checkpoint")
        scores = logits - logits.max(-1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
        scores[:, self.banned] = -np.inf
        for row, known in enumerate(tokens.tolist() if self.ngram_size else ()):
            scores[row, repeating_tokens(known, self.ngram_size)] = -np.inf
        if length <= self.min_new_tokens:
            scores[:, self.ends] = -np.inf
        if self.forced_end is not None:
            is_last = length == bounds - 1
            scores[is_last] = -np.inf
            scores[np.ix_(is_last, np.atleast_1d(self.forced_end))] = 0
        return scores

    def _greedy_search(self, hypotheses: "Hypotheses", bounds: Any) -> list[list[int]]:
        tokens = np.full((hypotheses.rows, 1), self.start)
        done = bounds <= 1
        while not done.all():
            scores = self.log_probs(hypotheses.logits(tokens), tokens, bounds)
            chosen = np.where(done, self.pad, scores.argmax(-1))
            tokens = np.concatenate([tokens, chosen[:, None]], 1)
            done |= np.isin(chosen, self.ends) | (tokens.shape[1] >= bounds)
        return [row[:bound] for row, bound in zip(tokens.tolist(), bounds, strict=True)]

    def _beam_search(self, hypotheses: "Hypotheses", bounds: Any) -> list[list[int]]:
        """Follow transformers' beam search, so that its settings mean the same here."""
        beams, sentences = self.num_beams, hypotheses.rows // self.num_beams
        tokens = np.full((sentences, beams, 1), self.start)
        # All beams start out equal, so only the first counts.
        scores = np.where(np.arange(beams) == 0, np.float32(0), MASKED_SCORE)[None].repeat(sentences, 0)
        finished: list[list[tuple[float, list[int]]]] = [[] for _ in range(sentences)]
        is_open = bounds > 1
        # So many candidates leave k unfinished ones even if all end tokens of all beams are among them.
        count = (1 + max(1, len(self.ends))) * beams
        while is_open.any():
            length = tokens.shape[-1]
            rows = tokens.reshape(hypotheses.rows, -1)
            log_probs = self.log_probs(hypotheses.logits(rows), rows, bounds.repeat(beams))
            totals = (scores[..., None] + log_probs.reshape(sentences, beams, -1)).reshape(sentences, -1)
            best = largest(totals, count)
            totals = np.take_along_axis(totals, best, 1)
            origins, chosen = np.divmod(best, log_probs.shape[1])
            tokens = np.concatenate([np.take_along_axis(tokens, origins[..., None], 1), chosen[..., None]], -1)
            ends = np.isin(chosen, self.ends) | (length + 1 >= bounds)[:, None]
            weight = length**-self.length_penalty
            for i in np.flatnonzero(is_open):
                new = [(totals[i, j] * weight, tokens[i, j].tolist()) for j in np.flatnonzero(ends[i, :beams])]
                finished[i] = sorted(finished[i] + new, key=lambda pair: -pair[0])[:beams]
            # The best unfinished ones.
            order = ends.argsort(1, kind="stable")[:, :beams]
            scores = np.take_along_axis(totals + ends * MASKED_SCORE, order, 1)
            tokens = np.take_along_axis(tokens, order[..., None], 1)
            rows = np.take_along_axis(origins, order, 1) + np.arange(0, hypotheses.rows, beams)[:, None]
            hypotheses.select(rows.ravel())
            # The best score that running hypotheses can still reach; "never" assumes the maximum length.
            final = bounds - 1.0 if self.early_stopping == "never" and self.length_penalty > 0 else float(length)
            possible = scores[:, 0] * final**-self.length_penalty
            is_open &= length + 1 < bounds
            for i in np.flatnonzero(is_open):
                is_full = len(finished[i]) == beams
                is_open[i] = not is_full or self.early_stopping is not True and possible[i] > finished[i][-1][0]
        return [best[0][1] if best else [self.start] for best in finished]


class Hypotheses:
    """The running hypotheses of a batch of sources, with the decoder's caches."""

    def __init__(self, translator: Translator, sources: list[list[int]]):
        longest, beams = max(map(len, sources)), translator.num_beams
        self.decoder, self.rows = translator.decoder, len(sources) * beams
        input_ids = np.array([ids + [translator.pad] * (longest - len(ids)) for ids in sources])
        mask = np.array([[1] * len(ids) + [0] * (longest - len(ids)) for ids in sources])
        (states,) = translator.encoder.run(None, {"input_ids": input_ids, "attention_mask": mask})
        self.source = {
            "encoder_attention_mask": mask.repeat(beams, 0),
            "encoder_hidden_states": states.repeat(beams, 0),
        }
        caches = [value for value in self.decoder.get_inputs() if value.name.startswith("past_key_values.")]
        self.past = {
            cache.name: np.zeros((self.rows, cache.shape[1], 0, cache.shape[3]), np.float32) for cache in caches
        }

    def logits(self, tokens: Any) -> Any:
        """Return the logits (N, V) after `tokens` (N, T), of which only the last is new."""
        logits, *past = self.decoder.run(None, {"input_ids": tokens[:, -1:], **self.source, **self.past})
        self.past = dict(zip(self.past, past, strict=True))
        return logits[:, -1]

    def select(self, rows: Any) -> None:
        """Continue with the hypotheses of these rows; each belongs to the same source as the one it replaces."""
        self.past = {name: states[rows] for name, states in self.past.items()}


def repeating_tokens(tokens: list[int], size: int) -> list[int]:
    """Return the tokens that would complete an n-gram of this size which the tokens already contain."""
    start = len(tokens) - size + 1
    last = tokens[max(start, 0) :]
    return [tokens[i + size - 1] for i in range(start) if tokens[i : i + size - 1] == last]


def largest(x: Any, count: int) -> Any:
    """Return the indices (B, count) of the largest values of each row, largest first."""
    indices = np.argpartition(-x, min(count, x.shape[1]) - 1, 1)[:, :count]
    return np.take_along_axis(indices, np.take_along_axis(-x, indices, 1).argsort(1, kind="stable"), 1)


def load(folder: Path, **options: Any) -> Translator:
    """Load a translator; every failure is an OSError or ValueError."""
    try:
        return Translator(folder, **options)
    except (OSError, ValueError):
        raise
    # Each library raises its own errors for damaged files.
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:500]
        raise ValueError(f"{folder} is not a complete export ({text}); export the model again") from error


class OneLineParser(argparse.ArgumentParser):
    """Reports errors in one line, and suggests the closest option for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Exit with one line, without the usage that argparse prints first."""
        known = self._option_string_actions
        for name in (word.partition("=")[0] for word in sys.argv[1:]):
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                near = get_close_matches(name, known, n=1)
                message = f"unknown option {name}" + (f"; did you mean {near[0]}?" if near else "")
        self.exit(2, f"{self.prog}: error: {message}; --help lists the options\n")


def batches(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield batches of lines, without their line ends."""
    while batch := [line.rstrip("\r\n") for line in islice(lines, size)]:
        yield batch


def opened(name: str) -> Any:
    """Open a text file to read; "-" is standard input, which stays open."""
    return nullcontext(sys.stdin) if name == "-" else open(name, encoding="utf-8", newline="\n")


def check_output(name: str, source: str, model: Path) -> None:
    """Raise a ValueError if the output would replace the input or a model file, or its folder does not exist."""
    target = Path("/dev/stdout" if name in STANDARD_OUTPUT else name)
    if name not in STANDARD_OUTPUT and not target.resolve().parent.is_dir():
        raise ValueError(f"--output {name}: there is no folder {target.resolve().parent}; create it first")
    for file in (source, *map(str, model.glob("onnx/*.onnx")), *map(str, model.glob("*.json"))):
        if file != "-" and target.is_file() and Path(file).exists() and target.samefile(file):
            raise ValueError(f"--output {name} is the input {file} and would replace it; name another file")


@contextmanager
def written(name: str) -> Iterator[Any]:
    """Open standard output, or a file to write, which is renamed into place once complete."""
    if name in STANDARD_OUTPUT:
        yield sys.stdout
        return
    target = Path(name)
    if target.exists() and not target.is_file():
        # A pipe or a device cannot be replaced.
        with target.open("w", encoding="utf-8") as file:
            yield file
        return
    partial = target.with_name(f"{target.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def main() -> None:
    """Translate a file or standard input line by line."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder written by export_model.py --to onnx")
    parser.add_argument("--input", default="-", help="file to translate; - (default): stdin")
    parser.add_argument("--output", default="-", help="file to write; - (default): stdout")
    parser.add_argument("--batch_size", type=int, default=32, help="lines per batch (default: 32)")
    parser.add_argument("--threads", type=int, default=0, help="threads (default: one per core)")
    parser.add_argument("--num_beams", type=int, help="number of beams; 1: greedy (default: the model's setting)")
    parser.add_argument(
        "--length_penalty", type=float, help="above 0 favours long translations (default: the model's setting)"
    )
    parser.add_argument("--target_lang", help="target language of a multilingual model")
    arguments = parser.parse_args()
    sys.stdin.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]  # a stream of text here
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # likewise
    try:
        check_output(arguments.output, arguments.input, arguments.model)
        if arguments.num_beams is not None and arguments.num_beams < 1:
            raise ValueError(f"--num_beams is {arguments.num_beams}; it must be positive")
        if not -100 < (arguments.length_penalty or 0) < 100:
            raise ValueError(f"--length_penalty is {arguments.length_penalty}; it must be above -100 and below 100")
        options = {
            name: getattr(arguments, name) for name in ("threads", "num_beams", "length_penalty", "target_lang")
        }
        translator = load(arguments.model, **options)
        with opened(arguments.input) as lines, written(arguments.output) as output:
            for batch in batches(iter(lines), max(1, arguments.batch_size)):
                for text in translator.translate(batch):
                    print(" ".join(text.splitlines()), file=output, flush=True)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {' '.join(str(error).split())}\n")
    except KeyboardInterrupt:
        parser.exit(130, "interrupted\n")


if __name__ == "__main__":
    main()
