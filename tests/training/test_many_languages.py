"""Training in many directions: source prefixes, rows of an epoch, and scores."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from experiments import MODEL, SHAPE, TINY, arguments, assert_equal_weights, history, sentences, set_up, train, weights
from hf_vanilla_transformer import VanillaTransformerMultilingualTokenizer
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.inference.ctranslate2 import check_settings
from hf_vanilla_transformer.inference.preparation import Preparation
from hf_vanilla_transformer.inference.translation import load, translate
from hf_vanilla_transformer.pretrained.languages import language_pairs, recorded_pivots
from hf_vanilla_transformer.pretrained.text_facts import facts_of
from hf_vanilla_transformer.training import synthetic
from parallel_text import tsv, write
from paths import SCRIPTS
from processes import run_in_two
from translators import save_translator

pytestmark = pytest.mark.usefixtures("one_thread")

# Targets of "de" are in capitals, those of "es" have digits.
DIGITS = {word: f"{word[0]}{i}" for i, word in enumerate(["ant", "bee", "cat", "dog", "eel", "fox"])}


def spanish(pairs):
    return [(source, " ".join(DIGITS[word] for word in source.split())) for source, _ in pairs]


@pytest.fixture
def corpora(tmp_path):
    """A list of three directions, with tagged pairs, and validation and test pairs of some of them."""
    folder = tmp_path / "text"
    folder.mkdir()
    texts = {
        "de": sentences(60),
        "es": spanish(sentences(20, 1)),
        "tagged": [pair[::-1] for pair in sentences(10, 2)],
        "val.de": sentences(6, 1),
        "val.es": spanish(sentences(5, 2)),
    }
    for name, pairs in texts.items():
        write(folder / f"{name}.tsv", tsv(pairs))
    german = f"source_lang: en, target_lang: de, file: {folder}"
    listed = f"""corpora:
  - {{{german}/de.tsv, both_directions: true}}
  - {{source_lang: en, target_lang: es, file: {folder}/es.tsv}}
  - {{source_lang: de, target_lang: en, file: {folder}/tagged.tsv, tag: made}}
validation:
  - {{{german}/val.de.tsv, both_directions: true}}
  - {{source_lang: en, target_lang: es, file: {folder}/val.es.tsv}}
test:
  - {{{german}/val.de.tsv}}
  - {{source_lang: de, target_lang: es, file: {folder}/val.es.tsv}}
