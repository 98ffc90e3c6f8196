"""The same seed gives the same bits, and a translation does not depend on the rest of its batch."""

import json
import os
import random
from pathlib import Path

import pytest
import torch

from experiments import arguments, write_splits
from hf_vanilla_transformer.inference.translation import translate, translate_lines
from hf_vanilla_transformer.pretrained.teacher_forcing import evaluation_mode
from hf_vanilla_transformer.training import train_translation
from processes import run_python, surroundings
from reliability import FULL, cases
from translators import ENGLISH, SHARED, SPANISH, build, set_end_bias, trained

pytestmark = pytest.mark.usefixtures("one_thread")

SEED = 20170612


# Training


RUN = """
import sys
from test_determinism import run
import torch
torch.set_num_threads(1)
run(*sys.argv[1:])
"""


def run(folder, splits, options):
    options = {**json.loads(splits), **json.loads(options)}
    train_translation(
        *arguments(Path(folder), max_steps=6, logging_steps=2, save_strategy="no", eval_strategy="no", **options)
    )


def outcome(folder):
    """Return a run's weight file and losses."""
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    losses = [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in history if "loss" in entry]
    assert len(losses) > 1
    return (folder / "model.safetensors").read_bytes(), losses


@pytest.mark.parametrize("streaming", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_workers_processes_and_hash_seeds_do_not_change_training(tmp_path, streaming, tried):
    splits = json.dumps(write_splits(tmp_path / "text"))
    variants = [{}, {"dataloader_num_workers": 2}, {"preprocessing_num_workers": 2}]
    variants += [{"dataloader_num_workers": 2, "preprocessing_num_workers": 2}]
    variants = variants[-1:] if streaming or not FULL else variants
    (tmp_path / "plain").mkdir()
    run(tmp_path / "plain", splits, json.dumps({"streaming": streaming}))
    expected = outcome(tmp_path / "plain")
    for number, options in enumerate(variants):
        folder = tmp_path / f"{number}"
        options = json.dumps({**options, "streaming": streaming})
        here = os.pathsep.join((surroundings()["PYTHONPATH"], str(Path(__file__).parent)))
        environment = {"PYTHONPATH": here, "PYTHONHASHSEED": str(number + 1)}
        if FULL:
            done = run_python(RUN, folder, splits, options, environment=environment)
            assert done.returncode == 0, done.stderr
        else:
            run(folder, splits, options)
        assert outcome(folder) == expected, f"{options}, PYTHONHASHSEED={number + 1}"
    if FULL:
        what = "trainings with other numbers of workers, of processes, and another hash seed: the same bits"
        tried(what, len(variants))


# Translation


def random_sentences(count, seed=SEED):
    drawn = random.Random(seed)
    words = " ".join(ENGLISH).split()
    return [" ".join(drawn.choices(words, k=drawn.randrange(1, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def trained_model():
    """A partly trained model: where it is undecided, small errors could change the result."""
    torch.manual_seed(SEED)
    words = dict(zip(" ".join(ENGLISH).split(), " ".join(SPANISH).split(), strict=False))
    sources = random_sentences(400, SEED + 1)
    targets = [" ".join(words.get(word, "casa") for word in reversed(source.split())) for source in sources]
    return trained(SHARED, sources, targets, steps=60, rows=32), SHARED


@pytest.fixture(
    params=["random", pytest.param("pair", marks=pytest.mark.slow), pytest.param("trained", marks=pytest.mark.slow)]
)
def translator(request):
    if request.param == "trained":
        return request.getfixturevalue("trained_model")
    return build("shared" if request.param == "random" else "pair")


def check_same(found, expected, name):
    """Check that all n-best lists have the same texts, and scores within 1e-5."""
    texts = [[[each.text for each in row] for row in rows] for rows in (found, expected)]
    scores = [abs(a.score - b.score) for row in zip(found, expected, strict=True) for a, b in zip(*row, strict=True)]
    count = sum(a != b for a, b in zip(*texts, strict=True))
    assert count == 0 and max(scores) < 1e-5, f"{name}: {count} of {len(found)} differ, scores by {max(scores)}"


SEARCHES = {"greedy": {"num_beams": 1}, "beams": {"num_beams": 4, "num_hypotheses": 4}}


@pytest.mark.parametrize("search", SEARCHES)
def test_batch_mates_do_not_change_a_translation(translator, search, tried):
    """N-best lists have equal texts, and scores within 1e-5."""
    sentences = random_sentences(cases(10, 157))
    options = {**SEARCHES[search], "with_scores": True, "max_length": 14}
    alone = translate(*translator, sentences, max_tokens=1, **options)
    assert len({row[0].text for row in alone}) > len(sentences) / 3, "equal outputs would hide a difference"
    order = list(range(len(sentences)))
    random.Random(SEED).shuffle(order)
    shuffled = translate(*translator, [sentences[i] for i in order], **options)
    variants = {
        "one batch": translate(*translator, sentences, **options),
        "small batches": translate(*translator, sentences, max_tokens=150, **options),
        "chunks": list(translate_lines(*translator, iter(sentences), chunk_size=5, **options)),
        "another order": [row for _, row in sorted(zip(order, shuffled, strict=True), key=lambda each: each[0])],
    }
    for name, found in variants.items():
        check_same(found, alone, name)
    what = f"sentences translated alone and in other batches, {search}: the same texts, scores to 1e-5"
    tried(what, len(sentences) * len(variants))


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", ["shared", "pair", "marian"])
def test_batch_mates_do_not_prolong_a_translation(kind, search, tried):
    """Models that never produce the end token, and sentences of very different lengths."""
    # Smaller weights, since rounding errors of scores grow with them.
    model, tokenizer = build(kind, max_position_embeddings=256, **({"init_std": 0.5} if kind == "marian" else {}))
    set_end_bias(model, -1e4)
    sentences = [" ".join(random_sentences(1 + number % 7, number)) for number in range(cases(8, 60))]
    options = {**SEARCHES[search], "with_scores": True}
    alone = translate(model, tokenizer, sentences, max_tokens=1, **options)
    batches = {"one batch": 10**6, "small batches": 1000}
    for name, max_tokens in batches.items():
        check_same(translate(model, tokenizer, sentences, max_tokens=max_tokens, **options), alone, name)
    unscored = translate(model, tokenizer, sentences, **SEARCHES[search])
    assert [[each.text for each in row] for row in unscored] == [[each.text for each in row] for row in alone]
    what = f"sentences without an end, translated alone and with longer ones, {search}: the same texts, scores to 1e-5"
    tried(what, len(sentences) * (len(batches) + 1))


@pytest.mark.parametrize("search", SEARCHES)
def test_the_side_of_padding_does_not_change_a_translation(translator, search, tried):
    model, tokenizer = translator
    sentences = random_sentences(cases(10, 100), SEED + 2)
    num = SEARCHES[search].get("num_hypotheses", 1)
    options = {"num_beams": SEARCHES[search]["num_beams"], "num_return_sequences": num, "max_new_tokens": 12}

    def texts(rows, side):
        inputs = tokenizer(rows, padding=True, padding_side=side, return_tensors="pt", return_token_type_ids=False)
        with evaluation_mode(model):
            return tokenizer.batch_decode(model.generate(**inputs, **options), skip_special_tokens=True)

    alone = [text for sentence in sentences for text in texts([sentence], "right")]
    for side in ("left", "right"):
        found = texts(sentences, side)
        unequal = [i for i, (a, b) in enumerate(zip(found, alone, strict=True)) if a != b]
        assert not unequal, f"padded on the {side}: {len(unequal)} of {len(alone)} differ, first {unequal[0]}"
    tried(f"sentences padded on the left and on the right, {search}: the same texts", 2 * len(sentences))
