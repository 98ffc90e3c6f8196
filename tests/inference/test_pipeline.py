"""The translation pipeline against `generate()`: inputs, outputs, languages, loading."""

import logging

import datasets
import pytest
import torch
from torch.utils.data import IterableDataset
from transformers import GenerationConfig, pipeline
from transformers.pipelines import PIPELINE_REGISTRY, check_task
from transformers.pipelines.pt_utils import KeyDataset

from hf_vanilla_transformer import TranslationPipeline, train_tokenizer
from hf_vanilla_transformer.inference.pipeline import register
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.pretrained.output_limits import LENGTH_BOUNDS
from tables import looped
from translators import ENGLISH, PAIR, SPANISH, build, save_translator, several_languages

KINDS = ("shared", "pair", "learned", "marian", "bart")
pytestmark = pytest.mark.usefixtures("one_thread")
BEAMS = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 6}


@pytest.fixture
def pipe():
    model, tokenizer = build("shared")
    return pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")


def test_weights_that_are_not_finite():
    model, tokenizer = build("shared")
    model.lm_head.bias.data[3] = float("inf")
    with pytest.raises(ValueError, match="^model: 1 of 34 numbers in lm_head.bias are NaN or infinite"):
        pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")


def expected_texts(model, tokenizer, sentences, **options):
    """Decode sentence by sentence, without this package's inference code."""
    found = []
    for sentence in sentences:
        source = tokenizer(sentence, return_tensors="pt")
        source.pop("token_type_ids", None)
        ids = model.generate(**source, **options)
        found.append([tokenizer.decode(row, skip_special_tokens=True) for row in ids])
    return found


def texts(records):
    return [record["translation_text"] for record in records]