"""
    path = folder / "corpora.yaml"
    path.write_text(listed)
    return {"corpora": str(path)}


def with_temperature(corpora, temperature):
    path = Path(corpora["corpora"])
    path.write_text(f"{path.read_text()}sampling_temperature: {temperature}\n")
    return corpora


def decoded(tokenizer, row):
    return tokenizer.convert_ids_to_tokens(row["input_ids"]), tokenizer.decode(row["labels"], skip_special_tokens=True)


def language_of(text):
    if text[1:2].isdigit():
        return "es"
    return "de" if text.isupper() else "en"


@pytest.mark.parametrize("streaming", [False, True])
def test_words_are_those_of_the_source_language(tmp_path, streaming):
    """A typo in one language may be a word of the other, and case differs."""
    write(tmp_path / "pairs.tsv", tsv([("the many goes hand", "der mann geht Hand")] * 20))
    path = write(
        tmp_path / "corpora.yaml",
        f"corpora: [{{file: {tmp_path}/pairs.tsv, source_lang: en, target_lang: de, both_directions: true}}]",
    )
    options = {"corpora": path, "streaming": streaming, "max_steps": 2, "eval_strategy": "no"}
    experiment = set_up(tmp_path / "run", **options)
    experiment.trainer.save_model(tmp_path / "model")
    model, tokenizer = load(tmp_path / "model")
    facts = facts_of(model.generation_config, tokenizer)
    assert facts.words == {"de": "Hand der geht mann", "en": "goes hand many the"}
    assert "Hand" in facts.spellings["de"].split() and "Hand" not in facts.spellings["en"]
    check_settings(model.generation_config.to_dict())
    preparation = Preparation(model, tokenizer)
    for direction, text in {("de", "en"): "hte mann gose", ("en", "de"): "the mnan goes"}.items():
        assert preparation.sentence("hte mnan gose", direction=direction).text == text


def test_words_of_the_only_source_language_are_not_those_of_others(tmp_path):
    """Zero-shot directions have other sources."""
    path = write(tmp_path / "pairs.tsv", tsv([("the dog goes", "der Hund geht")] * 20))
    corpora = [f"{{file: {path}, source_lang: en, target_lang: {target}}}" for target in ("de", "es")]
    listed = write(tmp_path / "corpora.yaml", f"corpora: [{', '.join(corpora)}]")
    experiment = set_up(tmp_path / "run", corpora=listed, max_steps=2, eval_strategy="no")
    facts = facts_of(experiment.trainer.model.generation_config, experiment.tokenizer)
    assert facts.words == {"en": "dog goes the"}


def test_pairs_that_a_corpus_repeats_are_dropped(corpora, tmp_path):
    german = {*sentences(60)}
    write(tmp_path / "text" / "de.tsv", tsv([*sentences(60), *german]))
    ids = set_up(tmp_path / "run", **corpora, guided_alignment="auto", drop_repeated=True).ids
    assert Counter(ids.train["part"]) == {0: len(german), 1: len(german), 2: 20, 3: 10}
    kept, counts = 2 * len(german) + 30, ids.counts["train"]
    assert str(counts) == f"read {kept + 120}, kept {kept}: 120 repeated"
    with pytest.raises(DataError, match="`drop_repeated` needs all pairs in memory"):
        set_up(tmp_path / "other", **corpora, drop_repeated=True, streaming=True, max_steps=2)


class TestTokens:
    def test_of_each_part(self, corpora, tmp_path):
        experiment = set_up(tmp_path / "run", **corpora, guided_alignment="auto")
        tokenizer, ids = experiment.tokenizer, experiment.ids.train
        assert isinstance(tokenizer, VanillaTransformerMultilingualTokenizer)
        assert tokenizer.directions == [("en", "de"), ("de", "en"), ("en", "es")]
        begins = [["__de__"], ["__en__"], ["__es__"], ["__en__", "<made>"]]
        found = Counter()
        for row in ids:
            tokens, target = decoded(tokenizer, row)
            begin = begins[row["part"]]
            words = tokens[len(begin) : -1]
            assert tokens[: len(begin)] == begin and f"__{language_of(target)}__" == begin[0]
            assert tokens[-1] == "</s>" and not any(token.startswith("_") for token in words)
            assert not any(token.startswith("__") for token in tokenizer.convert_ids_to_tokens(row["labels"]))
            sources = row["alignments"][::2]
            assert all(len(begin) <= source < len(tokens) - 1 for source in sources)
            found[row["part"]] += 1
        assert found == {0: 60, 1: 60, 2: 20, 3: 10}
        # Both directions of a pair have the same links.
        rows = {row["part"]: [] for row in ids}
        for row in ids:
            links = zip(row["alignments"][::2], row["alignments"][1::2], strict=True)
            rows[row["part"]].append({(source - 1, target) for source, target in links})
        assert any(rows[0]) and rows[1] == [{link[::-1] for link in links} for links in rows[0]]

    def test_the_vocabulary_has_room_for_them(self, corpora, tmp_path):
        model = {**SHAPE, "tokenizer_algorithm": "bpe", "vocab_size": 300}
        tokenizer = set_up(tmp_path / "run", model, **corpora).tokenizer
        assert len(tokenizer) <= 300 and {"__en__", "<made>"} <= tokenizer.get_vocab().keys()

    def test_they_stay_where_each_epoch_tokenizes_anew(self, corpora, tmp_path):
        model = {**SHAPE, "tokenizer_algorithm": "bpe", "vocab_size": 400}
        trainer = set_up(tmp_path / "run", model, **corpora, augment="items=1,lower=0.5").trainer
        tokenizer, begins = trainer.processing_class, Counter()
        for batch in trainer.get_train_dataloader():
            for tokens in map(tokenizer.convert_ids_to_tokens, batch["input_ids"].tolist()):
                begins[tuple(token for token in tokens if token.startswith(("__", "<made>")))] += 1
                assert tokens[0].startswith("__") and not tokens[2].startswith("__")
        assert begins == {("__de__",): 60, ("__en__",): 60, ("__es__",): 20, ("__en__", "<made>"): 10}

    def test_of_a_stream(self, corpora, tmp_path):
        trainer = set_up(tmp_path / "run", **corpora, streaming=True, max_steps=2).trainer
        rows = [row for _, row in zip(range(60), trainer.train_dataset, strict=False)]
        for row in rows:
            tokens, target = decoded(trainer.processing_class, row)
            assert tokens[0] == f"__{language_of(target)}__"
        assert {len(row) for row in rows} == {2}

    def test_a_tag_without_languages(self, tmp_path):
        path = tmp_path / "x.yaml"
        path.write_text(f"corpora: [{{file: {write(tmp_path / 'made.tsv', tsv(sentences(10, 1)))}, tag: made}}]")
        train_file = write(tmp_path / "x.tsv", tsv(sentences()))
        experiment = set_up(tmp_path / "run", train_file=train_file, corpora=str(path))
        made = experiment.tokenizer.convert_tokens_to_ids("<made>")
        assert [row["input_ids"][0] == made for row in experiment.ids.train] == [False] * 80 + [True] * 10
        assert not isinstance(experiment.tokenizer, VanillaTransformerMultilingualTokenizer)


class TestSampling:
    def test_an_epoch_follows_the_temperature(self, corpora, tmp_path):
        trainer = set_up(tmp_path / "run", **with_temperature(corpora, 1e9)).trainer
        parts = np.array(trainer.train_dataset["part"])
        sampler = trainer.get_train_dataloader().batch_sampler
        drawn = Counter(parts[row] for batch in sampler for row in batch)
        # 150 pairs, 50 in each direction; those of one direction are divided into 60 and 10.
        assert drawn == {0: 50, 1: round(50 * 6 / 7), 2: 50, 3: round(50 / 7)}

    def test_the_same_weights_after_an_interruption(self, corpora, tmp_path):
        # The last weights, not the best of the checkpoints, of which the second folder has fewer.
        options = with_temperature(corpora, 3) | {"save_strategy": "epoch", "eval_strategy": "no"}
        options["average_last_checkpoints"] = 0
        train(tmp_path / "whole", **options, num_train_epochs=3)
        checkpoint = min((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
        train(tmp_path / "part", **options, num_train_epochs=3, resume_from_checkpoint=str(checkpoint))
        assert_equal_weights(weights(tmp_path / "whole"), weights(tmp_path / "part"))

    @pytest.mark.slow
    def test_two_processes(self, corpora, tmp_path):
        """One batch per epoch, shared by two processes."""
        options = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_tokens": 100000}
        options |= {"config_overrides": f"{TINY},dropout=0", "num_train_epochs": 4, "logging_steps": 1}
        options |= with_temperature(corpora, 3)
        one, two = tmp_path / "one", tmp_path / "two"
        results = train(one, **options)
        settings = {"preset": "tiny", "tokenizer_algorithm": "word", "min_frequency": 1, "warmup_steps": 10}
        settings |= {**options, "use_cpu": True, "output_dir": two}
        run_in_two(SCRIPTS / "train_translation.py", *(f"--{name}={value}" for name, value in settings.items()))
        for key in ("loss", "eval_chrf", "eval_chrf_en-es"):
            np.testing.assert_allclose(history(two, key), history(one, key), atol=1e-5)
        assert history(one)[0][1] - history(one)[-1][1] > 0.01
        found = json.loads((two / "all_results.json").read_text())
        scores = [name for name in results if "chrf" in name and "signature" not in name]
        assert [found[name] for name in scores] == pytest.approx([results[name] for name in scores])

    def test_another_list_is_a_change(self, corpora, tmp_path):
        train(tmp_path / "run", **corpora)
        with pytest.raises(ValueError, match="was trained differently: directions, weights, tags or"):
            train(tmp_path / "run", **with_temperature(corpora, 3), resume_from_checkpoint="last")

    def test_sentence_batches_cannot_follow_it(self, corpora, tmp_path):
        with pytest.raises(ValueError, match="`sampling_temperature` need token-budget batches; set `max_tokens`"):
            set_up(tmp_path / "run", **with_temperature(corpora, 3), max_tokens=0)


class TestResults:
    def test_by_direction_and_their_mean(self, corpora, tmp_path):
        results = train(tmp_path / "run", **corpora, num_train_epochs=1)
        assert results["directions"] == [["en", "de"], ["de", "en"], ["en", "es"]]
        for split, names in {"validation_trained": ["en-de", "de-en", "en-es"], "test": ["en-de", "de-es"]}.items():
            scores = [results[f"{split}_ser_{name}"] for name in names]
            assert results[f"{split}_ser"] == pytest.approx(np.mean(scores))
        card = (tmp_path / "run" / "README.md").read_text()
        assert "\nlanguage:\n- en\n- de\n- es\n" in card and "| de-es | " in card and "en to es" in card
        assert 'tokenizer.src_lang, tokenizer.tgt_lang = "en", "de"' in card
        assert results["sample_languages"] == ["en", "de"]
        assert len((tmp_path / "run" / "test_translations.txt").read_text().splitlines()) == 11

    def test_the_card_shows_how_to_translate_its_example(self, corpora, tmp_path):
        text = Path(corpora["corpora"]).read_text()
        # The first test pairs are not of the first direction.
        order = text.split("test:\n")[1].splitlines()[::-1]
        Path(corpora["corpora"]).write_text(text.split("test:")[0] + "test:\n" + "\n".join(order))
        train(tmp_path / "run", **corpora, max_steps=1)
        card = (tmp_path / "run" / "README.md").read_text()
        example = spanish(sentences(5, 2))[0][0]
        assert f'tokenizer.src_lang, tokenizer.tgt_lang = "de", "es"\ninputs = tokenizer(["{example}"]' in card

    def test_a_direction_without_training_pairs(self, corpora, tmp_path):
        path = Path(corpora["corpora"])
        held_out = path.read_text().splitlines()[-1]
        path.write_text(path.read_text().replace("test:", f"{held_out}\ntest:"))
        results = train(tmp_path / "run", **corpora, max_steps=1, average_last_checkpoints=0)
        model, tokenizer = load(tmp_path / "run")
        (way,) = {"en", ""} & {recorded_pivots(model)["de-es"]}
        sources = [source for source, _ in spanish(sentences(5, 2))]
        found = translate(model, tokenizer, sources, src_lang="de", tgt_lang="es", pivot=way or "none")
        written = (tmp_path / "run" / "test_translations.txt").read_text().splitlines()
        assert written[-5:] == [best.text for (best,) in found]
        assert "validation_trained_ser_de-es" in results

    @pytest.mark.slow
    def test_each_direction_is_learned(self, corpora, tmp_path):
        model = {**MODEL, "config_overrides": "d_model=32,encoder_layers=2,decoder_layers=1,dropout=0"}
        train(tmp_path / "run", model, **corpora, num_train_epochs=60, learning_rate=0.005)
        model, tokenizer = load(tmp_path / "run")
        assert language_pairs(tokenizer) == [("en", "de"), ("de", "en"), ("en", "es")]
        for source, languages in {"cat dog": ("en", "de"), "CAT DOG": ("de", "en"), "dog cat": ("en", "es")}.items():
            tokenizer.src_lang, tokenizer.tgt_lang = languages
            assert language_of(translate(model, tokenizer, [source], raw=True)[0][0].text) == languages[1]


class TestContinuing:
    def test_one_direction_of_a_multilingual_model(self, corpora, tmp_path):
        """A language that the model knows, and one that it does not."""
        train(tmp_path / "run", **corpora, max_steps=1)
        files = {"train_file": write(tmp_path / "x.tsv", tsv(sentences()))}
        given = {"model_name_or_path": str(tmp_path / "run"), **files}
        for language in ("de", "fr"):
            experiment = set_up(tmp_path / language, {}, **given, source_lang="en", target_lang=language)
            tokenizer = experiment.tokenizer
            assert {row["input_ids"][0] for row in experiment.ids.train} == {tokenizer.get_lang_id(language)}
            assert experiment.trainer.model.config.vocab_size == len(tokenizer)
        with pytest.raises(ValueError, match="several languages; set `source_lang` and `target_lang`"):
            set_up(tmp_path / "none", {}, **given)

    def test_a_further_language(self, tmp_path):
        model = {**SHAPE, "tokenizer_algorithm": "bpe", "vocab_size": 300}
        pair = {"source_lang": "en", "target_lang": "de"}
        train(tmp_path / "run", model, **pair, train_file=write(tmp_path / "x.tsv", tsv(sentences())))
        before = AutoTokenizer.from_pretrained(tmp_path / "run")
        path = tmp_path / "more.yaml"
        file = write(tmp_path / "es.tsv", tsv(spanish(sentences(20, 1))))
        path.write_text(f"corpora: [{{file: {file}, source_lang: en, target_lang: es}}]")
        given = {"model_name_or_path": str(tmp_path / "run"), "extend_vocab": 20, "corpora": str(path)}
        text = {"train_file": str(tmp_path / "x.tsv"), **pair}
        experiment = set_up(tmp_path / "more", {}, **given, **text)
        tokenizer = experiment.tokenizer
        assert tokenizer.directions == [("en", "de"), ("en", "es")]
        assert before.get_vocab().items() <= tokenizer.get_vocab().items()
        assert experiment.trainer.model.config.vocab_size == len(tokenizer)


class TestFaults:
    def test_a_vocabulary_for_each_side(self, corpora, tmp_path):
        with pytest.raises(ValueError, match="`separate_vocabularies`: several directions need a shared"):
            set_up(tmp_path / "run", {**MODEL, "separate_vocabularies": True}, **corpora)

    def test_monolingual_text_of_several_directions(self, corpora, tmp_path, monkeypatch):
        save_translator("shared", tmp_path / "reverse")
        given = {"monolingual_target": [write(tmp_path / "x", "a\n")], "reverse_model": str(tmp_path / "reverse")}
        model_args, data_args, args = arguments(tmp_path / "run", **corpora, **given)
        with pytest.raises(DataError, match="`monolingual_target` supports only one direction"):
            synthetic.with_back_translations(data_args, args)
