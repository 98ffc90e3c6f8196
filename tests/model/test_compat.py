"""The cache under its names in all supported releases of transformers, and unknown arguments."""

import inspect
import logging

import peft
import pytest
import torch
from transformers import GenerationMixin, Trainer, TrainingArguments
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import TransformersKwargs
from transformers.utils.logging import warning_once

from hf_vanilla_transformer import (
    VanillaTransformerEncoderModel,
    VanillaTransformerEnsemble,
    VanillaTransformerForSequenceClassification,
)
from hf_vanilla_transformer.model.checks_vanilla_transformer import LAYER_ARGUMENTS
from hf_vanilla_transformer.model.compat_vanilla_transformer import CACHE, CACHE_NAMES, cache_name
from hf_vanilla_transformer.search import beams
from tables import looped
from tiny import batch_with_padding, close, labelled_batch, perturbed_model, tiny_config, tiny_model, tokens

EITHER_NAME = pytest.mark.parametrize("name", CACHE_NAMES)
SEARCHES = pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
LENGTHS = {"max_new_tokens": 6, "min_new_tokens": 6}


def models():
    """The models whose `forward` takes a cache, with their arguments for the first call and for a step."""
    model, source = perturbed_model(), tokens(2, 6)
    states = model.get_encoder()(source).last_hidden_state
    whole = {"input_ids": source}
    return {
        "with logits": (model, whole, "decoder_input_ids"),
        "without": (model.model, whole, "decoder_input_ids"),
        "decoder": (model.model.decoder, {"encoder_hidden_states": states}, "input_ids"),
        "ensemble": (VanillaTransformerEnsemble([model, perturbed_model(0.3)]), whole, "decoder_input_ids"),
    }


def varied_model():
    """Return a model whose next token depends on the earlier ones."""
    return tiny_model(encoder_layers=1, decoder_layers=2, tie_word_embeddings=False)


def cache_of(outputs):
    return getattr(outputs, CACHE)


class TestNames:
    @EITHER_NAME
    @looped("kind", models())
    def test_forward_takes_either(self, kind, name):
        model, source, ids = models()[kind]
        target = tokens(2, 5)
        expected = model(**source, **{ids: target}, use_cache=False)[0]
        cache = cache_of(model(**source, **{ids: target[:, :-1]}, use_cache=True))
        found = model(**source, **{ids: target[:, -1:], name: cache})[0]
        close(found, expected[:, -1:])
        assert (found - model(**source, **{ids: target[:, -1:]})[0]).abs().max() > 1e-2

    @EITHER_NAME
    def test_generate_takes_either(self, name):
        model, source = varied_model(), tokens(2, 6)
        half = {"max_new_tokens": 3, "min_new_tokens": 3}
        first = model.generate(source, **half, return_dict_in_generate=True)
        given = {name: cache_of(first), "decoder_input_ids": first.sequences}
        assert torch.equal(model.generate(source, **half, **given), model.generate(source, **LENGTHS))

    @pytest.mark.parametrize("kind", models())
    def test_two_caches_are_an_error(self, kind):
        model, source, ids = models()[kind]
        first, second = (model(**source, **{ids: tokens(2, 3)}, use_cache=True) for _ in range(2))
        caches = dict(zip(CACHE_NAMES, map(cache_of, (first, second)), strict=True))
        with pytest.raises(ValueError, match="`past_key_values` and `cache` are two names of one argument"):
            model(**source, **{ids: tokens(2, 1)}, **caches)

    def test_outputs_have_the_name_of_the_installed_transformers(self):
        model, batch = tiny_model(), batch_with_padding()
        generated = model.generate(batch["input_ids"], max_new_tokens=2, return_dict_in_generate=True)
        for outputs in (model(**batch), model.model(**batch), generated):
            assert {*outputs.keys()} & {*CACHE_NAMES} == {CACHE}

    @SEARCHES
    def test_no_call_of_ours_is_deprecated(self, options, caplog, monkeypatch):
        monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
        warning_once.cache_clear()
        model = VanillaTransformerEnsemble([tiny_model(), tiny_model()])
        model.generate(tokens(2, 6), max_new_tokens=3, **options)
        tiny_model().generate(tokens(2, 6), max_new_tokens=3, cache_implementation="static", **options)
        tiny_model()(**labelled_batch())
        assert "deprecated" not in caplog.text

    def test_predictions_of_a_trainer_are_without_the_cache(self, tmp_path):
        rows = [{"input_ids": [5, 6, 2], "decoder_input_ids": [1, 7]}] * 2
        arguments = TrainingArguments(str(tmp_path), report_to=[], disable_tqdm=True, use_cpu=True)
        trainer = Trainer(tiny_model(), arguments)
        logits, states = trainer.predict(rows).predictions
        assert logits.shape == (2, 2, 40) and states.shape == (2, 3, 16)

    # Older releases have no other name.
    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
    def test_layers_get_the_name_that_gradient_checkpointing_knows(self):
        model, batch = tiny_model(), batch_with_padding()
        cache = cache_of(model(**batch, use_cache=True))
        length = cache.get_seq_length()
        model.gradient_checkpointing_enable()
        model.train()
        step = {**batch, "decoder_input_ids": tokens(2, 1), "decoder_attention_mask": None, "cache": cache}
        model(**step, use_cache=False).logits.sum().backward()
        assert cache.get_seq_length() == length

    def test_an_unknown_name_names_the_versions(self):
        assert cache_name(["logits", "cache"]) == "cache"
        with pytest.raises(ImportError, match=r"have neither 'past_key_values' nor 'cache'; .*transformers 5.17 to "):
            cache_name(["logits", "states"])