class TestInputs:
    def test_a_text_a_list_a_tuple_and_batches(self, translator):
        model, tokenizer = translator
        pipe = pipeline("translation", model=model, tokenizer=tokenizer)
        assert type(pipe) is TranslationPipeline
        expected = expected_texts(model, tokenizer, ENGLISH, max_new_tokens=6)
        (record,) = pipe(ENGLISH[1], max_new_tokens=6)
        assert record == {"translation_text": expected[1][0]}
        assert [[text] for text in texts(pipe(tuple(ENGLISH), max_new_tokens=6))] == expected
        for batch_size in (1, 2, 5):
            assert [[text] for text in texts(pipe(ENGLISH, batch_size=batch_size, max_new_tokens=6))] == expected
        assert pipe([]) == []

    @pytest.mark.parametrize("padding_side", ["left", "right"])
    def test_batches_padded_on_either_side(self, pipe, padding_side, monkeypatch):
        lines = ["", *ENGLISH, " "]
        expected = pipe(lines, max_new_tokens=6)
        monkeypatch.setattr(pipe.tokenizer, "padding_side", padding_side)
        assert pipe(lines, batch_size=3, max_new_tokens=6) == pipe(lines, batch_size=7, max_new_tokens=6) == expected
        assert texts(pipe(["", " "], batch_size=2)) == ["", ""]

    def test_lists_are_batched_by_length(self, pipe, monkeypatch):
        widths, forward = [], pipe._forward

        def recording(inputs, **options):
            widths.append([len(sentence.ids) for sentence in inputs["sentence"]])
            return forward(inputs, **options)

        monkeypatch.setattr(pipe, "_forward", recording)
        pipe(["no", "we see a cat", "no", "we see a red house", "no"], batch_size=2, max_new_tokens=2)
        assert widths == [[6, 5], [2, 2], [2]]

    def test_generators_and_data_sets_are_read_as_they_are_needed(self, pipe):
        expected = [[record] for record in pipe(ENGLISH, max_new_tokens=6)]
        read = []

        def lines():
            for line in ENGLISH:
                read.append(line)
                yield line

        results = pipe(lines(), max_new_tokens=6)
        assert next(iter(results)) == expected[0] and len(read) < len(ENGLISH)
        assert list(pipe((line for line in ENGLISH), max_new_tokens=6, batch_size=2)) == expected
        rows = datasets.Dataset.from_dict({"en": ENGLISH})
        results = pipe(KeyDataset(rows, "en"), max_new_tokens=6, batch_size=3)
        assert list(results) == expected and len(pipe(KeyDataset(rows, "en"))) == len(ENGLISH)

    def test_whatever_gives_texts_one_by_one(self, pipe):
        expected = pipe(ENGLISH, max_new_tokens=6)

        class Stream(IterableDataset):
            def __iter__(self):
                return iter(ENGLISH)

        for inputs in (map(str, ENGLISH), iter(ENGLISH), Stream(), dict.fromkeys(ENGLISH).keys()):
            assert list(pipe(inputs, max_new_tokens=6, batch_size=2)) == [[record] for record in expected]
        column = datasets.Dataset.from_dict({"en": ENGLISH})["en"]
        assert pipe(column, max_new_tokens=6) == expected
        assert list(pipe(iter([]))) == []

    @pytest.mark.parametrize("batch_size", [1, 3])
    def test_blank_texts_have_blank_translations(self, pipe, batch_size):
        results = pipe(["", ENGLISH[0], " \n"], max_new_tokens=6, return_scores=True, batch_size=batch_size)
        assert results[0] == results[2] == {"translation_text": "", "score": 0.0}
        assert results[1]["translation_text"] and results[1]["score"] < 0

    @pytest.mark.parametrize("wrong", [3, None, {"text": "a"}])
    def test_no_text_is_named_by_its_place(self, pipe, wrong):
        message = f"sentence 2 is a {type(wrong).__name__}, not a string"
        items = ["a", wrong]
        pairs = datasets.Dataset.from_dict({"text": [[1], [2]]})
        for inputs in (items, iter(items), torch.utils.data.Subset(items, [0, 1])):
            with pytest.raises(ValueError, match=message):
                list(pipe(inputs, max_new_tokens=2))
        with pytest.raises(ValueError, match="sentence 1 is a list, not a string"):
            list(pipe(KeyDataset(pairs, "text")))
        with pytest.raises(ValueError, match=f"the input is a {type(wrong).__name__}, not text"):
            pipe(wrong)
        for inputs in (["a", "a \ud800"], "a \ud800"):
            with pytest.raises(ValueError, match=r"sentence \d has a lone surrogate, U\+D800, at position 2"):
                pipe(inputs)

    def test_sources_longer_than_the_positions_are_cut_with_a_warning(self, caplog):
        model, tokenizer = build("learned")
        pipe = pipeline("translation", model=model, tokenizer=tokenizer)
        with caplog.at_level(logging.WARNING, TranslationPipeline.__module__):
            fitting = pipe("cat " * 63, max_new_tokens=4, raw=True)
            assert "truncated" not in caplog.text
            assert pipe("cat " * 500, max_new_tokens=4, raw=True) == fitting
            assert "a text longer than the model's 64 positions was truncated: 'cat cat" in caplog.text
            (cut,) = pipe("cat " * 500, max_new_tokens=4)
        assert len(cut["translation_text"]) > 5 * len(fitting[0]["translation_text"])
        assert "a text had a sentence longer than any in training, which was cut: 'cat cat" in caplog.text

    def test_truncation_goes_by_the_tokenizer(self, pipe, monkeypatch, caplog):
        monkeypatch.setattr(pipe.tokenizer, "model_max_length", 4)
        long = "cat dog no we see a house"
        assert pipe(long, truncation=True, max_new_tokens=4) == pipe("cat dog no", max_new_tokens=4)
        (source,) = pipe.preprocess(long)
        assert len(source["sentence"].ids) > 4 and not caplog.records


