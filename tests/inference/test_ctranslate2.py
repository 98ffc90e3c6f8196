"""The CTranslate2 runtime: the translations of `generate()`, and refusals."""

import shutil

import pytest
import torch
from transformers import MaxLengthCriteria

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.export.ctranslate2 import write_ctranslate2
from hf_vanilla_transformer.files import read_lines
from hf_vanilla_transformer.inference.ctranslate2 import CTranslate2Model, load_ctranslate2
from hf_vanilla_transformer.inference.translation import translate
from tables import looped
from tiny import tiny_model
from translators import ENGLISH, assert_alike, save_translator, set_end_bias, texts, trained

pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")


# Spinning threads slow each other down where other programs are running.
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["shared", "pair", "learned"])
def saved(request, tmp_path_factory, one_thread):
    """A model and its tokenizer, the folder with them and their export, and the runtime loaded from it."""
    folder = tmp_path_factory.mktemp(request.param)
    model, tokenizer = save_translator(request.param, folder / "model", num_beams=3)
    export_model(folder / "model", "ctranslate2", folder / "exported")
    return model, tokenizer, folder, load_ctranslate2(folder / "exported")


class TestGenerate:
    @looped(
        "options",
        [
            {},
            {"num_beams": 1},
            {"num_beams": 4, "num_hypotheses": 4},
            {"num_beams": 4, "length_penalty": 0.0, "early_stopping": True},
            {"num_beams": 4, "length_penalty": 2.0, "max_new_tokens": 6},
            {"num_beams": 1, "max_length": 5},
            {"num_beams": 1, "no_repeat_ngram_size": 3, "max_new_tokens": 20, "with_scores": False},
            {"num_beams": 1, "max_source_length": 3, "max_tokens": 1},
        ],
    )
    def test_translations_are_those_of_generate(self, saved, options):
        model, tokenizer, _, (runtime, own_tokenizer) = saved
        sentences = [*ENGLISH, " ", "the cat see a house in two street"]
        options = {"with_scores": True, **options}
        expected = translate(model, tokenizer, sentences, **options)
        found = translate(runtime, own_tokenizer, sentences, **options)
        assert_alike(found, expected, abs=1e-4, rel=1e-4)

    @pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 3, "num_hypotheses": 3}], ids=str)
    @pytest.mark.parametrize("settings", [{}, {"forced_eos_token_id": 2}], ids=str)
    def test_each_sentence_has_a_limit_of_its_own(self, tmp_path, settings, options):
        model, tokenizer = save_translator("shared", tmp_path / "model", **settings)
        set_end_bias(model, -1e4).save_pretrained(tmp_path / "model")
        export_model(tmp_path / "model", "ctranslate2", tmp_path / "exported")
        runtime, _ = load_ctranslate2(tmp_path / "exported")
        sentences = ["no", *ENGLISH, "a red house", "no a cat " * 4]
        alone = [translate(runtime, tokenizer, [sentence], with_scores=True, **options)[0] for sentence in sentences]
        assert_alike(alone, translate(runtime, tokenizer, sentences, with_scores=True, **options), abs=1e-5)
        assert texts(alone) == texts(translate(model, tokenizer, sentences, with_scores=True, **options))

    def test_other_criteria_are_refused(self, saved):
        *_, (runtime, tokenizer) = saved
        criteria = [MaxLengthCriteria(5)]
        with pytest.raises(ValueError, match="CTranslate2 does not support `stopping_criteria`"):
            translate(runtime, tokenizer, ["a cat", "no"], stopping_criteria=criteria)

    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_threads_share_out_the_sentences(self, saved, count):
        *_, folder, (runtime, tokenizer) = saved
        torch.set_num_threads(3)
        try:
            shared, _ = load_ctranslate2(folder / "exported")
        finally:
            torch.set_num_threads(1)
        assert shared._translator.num_translators == 3
        sentences = (ENGLISH * 2)[:count]
        found, expected = (
            translate(model, tokenizer, sentences, num_beams=3, num_hypotheses=2) for model in (shared, runtime)
        )
        assert found == expected

    def test_tensors_as_generate_gives_them(self, saved):
        model, tokenizer, _, (runtime, _) = saved
        given = dict(tokenizer(ENGLISH, padding=True, return_tensors="pt", return_token_type_ids=False))
        options = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 9}
        expected = model.generate(**given, **options)
        assert torch.equal(runtime.generate(**given, **options), expected)
        # Padding is inferred from the ids.
        assert torch.equal(runtime.generate(given["input_ids"], **options), expected)

    @looped(
        ("options", "message"),
        [
            ({"do_sample": True}, "CTranslate2 does not support `do_sample`=True of generate"),
            ({"bad_words_ids": [[5, 6]]}, "CTranslate2 does not support `bad_words_ids`"),
            ({"forced_eos_token_id": 7}, "CTranslate2 does not support `forced_eos_token_id`"),
            ({"encoder_no_repeat_ngram_size": 3}, "CTranslate2 does not support `encoder_no_repeat_ngram_size`=3"),
            ({"min_new_tokens": 2}, "CTranslate2 does not support `min_new_tokens`=2"),
            (
                {"num_beams": 2, "early_stopping": "never"},
                "does not support `early_stopping`='never'; set it",
            ),
        ],
    )
    def test_what_it_cannot_follow_is_named(self, saved, options, message):
        runtime, tokenizer = saved[3]
        with pytest.raises(ValueError, match=message):
            translate(runtime, tokenizer, ["a cat"], **options)

    def test_a_source_beyond_the_positions(self, saved):
        runtime, tokenizer = saved[3]
        with pytest.raises(ValueError, match="the source has 65 tokens, but the export has positions for 64"):
            runtime.generate(torch.full((1, 65), 4))
        # Text is cut, as for models with learned positions.
        assert translate(runtime, tokenizer, ["a cat " * 90])[0][0].text is not None

    @pytest.mark.parametrize(
        ("name", "text"),
        {
            "config.json": '{"max_position_embeddings": "64"}',
            "generation_config.json": '{"num_beams": 1000000000}',
            "shared_vocabulary.json": '["a", 1]',
        }.items(),
    )
    def test_damaged_files(self, saved, name, text, tmp_path):
        folder = tmp_path / "export"
        shutil.copytree(saved[2] / "exported", folder)
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match="cannot be loaded on cpu|is not a complete export of .*export the"):
            load_ctranslate2(folder)

    def test_folders_that_are_none(self, saved, tmp_path):
        with pytest.raises(ValueError, match="holds no model.bin of CTranslate2; export the model first"):
            load_ctranslate2(saved[2] / "model")
        write_ctranslate2(tiny_model(), tmp_path)
        with pytest.raises(ValueError, match="is not a complete export of `export_model`"):
            CTranslate2Model(tmp_path)
        with pytest.raises(ValueError, match="cannot be loaded on cuda:1 as default"):
            CTranslate2Model(tmp_path, "cuda:1")
        (tmp_path / "model.bin").write_bytes(b"nothing")
        with pytest.raises(ValueError, match="cannot be loaded on cpu as default"):
            CTranslate2Model(tmp_path)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_vanilla_transformer.inference.ctranslate2.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="CTranslate2 cannot be used: it is not installed"):
        CTranslate2Model(tmp_path)


