"""Tasks, most of them no prose, from training to every way of translating."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient
from transformers import PreTrainedModel, PreTrainedTokenizerBase, pipeline

from experiments import train
from hf_vanilla_transformer.inference.preparation import Preparation
from hf_vanilla_transformer.inference.translation import load, translate
from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.engine import Engine, ServedModel
from hf_vanilla_transformer.training import experiment
from tasks import CHARACTERS, CORPORA, TASKS, corpus, write_splits

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = "d_model=32,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"
SHAPE += ",encoder_ffn_dim=64,decoder_ffn_dim=64,norm_position=pre,dropout=0"
TINY = {"preset": "tiny", "config_overrides": SHAPE}
SHORT = {"max_steps": 40, "max_tokens": 1000, "learning_rate": 0.01, "warmup_steps": 5, "final_num_beams": 2}
SHORT |= {"eval_strategy": "no", "save_strategy": "no", "average_last_checkpoints": 1}

# All tasks are slow in sum: those that had the worst results.
QUICK = {"numbers to words", "text read aloud", "reactions", "phones", "code to code", "Japanese to English"}

# Sources in a form that training did not show, of models whose answers have a form of their own.
UNUSUAL = {
    "text read aloud": ["THE DOG SOLD 3 HATS FOR $5.", "The Dog Sold 3 Hats For $5."],
    "reactions": ["CC(C)NC1CCCCC1.N#CCO", "OCC.CC(=O)O.[C-]#N"],
    "phones": ["ABSOLUT", "Absolut"],
    "transliteration": ["DAN", "Dan"],
    "DNA to protein": ["atggcc", "Atg Gcc Aaa"],
    "inflection": ["WALK V;PST;3;SG", "Walk N;PL"],
    "code to code": ["MAX_SIZE = F(X)", "Total = F(X) + Cost"],
    "questions to SQL": ["HOW MANY USERS HAVE AGE OVER 30?", "How Many Users Have Age Over 30?"],
    "Japanese to English": ["USAはTV。", "TVを見る。"],
}


def each(names):
    slow = {name: () if name in QUICK else pytest.mark.slow for name in names}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=mark) for name, mark in slow.items()])


class Run(NamedTuple):
    folder: Path
    results: dict[str, Any]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    train: list[tuple[str, str]]
    sources: list[str]


def finished(folder, splits, model=TINY, **options):
    """Train on splits; return what there is to ask."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        # Takes as long as all the rest.
        patch.setattr(experiment, "save_pictures", lambda *_: None)
        results = train(folder / "model", model, **write_splits(folder, splits), **{**SHORT, **options})
    model, tokenizer = load(str(folder / "model"), device="cpu")
    sources = [source for source, _ in splits[2]]
    return Run(folder / "model", results, model, tokenizer, splits[0], sources)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run of a task, once for all tests."""

    @cache
    def get(name):
        task = TASKS[name]
        return finished(tmp_path_factory.mktemp("task") / "run", task.splits(), **task.options)

    return get


def changed(run, sources):
    """What the model would be given for sources instead of them."""
    preparation = Preparation(run.model, run.tokenizer)
    given = {}
    for source in sources:
        (text,) = preparation.prepare([source])
        given[source] = [sentence.input_text for sentence in text.sentences]
    return {source: texts for source, texts in given.items() if texts != [source.strip()]}


def translated(run, sources, **options):
    return [best.text for best, *_ in translate(run.model, run.tokenizer, sources, **options)]


def piped(run, sources):
    pipe = pipeline("translation", model=str(run.folder), device="cpu")
    return [record["translation_text"] for record in pipe(list(sources), batch_size=len(sources))]


def served(run, sources):
    engine = Engine([ServedModel("task", run.model, run.tokenizer, patience=0.0)])
    with TestClient(create_application(engine)) as client:
        answer = client.post("/v1/translations", json={"text": list(sources)}).json()
    return [each["text"] for each in answer["translations"]]


def reported(run):
    return (run.folder / "test_translations.txt").read_text().split("\n")[:-1]


def flat(texts):
    """Texts as a file of one line each has them."""
    return [" ".join(text.splitlines()) for text in texts]


def different(run):
    """The ways to translate the test sources that disagree with `translate` and its defaults, with the first case."""
    expected = translated(run, run.sources)
    ways = {
        "raw": translated(run, run.sources, raw=True),
        "pipeline": piped(run, run.sources),
        "server": served(run, run.sources),
    }
    rows = {name: list(zip(run.sources, found, expected, strict=True)) for name, found in ways.items()}
    rows["report"] = list(zip(run.sources, reported(run), flat(expected), strict=True))
    cases = {name: [row for row in found if row[1] != row[2]] for name, found in rows.items()}
    return {f"{name}: {len(found)} of {len(expected)}": found[0] for name, found in cases.items() if found}


@each(TASKS)
def test_sources_reach_the_model_unchanged(trained, name):
    run = trained(name)
    assert changed(run, run.sources) == {}


@each(TASKS)
def test_all_ways_to_translate_agree(trained, name):
    assert different(trained(name)) == {}


@each(["numbers to words", "sums", "Roman numerals"])
def test_a_source_without_letters_is_not_its_own_translation(trained, name):
    run = trained(name)
    answers = translated(run, run.sources)
    assert [source for source, answer in zip(run.sources, answers, strict=True) if answer == source] == []


@each(UNUSUAL)
def test_capitals_of_a_source_say_nothing_about_those_of_its_target(trained, name):
    """Whatever the model was given, its answer stays as it is."""
    run = trained(name)
    preparation = Preparation(run.model, run.tokenizer)
    for source, answer in zip(UNUSUAL[name], translated(run, UNUSUAL[name]), strict=True):
        (text,) = preparation.prepare([source])
        given = [sentence.input_text for sentence in text.sentences]
        assert (source, answer) == (source, " ".join(translated(run, given, raw=True)))


def test_english_sentences_are_apart(trained):
    run, sources = trained("Japanese to English"), ["犬は本が好きだ。", "猫は水を見る。"]
    assert translated(run, ["".join(sources)]) == [" ".join(translated(run, sources))]


@pytest.mark.slow
def test_long_targets_come_out_whole(trained):
    run = trained("key to long text")
    sources, targets = zip(*run.train, strict=True)
    for way in (translated, piped, served):
        assert [*map(len, way(run, sources))] == [*map(len, targets)], way.__name__
        assert way(run, sources) == [*targets], way.__name__
    assert run.results["test_exact_match"] == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text read aloud", "questions to SQL", "code to code", "captions"])
def test_auto(tmp_path, name):
    """Noise and placeholders, where `auto` chooses them, do not separate the report from what users get."""
    options = {**TASKS[name].options, "max_steps": 20, "learning_rate": None, "warmup_steps": None}
    run = finished(tmp_path / "run", TASKS[name].splits(), {"preset": "auto", "config_overrides": SHAPE}, **options)
    assert reported(run) == flat(translated(run, run.sources))
    if name == "text read aloud":
        assert changed(run, run.sources) == {}
        assert reported(run) == flat(translated(run, run.sources, raw=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPORA)
def test_corpora(tmp_path, shared_data, name):
    """Every test source reaches the model unchanged, but for those with a letter that no training source has."""
    pairs, validation, test = corpus(shared_data, name)
    letters = {letter: pair for pair in pairs for letter in pair[0]}
    longest = sorted(pairs, key=lambda pair: -len(pair[0]))[:50]
    sample = [*pairs[:: -(-len(pairs) // 1500)], *letters.values(), *longest]
    run = finished(tmp_path / "run", [sample, validation[:20], test[:20]], **CHARACTERS, min_frequency=1)
    # Lost or not, ASCII is never unknown to preparation.
    sources = [source for source, _ in test if all(each.isascii() or each in letters for each in source)]
    assert len(sources) >= len(test) - 5
    assert changed(run, sources) == {}
    assert different(run) == {}