class TestOutputs:
    @pytest.mark.parametrize("batch_size", [1, 4])
    def test_n_best_with_scores(self, translator, batch_size):
        model, tokenizer = translator
        pipe = pipeline("translation", model=model, tokenizer=tokenizer)
        results = pipe(ENGLISH, **BEAMS, return_scores=True, batch_size=batch_size)
        expected = translate(
            model, tokenizer, ENGLISH, num_hypotheses=2, with_scores=True, num_beams=3, max_new_tokens=6
        )
        assert [texts(records) for records in results] == [[each.text for each in row] for row in expected]
        for records, row in zip(results, expected, strict=True):
            assert [record["score"] for record in records] == pytest.approx([each.score for each in row], abs=1e-5)
            assert records[0]["score"] >= records[1]["score"]
        assert len(pipe(ENGLISH[0], **BEAMS)) == 2

    def test_greedy_score_is_that_of_the_tokens(self, translator):
        model, tokenizer = translator
        pipe = pipeline("translation", model=model, tokenizer=tokenizer)
        (record,) = pipe(ENGLISH[2], max_new_tokens=6, return_scores=True, return_tensors=True)
        (scored,) = score(model, tokenizer, ENGLISH[2:3], [record["translation_token_ids"]])
        assert record["score"] == pytest.approx(scored.log_prob / len(scored.token_ids), abs=1e-5)
        assert pipe.score(ENGLISH, SPANISH) == score(model, tokenizer, ENGLISH, SPANISH)

    def test_tensors(self, translator):
        model, tokenizer = translator
        pipe = pipeline("translation", model=model, tokenizer=tokenizer)
        (record,) = pipe(ENGLISH[0], max_new_tokens=6, return_tensors=True)
        assert list(record) == ["translation_token_ids"] and isinstance(record["translation_token_ids"], torch.Tensor)
        source = tokenizer(ENGLISH[0], return_tensors="pt", return_token_type_ids=False)
        assert torch.equal(record["translation_token_ids"], model.generate(**source, max_new_tokens=6)[0])
        (both,) = pipe(ENGLISH[0], max_new_tokens=6, return_tensors=True, return_text=True)
        assert texts([both]) == texts(pipe(ENGLISH[0], max_new_tokens=6))

    def test_each_length_is_bounded_by_the_source_where_nothing_else_is_said(self, pipe):
        pipe.model.generation_config.eos_token_id = None
        (record,) = pipe("no", return_tensors=True)
        assert len(record["translation_token_ids"]) == 2 + 50
        alone = [pipe(text) for text in ENGLISH]
        assert pipe(ENGLISH, batch_size=5) == [record for (record,) in alone]

    def test_settings_of_the_model_of_the_pipeline_and_of_the_call(self):
        model, tokenizer = build("shared")
        model.generation_config.update(num_beams=3, max_new_tokens=3)
        beams = expected_texts(model, tokenizer, ENGLISH, num_beams=3, max_new_tokens=3)
        assert [[text] for text in texts(pipeline("translation", model=model, tokenizer=tokenizer)(ENGLISH))] == beams
        pipe = pipeline("translation", model=model, tokenizer=tokenizer, num_beams=1, max_new_tokens=5)
        greedy = expected_texts(model, tokenizer, ENGLISH, num_beams=1, max_new_tokens=5)
        assert [[text] for text in texts(pipe(ENGLISH))] == greedy
        short = expected_texts(model, tokenizer, ENGLISH, num_beams=1, max_new_tokens=2)
        assert [[text] for text in texts(pipe(ENGLISH, max_new_tokens=2))] == short

    @pytest.mark.parametrize("where", ["pipeline", "call"])
    def test_generation_config(self, where):
        model, tokenizer = build("shared")
        options = {"generation_config": GenerationConfig(**BEAMS)}
        pipe = pipeline("translation", model=model, tokenizer=tokenizer, **(options if where == "pipeline" else {}))
        found = pipe(ENGLISH, **(options if where == "call" else {}))
        assert [texts(records) for records in found] == expected_texts(model, tokenizer, ENGLISH, **BEAMS)

    @looped(
        ("options", "message"),
        [
            ({"num_return_sequences": 2}, "2 hypotheses need as many beams"),
            ({"num_beams": 0}, "`num_beams` is 0"),
            *(
                ({name: value}, f"`{name}` is {value!r}")
                for name in LENGTH_BOUNDS
                for value in (0, -1, 1.5, True, "x")
            ),
            ({"beams": 4}, "beams"),
        ],
    )
    def test_impossible_options_are_named(self, pipe, options, message):
        with pytest.raises(ValueError, match=message):
            pipe(ENGLISH, **options)


