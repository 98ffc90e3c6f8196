"""Ensembles: equal members decode like one of them, different ones by the mean of their probabilities."""

import json
import math

import pytest
import torch
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel, pipeline
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from devices import ACROSS_BATCHES, same_numbers
from hf_vanilla_transformer import VanillaTransformerEncoderModel, VanillaTransformerEnsemble, score
from hf_vanilla_transformer.inference.alignment import word_alignments
from hf_vanilla_transformer.inference.glossary import Glossary
from hf_vanilla_transformer.inference.translation import load, translate
from hf_vanilla_transformer.search import beams as beam_search
from tables import looped
from tiny import close, tiny_config
from translators import SHARED, assert_alike, build, save_translator, texts

KINDS = ("shared", "pair", "learned", "marian", "m2m100")
SENTENCES = ["two dogs run in the red street", "a cat", "the cat sleeps in a house", "run", "", "we see a small cat"]
# Members of our own class, with different sizes, depths and positions.
OWN = {
    "wide": ("shared", {"d_model": 24, "encoder_layers": 1}),
    "deep": ("shared", {"decoder_layers": 3}),
    "learned": ("learned", {"encoder_layers": 3, "decoder_layers": 1}),
}
FOREIGN = {**OWN, "marian": ("marian", {"decoder_start_token_id": 1, "d_model": 8, "decoder_layers": 1})}
END = 2

pytestmark = pytest.mark.usefixtures("one_thread")


@same_numbers
def members(kinds):
    """Return models whose probabilities differ, and whose translations end at various lengths."""
    models = [build(kind, **changes)[0] for kind, changes in kinds.values()]
    for seed, model in enumerate(models):
        torch.manual_seed(seed)
        with torch.no_grad():
            head = model.get_output_embeddings().weight
            head.copy_(torch.randn_like(head))
            head[END] *= 2
    return models


@pytest.fixture(params=[OWN, FOREIGN], ids=["own", "with another family"])
def models(request):
    return members(request.param)


@pytest.fixture
def ensemble(models):
    return VanillaTransformerEnsemble(models)