class TestRenamedInGenerate:
    """A release of transformers that renames the cache again."""

    @SEARCHES
    def test_a_cache_of_another_name_is_an_error(self, monkeypatch, options):
        prepare = GenerationMixin._prepare_cache_for_generation

        def rename(self, generation_config, model_kwargs, *args, **kwargs):
            prepare(self, generation_config, model_kwargs, *args, **kwargs)
            model_kwargs["states"] = model_kwargs.pop(CACHE)

        monkeypatch.setattr(GenerationMixin, "_prepare_cache_for_generation", rename)
        with pytest.raises(TypeError, match=r"`states`.*installed are transformers 5\.\d+.*was tested with"):
            tiny_model().generate(tokens(2, 6), max_new_tokens=4, **options)

    @SEARCHES
    def test_a_lost_cache_is_an_error(self, monkeypatch, options):
        monkeypatch.setattr(GenerationMixin, "_prepare_cache_for_generation", lambda *args, **kwargs: None)
        monkeypatch.setattr(
            GenerationMixin, "_update_model_kwargs_for_generation", lambda self, _, kwargs, **__: kwargs
        )
        monkeypatch.setattr(beams, "_next_inputs", lambda *args: {})
        with pytest.raises(RuntimeError, match=r"decodes 1 of 2 target tokens but passes no cache.*transformers 5"):
            tiny_model().generate(tokens(2, 6), max_new_tokens=4, **options)

    @SEARCHES
    def test_without_a_cache_all_tokens_are_decoded(self, options):
        model, source = varied_model(), tokens(2, 6)
        expected = model.generate(source, **LENGTHS, **options)
        assert len({*expected.flatten().tolist()}) > 4
        assert torch.equal(model.generate(source, **LENGTHS, **options, use_cache=False), expected)

    @pytest.mark.parametrize("kind", ["dynamic", "static"])
    def test_an_empty_cache_is_an_error(self, kind):
        model, config = tiny_model(), tiny_config()
        own = DynamicCache(config=config) if kind == "dynamic" else StaticCache(config=config, max_cache_len=9)
        cache = {CACHE: EncoderDecoderCache(own, DynamicCache(config=config))}
        with pytest.raises(RuntimeError, match="decodes 1 of 3 target tokens but passes an empty cache"):
            model.prepare_inputs_for_generation(tokens(2, 3), 1, **cache)
        assert model.prepare_inputs_for_generation(tokens(2, 3), 3, **cache)["decoder_input_ids"].shape == (2, 3)


class TestArguments:
    @looped("kind", [*models(), "encoder", "classifier"])
    def test_unknown_ones_are_errors(self, kind):
        config = tiny_config(num_labels=2)
        model, given, ids = {
            **models(),
            "encoder": (VanillaTransformerEncoderModel(config), {}, "input_ids"),
            "classifier": (VanillaTransformerForSequenceClassification(config), {}, "input_ids"),
        }[kind]
        with pytest.raises(TypeError, match="argument '?`?chache"):
            model(**given, **{ids: tokens(2, 3)}, chache=torch.zeros(1))

    def test_unknown_ones_are_named_with_the_versions(self):
        with pytest.raises(TypeError, match=r"`decoder_position_ids`.* \(sdpa\) accepts.*transformers 5\.\d+"):
            tiny_model()(**batch_with_padding(), decoder_position_ids=torch.arange(5)[None])

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_none_asks_for_nothing(self, implementation):
        model, batch = tiny_model(attn_implementation=implementation), batch_with_padding()
        assert torch.equal(model(**batch, position_ids=None, others=None).logits, model(**batch).logits)

    def test_those_of_the_attention_function_reach_it(self, monkeypatch):
        seen = set()

        def attend(module, query, key, value, attention_mask, temperature=1.0, **kwargs):
            seen.add(temperature)
            return query.transpose(1, 2), None

        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "of_a_test", attend)
        model = tiny_model(attn_implementation="of_a_test")
        source = {"input_ids": tokens(1, 3), "decoder_input_ids": tokens(1, 3)}
        model(**source, temperature=2.0)
        assert seen == {2.0}
        with pytest.raises(TypeError, match="`coldness`"):
            model(**source, coldness=2.0)

    def test_those_of_transformers_are_known(self):
        """Review each new one: whether this model may ignore it."""
        # These would change the result.
        refused = {"output_router_logits", "position_ids", "seq_idx"}
        assert TransformersKwargs.__optional_keys__ - LAYER_ARGUMENTS <= refused
        assert FlashAttentionKwargs.__optional_keys__ <= LAYER_ARGUMENTS
        assert not refused & LAYER_ARGUMENTS

    def test_what_generate_passes_to_the_encoder_is_known(self):
        model = tiny_model()
        own, encoder = (set(inspect.signature(each.forward).parameters) for each in (model, model.get_encoder()))
        never = {"encoder_outputs", *CACHE_NAMES}
        assert {name for name in own - encoder - never if not name.startswith("decoder_")} <= LAYER_ARGUMENTS

    # PEFT uses an attribute that transformers has renamed.
    @pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
    @pytest.mark.parametrize(
        "config",
        [
            peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj"]),
            peft.PromptTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=2, num_layers=3, token_dim=16),
        ],
        ids=["LoRA", "prompt tuning"],
    )
    def test_those_of_peft_are_known(self, config):
        model, batch = peft.get_peft_model(varied_model(), config), labelled_batch()
        model(**batch).loss.backward()
        model.eval()
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        expected = model.generate(**given, **LENGTHS, use_cache=False)
        assert torch.equal(model.generate(**given, **LENGTHS), expected)