class TestLanguages:
    @pytest.mark.parametrize("num_beams", [1, 3])
    def test_are_chosen_by_the_call_or_the_pipeline(self, num_beams):
        model, tokenizer = several_languages()
        options = {"num_beams": num_beams, "max_new_tokens": 6}
        spanish = tokenizer.convert_tokens_to_ids("es_XX")
        tokenizer.src_lang = "fr_XX"
        expected = expected_texts(model, tokenizer, ENGLISH, forced_bos_token_id=spanish, **options)
        tokenizer.src_lang = "en_XX"
        languages = {"src_lang": "fr_XX", "tgt_lang": "es_XX"}
        pipe = pipeline("translation", model=model, tokenizer=tokenizer)
        found = pipe(ENGLISH, **languages, **options, batch_size=2)
        assert [[text] for text in texts(found)] == expected
        # The default is the tokenizer's current languages.
        assert pipe(ENGLISH, **options) == found
        assert pipeline("translation", model=model, tokenizer=tokenizer, **languages)(ENGLISH, **options) == found
        (record,) = pipe("no", **languages, **options, return_tensors=True, return_scores=True)
        assert record["translation_token_ids"][:2].tolist() == [2, spanish]
        (scored,) = pipe.score(["no"], [record["translation_token_ids"]], **languages)
        assert scored.token_log_probs[0] == 0
        assert record["score"] == pytest.approx(scored.log_prob / len(scored.token_ids), abs=1e-5)
        (scored,) = pipe.score(["no"], ["el gato"], **languages)
        assert scored.tokens == ["es_XX", "▁el", "▁gato", "</s>"] and scored.token_log_probs[0] == 0

    def test_are_those_of_the_task(self):
        model, tokenizer = several_languages()
        french, english = ({"src_lang": code, "tgt_lang": "es_XX"} for code in ("fr_XX", "en_XX"))
        expected, other = (
            pipeline("translation", model=model, tokenizer=tokenizer, **languages)(ENGLISH, max_new_tokens=6)
            for languages in (french, english)
        )
        assert expected != other
        pipe = pipeline("translation_fr_XX_to_es_XX", model=model, tokenizer=tokenizer)
        assert pipe(ENGLISH, max_new_tokens=6) == expected
        assert pipe(ENGLISH, max_new_tokens=6, **english) == other
        assert pipe.score(["no"], ["el gato"]) == pipe.score(["no"], ["el gato"], **french)
        pipe = pipeline("translation_fr_XX_to_es_XX", model=model, tokenizer=tokenizer, src_lang="en_XX")
        assert pipe(ENGLISH, max_new_tokens=6) == other

    @pytest.mark.parametrize("kind", ["shared", "pair", "marian"])
    def test_a_task_may_name_them(self, kind, tmp_path):
        model, tokenizer = save_translator(kind, tmp_path)
        expected = pipeline("translation", model=model, tokenizer=tokenizer)(ENGLISH, max_new_tokens=6)
        for task in ("translation_en_to_de", "translation_XX_to_YY"):
            pipe = pipeline(task, model=str(tmp_path))
            assert type(pipe) is TranslationPipeline and pipe(ENGLISH, max_new_tokens=6) == expected

    @pytest.mark.parametrize(
        "task", ["translation_", "translation_en", "translation_en_to_", "translations", "en_to_de"]
    )
    def test_other_names_stay_unknown(self, task):
        assert task not in PIPELINE_REGISTRY.get_supported_tasks()
        with pytest.raises(KeyError, match=task):
            check_task(task)

    def test_of_a_task_in_the_opposite_direction(self):
        model, _ = build("shared")
        tokenizer = train_tokenizer(ENGLISH, algorithm="word", min_frequency=1)
        tokenizer.init_kwargs.update(source_lang="en", target_lang="es")
        pipeline("translation_en_to_es", model=model, tokenizer=tokenizer)
        with pytest.raises(ValueError, match="translates en to es"):
            pipeline("translation_es_to_en", model=model, tokenizer=tokenizer)

    def test_a_task_may_have_a_prefix(self):
        """As T5's tasks do."""
        model, tokenizer = build("shared")
        task = "translation_en_to_es"
        model.config.task_specific_params = {task: {"prefix": "no "}}
        plain = pipeline("translation", model=model, tokenizer=tokenizer)
        pipe = pipeline(task, model=model, tokenizer=tokenizer)
        prefixed = [f"no {each}" for each in ENGLISH]
        assert pipe(ENGLISH, max_new_tokens=6) == plain(prefixed, max_new_tokens=6) != plain(ENGLISH, max_new_tokens=6)
        assert pipe(" ") == plain(" ")
        assert pipe.score(ENGLISH, SPANISH) == plain.score(prefixed, SPANISH)

    def test_must_be_known(self, pipe):
        model, tokenizer = several_languages()
        with pytest.raises(ValueError, match="tgt_lang"):
            pipeline("translation", model=model, tokenizer=tokenizer)("no", src_lang="en_XX")
        with pytest.raises(ValueError, match="has no languages to choose from"):
            pipe("no", src_lang="en_XX", tgt_lang="es_XX")