@pytest.fixture
def source():
    batch = SHARED([each for each in SENTENCES if each], padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def on_either_side(source, models):
    """Return the source with its padding on the right and, where all members allow it, on the left."""
    return [source, on_the_left(source)] if len(models) == len(OWN) else [source]


def on_the_left(source):
    """Move the padding to the left; Marian would count positions from there."""
    shifts = (source["attention_mask"] == 0).sum(1)
    pairs = [(name, zip(rows, shifts.tolist(), strict=True)) for name, rows in source.items()]
    return {name: torch.stack([row.roll(shift) for row, shift in rows]) for name, rows in pairs}


class Plain(GenerationMixin, PreTrainedModel):
    """Reference implementation: mean probabilities in float64, decoding the whole prefix at every step."""

    main_input_name = "input_ids"

    def __init__(self, models):
        super().__init__(PreTrainedConfig(is_encoder_decoder=True, vocab_size=len(SHARED)))
        self.models = torch.nn.ModuleList(models).double()
        self.generation_config = models[0].generation_config

    def get_encoder(self, modality=None):
        return Ids()

    def forward(self, encoder_outputs, attention_mask=None, decoder_input_ids=None, return_dict=None, use_cache=None):
        ids, mean = encoder_outputs[0], 0
        for model in self.models:
            logits = model(ids, attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False).logits
            mean = mean + logits.softmax(-1) / len(self.models)
        return Seq2SeqLMOutput(logits=mean.log())


class Ids(torch.nn.Module):
    """An encoder that returns the source unchanged."""

    def forward(self, input_ids, **kwargs):
        return BaseModelOutput(last_hidden_state=input_ids)


class TestEqualMembers:
    @looped(
        "search",
        [
            {},
            {"num_beams": 4, "num_hypotheses": 4},
            {"num_beams": 3, "num_hypotheses": 2, "length_penalty": 0.6, "early_stopping": True},
            {"num_beams": 2, "use_cache": False},
            {"num_beams": 3, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
        ],
    )
    @looped("size", [1, 3])
    def test_decode_as_one_of_them(self, translator, size, search):
        model, tokenizer = translator
        options = {"max_length": 9, **search}
        ensemble = VanillaTransformerEnsemble([model] * size)
        expected = translate(model, tokenizer, SENTENCES, with_scores=True, **options)
        found = translate(ensemble, tokenizer, SENTENCES, with_scores=True, **options)
        assert_alike(found, expected, abs=ACROSS_BATCHES)
        # Without scores, our beam search is used.
        assert texts(translate(ensemble, tokenizer, SENTENCES, **options)) == texts(expected)

    def test_draw_the_same_samples(self):
        for model in members(FOREIGN):
            drawn = []
            for each in (model, VanillaTransformerEnsemble([model, model])):
                torch.manual_seed(3)
                options = {"do_sample": True, "temperature": 3.0, "num_hypotheses": 3, "max_length": 8}
                found = translate(each, SHARED, SENTENCES, **options)
                drawn.append([text for own in texts(found) for text in own])
            assert drawn[0] == drawn[1] and len(set(drawn[0])) > 10

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_in_half_precision(self, source, dtype):
        model, _ = build("shared")
        ensemble = VanillaTransformerEnsemble([model, model]).to(dtype)
        assert ensemble.dtype == model.dtype == dtype
        options = {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True}
        expected, found = (each.generate(**source, **options) for each in (model, ensemble))
        assert torch.equal(found.sequences, expected.sequences)
        close(found.sequences_scores, expected.sequences_scores)

    def test_of_two_dtypes(self, source):
        one, other = (build("shared")[0] for _ in range(2))
        found = VanillaTransformerEnsemble([one, other.bfloat16()]).generate(**source, num_beams=2, max_new_tokens=4)
        assert found.shape[0] == len(source["input_ids"])


class TestDifferentMembers:
    def test_logits_are_those_of_the_mean(self, models, source):
        target = torch.tensor([[1, 5, 6, 7]] * len(source["input_ids"]))
        with torch.no_grad():
            logits = VanillaTransformerEnsemble(models)(**source, decoder_input_ids=target).logits
            alone = [model(**source, decoder_input_ids=target).logits.double().softmax(-1) for model in models]
        assert logits.dtype == torch.float32
        close(logits.double(), torch.stack(alone).mean(0).log())
        assert max((alone[0] - each).abs().max() for each in alone) > 0.3, "or any of them would do"

    def test_tiny_probabilities_are_not_rounded_to_zero(self, source):
        models = members(OWN)
        for model in models:
            model.lm_head.bias.data[7] = -500
        given = {**source, "decoder_input_ids": torch.ones(len(source["input_ids"]), 1, dtype=torch.long)}
        with torch.no_grad():
            found = VanillaTransformerEnsemble(models)(**given).logits[..., 7]
            alone = torch.stack([model(**given).logits.double().log_softmax(-1)[..., 7] for model in models])
        close(found.double(), alone.logsumexp(0) - math.log(len(models)))
        assert -600 < found.max() < -400

    def test_greedy_search(self, ensemble, models, source):
        options = {"max_new_tokens": 9, "return_dict_in_generate": True, "output_scores": True}
        ours = [ensemble.generate(**given, **options) for given in on_either_side(source, models)]
        expected = Plain(models).generate(**source, **options, use_cache=False)
        is_token = expected.sequences[:, 1:, None] != 0
        assert len(set(is_token.sum(1).flatten().tolist())) > 1
        for found in ours:
            assert torch.equal(found.sequences, expected.sequences)
            steps = [torch.stack(each.scores, 1).double().log_softmax(-1) * is_token for each in (found, expected)]
            close(*steps, 1e-4)

    @pytest.mark.parametrize("max_final", [0, 1], ids=["final ones dropped", "none dropped"])
    def test_beam_search(self, ensemble, models, source, monkeypatch, max_final):
        monkeypatch.setattr(beam_search, "MAX_FINAL", max_final)
        options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 9}
        report = {"return_dict_in_generate": True, "output_scores": True}
        ours = [ensemble.generate(**given, **options) for given in on_either_side(source, models)]
        found = ensemble.generate(**source, **options, **report)
        expected = Plain(models).generate(**source, **options, **report, use_cache=False)
        for sequences in (found.sequences, *ours):
            assert torch.equal(sequences, expected.sequences)
        close(found.sequences_scores.double(), expected.sequences_scores.double(), 1e-4)
        assert len({tuple(row) for row in ours[0].tolist()}) == len(ours[0])

    @pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
    def test_padding_is_inferred_from_ids(self, ensemble, source, options):
        ids = source["input_ids"]

        def decode(**given):
            torch.manual_seed(3)
            return ensemble.generate(ids, **given, **options, max_new_tokens=6)

        assert torch.equal(decode(), decode(attention_mask=source["attention_mask"]))
        assert not torch.equal(decode(), decode(attention_mask=torch.ones_like(ids)))

    def test_a_static_cache_changes_nothing(self, ensemble, source):
        options = {"num_beams": 3, "max_new_tokens": 6}
        expected = ensemble.generate(**source, **options)
        assert torch.equal(ensemble.generate(**source, **options, cache_implementation="static"), expected)

    def test_a_padded_prefix(self, models):
        ensemble = VanillaTransformerEnsemble(models[:3])
        source = torch.tensor([[5, 6, 7, 2]] * 2)
        prefixes = torch.tensor([[1, 5, 9], [0, 1, 9]])
        given = {"decoder_input_ids": prefixes, "decoder_attention_mask": (prefixes != 0).long()}
        # No start token is prepended if one of the rows has it.
        found = ensemble.generate(input_ids=source, max_new_tokens=4, **given)
        for row, prefix in zip(found, ([1, 5, 9], [1, 9]), strict=True):
            alone = ensemble.generate(
                input_ids=source[:1], decoder_input_ids=torch.tensor([prefix]), max_new_tokens=4
            )[0, len(prefix) :]
            assert row[3 : 3 + len(alone)].tolist() == alone.tolist()

    def test_go_on_from_a_cache(self, ensemble, models, source):
        whole = ensemble.generate(**source, max_new_tokens=6, min_new_tokens=6)
        first = ensemble.generate(**source, max_new_tokens=3, min_new_tokens=3, return_dict_in_generate=True)
        given = {"past_key_values": first.past_key_values, "decoder_input_ids": first.sequences}
        assert torch.equal(ensemble.generate(**source, max_new_tokens=3, min_new_tokens=3, **given), whole)
        with pytest.raises(ValueError, match="is not a cache of this ensemble"):
            VanillaTransformerEnsemble(models[:2]).generate(**source, max_new_tokens=3, **given)

    def test_scores_of_given_translations(self, ensemble, source):
        options = {"num_beams": 3, "max_new_tokens": 9, "length_penalty": 0.0}
        found = ensemble.generate(**source, **options, return_dict_in_generate=True, output_scores=True)
        scores = score(ensemble, SHARED, [each for each in SENTENCES if each], found.sequences)
        assert [each.log_prob for each in scores] == pytest.approx(found.sequences_scores.tolist(), abs=1e-4)

    def test_terms_of_a_glossary(self, ensemble):
        found = translate(ensemble, SHARED, SENTENCES, glossary=Glossary.of({"cat": "calle ancha"}))
        for sentence, (hypothesis,) in zip(SENTENCES, found, strict=True):
            assert ("calle ancha" in hypothesis.text) >= ("cat" in sentence)

    def test_alignments_are_those_of_the_first(self, ensemble, models):
        found = translate(ensemble, SHARED, SENTENCES, num_beams=2, with_alignments=True)
        best = [own[0].text for own in found]
        assert [own[0].alignment for own in found] == word_alignments(models[0], SHARED, SENTENCES, best)
        assert any(own[0].alignment for own in found)

    def test_in_a_pipeline(self, ensemble):
        pipe = pipeline("translation", model=ensemble, tokenizer=SHARED, device="cpu")
        expected = translate(ensemble, SHARED, SENTENCES, num_beams=3, max_length=9)
        found = pipe(SENTENCES, num_beams=3, max_length=9, batch_size=len(SENTENCES))
        assert [row["translation_text"] for row in found] == [own[0].text for own in expected]


def test_each_source_is_encoded_once_for_all_its_beams(source):
    models, rows = members(OWN), []
    for model in models:
        encoder = model.get_encoder()
        encoder.register_forward_hook(lambda module, args, output: rows.append(len(output.last_hidden_state)))
        attention = model.get_decoder().layers[-1].encoder_attn
        attention.k_proj.register_forward_hook(lambda module, args, output: rows.append(len(output)))
    VanillaTransformerEnsemble(models).generate(**source, num_beams=4, max_new_tokens=5, min_new_tokens=5)
    assert rows == [len(source["input_ids"])] * 6


def test_members_are_in_evaluation_mode():
    models = [build("shared", dropout=0.5)[0].train() for _ in range(2)]
    ensemble = VanillaTransformerEnsemble(models)
    assert not any(module.training for module in ensemble.modules())
    first = translate(ensemble, SHARED, SENTENCES, max_length=8)
    assert translate(ensemble, SHARED, SENTENCES, max_length=8) == first and not models[0].training


def test_settings_are_those_of_the_first_and_bounds_those_of_the_tightest():
    first, short = build("shared")[0], build("learned", max_position_embeddings=12)[0]
    first.generation_config.update(num_beams=3, max_new_tokens=30)
    short.generation_config.update(num_beams=7)
    ensemble = VanillaTransformerEnsemble([first, short])
    assert ensemble.generation_config.num_beams == 3
    ensemble.generation_config.num_beams = 2
    assert first.generation_config.num_beams == 3
    (found,) = translate(ensemble, SHARED, ["red house " * 20], raw=True)
    assert found[0].text == translate(ensemble, SHARED, ["red house " * 5 + "red"])[0][0].text


class TestRefusals:
    def test_of_no_models_and_of_what_does_not_generate(self):
        with pytest.raises(ValueError, match="an ensemble needs at least one model"):
            VanillaTransformerEnsemble([])
        encoder = VanillaTransformerEncoderModel(tiny_config())
        with pytest.raises(ValueError, match="model number 2 is of class VanillaTransformerEncoderModel; an ensemble"):
            VanillaTransformerEnsemble([build("shared")[0], encoder])

    @looped(
        ("changes", "message"),
        [
            ({"vocab_size": 99}, r"has 99 as its number of source tokens, but model number 1 has \d+;"),
            ({"decoder_vocab_size": 99}, r"has 99 as its number of target tokens, but"),
            ({"decoder_start_token_id": 2}, "has 2 as its decoder_start_token_id, but model number 1 has 1;"),
            ({"eos_token_id": 3}, "has 3 as its eos_token_id"),
            ({"pad_token_id": 3}, "has 3 as its pad_token_id"),
        ],
    )
    def test_of_another_vocabulary(self, changes, message):
        with pytest.raises(ValueError, match=f"model number 2 {message}"):
            VanillaTransformerEnsemble([build("shared")[0], build("shared", **changes)[0]])

    def test_of_attentions_and_saving(self, tmp_path, source):
        ensemble = VanillaTransformerEnsemble([build("shared")[0]])
        for name in ("output_attentions", "output_hidden_states"):
            with pytest.raises(ValueError, match=f"`{name}` is set, but an ensemble has no such outputs"):
                ensemble.generate(**source, return_dict_in_generate=True, **{name: True})
        with pytest.raises(ValueError, match="an ensemble cannot be saved; save each of its `members`"):
            ensemble.save_pretrained(tmp_path)


class TestLoading:
    def test_folders(self, tmp_path):
        saved = []
        for number, (kind, changes) in enumerate(OWN.values()):
            folder = tmp_path / str(number)
            model, tokenizer = build(kind, **changes)
            model.save_pretrained(folder)
            if number < 2:
                tokenizer.save_pretrained(folder)
            saved.append(model)
        names = [tmp_path / str(number) for number in range(3)]
        ensemble = VanillaTransformerEnsemble.from_pretrained(names, dtype=torch.bfloat16)
        assert [type(each) for each in ensemble.members] == [type(each) for each in saved]
        assert ensemble.dtype == torch.bfloat16
        ensemble, tokenizer = load([str(name) for name in names], device="cpu")
        expected = translate(VanillaTransformerEnsemble(saved), tokenizer, SENTENCES, num_beams=2)
        assert translate(ensemble, tokenizer, SENTENCES, num_beams=2) == expected

    def test_models_of_opposite_directions(self, tmp_path):
        for name, languages in (("first", ("en", "de")), ("second", ("en", "de")), ("other", ("de", "en"))):
            save_translator("shared", tmp_path / name)
            file = tmp_path / name / "tokenizer_config.json"
            settings = json.loads(file.read_text()) | dict(zip(("source_lang", "target_lang"), languages, strict=True))
            file.write_text(json.dumps(settings))
        names = [str(tmp_path / name) for name in ("first", "second", "other")]
        VanillaTransformerEnsemble.from_pretrained(names[:2])
        with pytest.raises(ValueError, match=f"model {names[2]} translates de to en; name a model of the opposite"):
            VanillaTransformerEnsemble.from_pretrained(names)

    def test_what_does_not_fit_is_named(self, tmp_path):
        for name in ("first", "second", "other"):
            save_translator("shared", tmp_path / name)
        ids = (tmp_path / "other" / "tokenizer.json").read_text()
        assert '"house": ' in ids
        (tmp_path / "other" / "tokenizer.json").write_text(ids.replace('"house": ', '"mouse": '))
        names = [str(tmp_path / name) for name in ("first", "second", "other")]
        with pytest.raises(ValueError, match=f"vocabulary of model {names[2]} differs from that of model {names[0]};"):
            VanillaTransformerEnsemble.from_pretrained(names)
        # The same tokens, but with a lowercasing normalizer.
        text = json.loads(ids) | {"normalizer": {"type": "Lowercase"}}
        (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(text))
        with pytest.raises(ValueError, match=f"vocabulary of model {names[2]} differs from that of model {names[0]};"):
            VanillaTransformerEnsemble.from_pretrained(names)
        with pytest.raises(ValueError, match=f"model {tmp_path / 'none'} cannot be loaded: there is no such folder"):
            VanillaTransformerEnsemble.from_pretrained([names[0], tmp_path / "none"])
        with pytest.raises(ValueError, match="`names` is .*first; pass a list"):
            VanillaTransformerEnsemble.from_pretrained(names[0])
        save_translator("pair", tmp_path / "pair")
        for file in (tmp_path / "pair").glob("*tokenizer*"):
            file.unlink()
        with pytest.raises(ValueError, match=f"model {tmp_path / 'pair'} has .* as its number of source tokens"):
            VanillaTransformerEnsemble.from_pretrained([names[0], tmp_path / "pair"])