def test_a_forced_end_counts_as_part_of_the_output(tmp_path):
    model, tokenizer = save_translator("shared", tmp_path / "model", forced_eos_token_id=2)
    runtime, _ = load_ctranslate2(export_model(tmp_path / "model", "ctranslate2", tmp_path / "exported"))
    options = {"num_beams": 2, "max_length": 6}
    assert translate(runtime, tokenizer, ENGLISH, **options) == translate(model, tokenizer, ENGLISH, **options)


@pytest.mark.slow
def test_1000_real_sentences(shared_data, tmp_path):
    """A model trained for minutes on Multi30k: float32 translates like `generate()`, int8 has similar BLEU."""
    pytest.importorskip("sacrebleu", reason="BLEU is sacrebleu's, of the extra `train`")
    corpus = shared_data / "multi30k"
    pairs = [list(read_lines(corpus / f"train.{side}.gz")) for side in ("en", "de")]
    sources, references = (list(read_lines(corpus / f"test_2016_flickr.{side}.gz")) for side in ("en", "de"))
    tokenizer = train_tokenizer([*pairs[0], *pairs[1]], vocab_size=4000)
    model = trained(tokenizer, *pairs)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for quantization in ("float32", "int8"):
        export_model(tmp_path / "model", "ctranslate2", tmp_path / quantization, quantization=quantization)
    exported = {name: load_ctranslate2(tmp_path / name) for name in ("float32", "int8")}
    # Least share of identical translations and most of worse ones; the last search stops by another rule, and later.
    for search, identical, worse in (
        ({"num_beams": 1}, 0.99, 0.01),
        ({"num_beams": 4, "early_stopping": True}, 0.99, 0.01),
        ({"num_beams": 4}, 0.97, 0.01),
    ):
        expected = best(model, tokenizer, sources, search)
        same = list(zip(best(*exported["float32"], sources, search), expected, strict=True))
        assert sum(found.text == own.text for found, own in same) >= identical * len(same)
        assert sum(found.score < own.score - 1e-3 for found, own in same) <= worse * len(same)
        coarse = best(*exported["int8"], sources, search)
        ours, loss, p_value = bleu_and_loss(*([each.text for each in row] for row in (expected, coarse)), references)
        assert ours > 10
        # With so few sentences and so little training, noise exceeds the cost of int8.
        assert loss <= 0.3 or p_value > 0.05, (search, ours, loss, p_value)
        assert loss <= 1, (search, ours, loss, p_value)


def bleu_and_loss(own, other, references):
    """Return BLEU of a system, the loss of another one, and the loss's p-value by paired bootstrap."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    test = PairedTest([("own", own), ("other", other)], {"BLEU": BLEU()}, [references], "bs", n_samples=1000)
    _, scores = test()
    first, second = scores["BLEU"]
    return first.score, first.score - second.score, second.p_value


def best(model, tokenizer, sentences, search):
    return [row[0] for row in translate(model, tokenizer, sentences, with_scores=True, **search)]