class TestLoading:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_saved_folder(self, kind, tmp_path):
        model, tokenizer = save_translator(kind, tmp_path)
        expected = pipeline("translation", model=model, tokenizer=tokenizer)(ENGLISH, max_new_tokens=6)
        pipe = pipeline("translation", model=str(tmp_path))
        assert type(pipe.model) is type(model) and type(pipe) is TranslationPipeline
        assert pipe(ENGLISH, max_new_tokens=6) == expected
        pipe.save_pretrained(tmp_path / "again")
        assert not list((tmp_path / "again").glob("*.py"))
        assert pipeline("translation", model=str(tmp_path / "again"))(ENGLISH, max_new_tokens=6) == expected

    def test_a_name_on_the_hub(self, tmp_path):
        """A Hub cache layout stands in for the Hub, because names are looked up there before any request."""
        model, tokenizer = build("pair")
        expected = pipeline("translation", model=model, tokenizer=tokenizer)(ENGLISH, max_new_tokens=6)
        revision = "0123456789" * 4
        cached = tmp_path / "models--somebody--translator"
        for part in (model, tokenizer):
            part.save_pretrained(cached / "snapshots" / revision)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(revision)
        options = {"model_kwargs": {"cache_dir": str(tmp_path)}, "local_files_only": True}
        pipe = pipeline("translation", model="somebody/translator", **options)
        assert pipe(ENGLISH, max_new_tokens=6) == expected

    def test_dtype_and_device(self, tmp_path):
        save_translator("shared", tmp_path)
        pipe = pipeline("translation", model=str(tmp_path), dtype=torch.bfloat16, device="cpu")
        assert pipe.model.dtype == torch.bfloat16 and texts(pipe("a red house", max_new_tokens=4))

    def test_what_cannot_translate_is_refused(self):
        model, _ = build("marian")
        with pytest.raises(ValueError, match="MarianEncoder is not an encoder-decoder"):
            TranslationPipeline(model=model.get_encoder(), tokenizer=PAIR)
        with pytest.raises(ValueError, match="there is no tokenizer"):
            TranslationPipeline(model=model)

    def test_registering_again_changes_nothing(self, monkeypatch, caplog):
        assert check_task("translation")[1]["impl"] is TranslationPipeline
        register()
        assert check_task("translation")[1]["impl"] is TranslationPipeline and caplog.text == ""

        class Other(TranslationPipeline):
            pass

        monkeypatch.setitem(PIPELINE_REGISTRY.supported_tasks, "translation", {"impl": Other, "pt": ()})
        register()
        assert check_task("translation")[1]["impl"] is Other
