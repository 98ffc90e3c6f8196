"""`generate()` against the model's own logits, and its options against each other."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import (
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
    TextStreamer,
)

from hf_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.model.compat_vanilla_transformer import CACHE
from tables import looped
from tiny import (
    EVERY_SHAPE,
    VOCABULARIES,
    VOCABULARY,
    close,
    counting_backend,
    padded_source,
    tiny_model,
    tokens,
)
from translators import build

# Without an end token all outputs have the same length and can be compared row by row.
ENDLESS = {"eos_token_id": None, "max_new_tokens": 7}
SEARCHES = (
    {},
    {"num_beams": 3},
    {"num_beams": 3, "return_dict_in_generate": False, "cache_implementation": "static"},
    {"do_sample": True, "num_return_sequences": 2},
    {"do_sample": True, "num_beams": 3},
)
GREEDY_AND_BEAMS = pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beams"])


def varied_model(**changes):
    """A model with an untied output: with tied weights an untrained model repeats its input forever."""
    return tiny_model(**{"encoder_layers": 1, "decoder_layers": 2, **changes, "tie_word_embeddings": False})


def log_probs(model, source, target):
    """Log-probabilities (B, T, V) of the token after each one of `target`, without a cache."""
    with torch.no_grad():
        return model(**source, decoder_input_ids=target, use_cache=False).logits.log_softmax(-1)


def cached_rows(out):
    """Number of rows in the self-attention and cross-attention caches that `generate()` returned."""
    cache = getattr(out, CACHE)
    return tuple(len(each.layers[0].keys) for each in (cache.self_attention_cache, cache.cross_attention_cache))


def by_hand(model, source, steps, start=None):
    """Greedy decoding by one uncached forward pass per token."""
    target = torch.ones(len(source["input_ids"]), 1, dtype=torch.long) if start is None else start
    for _ in range(steps):
        target = torch.cat([target, log_probs(model, source, target)[:, -1:].argmax(-1)], 1)
    return target


def every_sequence(model, source, steps):
    """Best sequence of `steps` tokens and its score, by exhaustive search."""
    beams, scores = torch.ones(1, 1, dtype=torch.long), torch.zeros(1)
    for _ in range(steps):
        several = {name: value.expand(len(beams), -1) for name, value in source.items()}
        following = log_probs(model, several, beams)[:, -1]
        scores = (scores[:, None] + following).flatten()
        words = following.shape[1]
        beams = torch.cat([beams.repeat_interleave(words, 0), torch.arange(words).repeat(len(beams))[:, None]], 1)
    return beams[scores.argmax()], scores.max()


class TestSearch:
    @EVERY_SHAPE
    @looped("use_cache", [True, False])
    def test_greedy(self, changes, use_cache):
        model, source = varied_model(**changes), padded_source()
        assert torch.equal(model.generate(**source, **ENDLESS, use_cache=use_cache), by_hand(model, source, 7))

    @EVERY_SHAPE
    def test_enough_beams_find_the_best_sequence(self, changes):
        """With a beam for every sequence that is one token shorter, nothing is pruned."""
        model = varied_model(**{**changes, "vocab_size": 12, "decoder_vocab_size": 12})
        source = {"input_ids": torch.randint(4, 12, (1, 5)), "attention_mask": torch.ones(1, 5, dtype=torch.long)}
        options = {"eos_token_id": None, "max_new_tokens": 3, "num_beams": 144, "length_penalty": 0.0}
        out = model.generate(**source, **options, return_dict_in_generate=True, output_scores=True)
        best, score = every_sequence(model, source, 3)
        assert torch.equal(out.sequences[0], best)
        close(out.sequences_scores[0], score)

    @EVERY_SHAPE
    @looped("use_cache", [True, False])
    def test_beam_scores_are_log_probabilities(self, changes, use_cache):
        model, source = varied_model(**changes), padded_source()
        options = {**ENDLESS, "num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.0, "use_cache": use_cache}
        out = model.generate(**source, **options, return_dict_in_generate=True, output_scores=True)
        assert out.sequences.shape == (9, 8)
        assert len({tuple(row) for row in out.sequences[:3].tolist()}) == 3
        several = {name: value.repeat_interleave(3, 0) for name, value in source.items()}
        chosen = log_probs(model, several, out.sequences[:, :-1]).gather(2, out.sequences[:, 1:, None]).squeeze(2)
        close(out.sequences_scores, chosen.sum(1))
        close(model.compute_transition_scores(out.sequences, out.scores, out.beam_indices), chosen)
        ranked = out.sequences_scores.view(3, 3)
        assert (ranked.diff(dim=1) <= 0).all()

    @EVERY_SHAPE
    def test_transition_scores_of_greedy(self, changes):
        model, source = varied_model(**changes), padded_source()
        out = model.generate(**source, **ENDLESS, return_dict_in_generate=True, output_scores=True)
        chosen = log_probs(model, source, out.sequences[:, :-1]).gather(2, out.sequences[:, 1:, None]).squeeze(2)
        close(model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True), chosen)

    def test_samples_follow_the_distribution(self):
        model = varied_model(init_std=0.7)
        source = {"input_ids": tokens(1, 5)}
        out = model.generate(**source, do_sample=True, max_new_tokens=1, num_return_sequences=4000, top_k=0)
        drawn = torch.bincount(out[:, 1], minlength=VOCABULARY) / 4000
        expected = log_probs(model, source, torch.ones(1, 1, dtype=torch.long))[0, 0].exp()
        close(drawn, expected, 0.035)
        assert drawn.gt(0).sum() > 5

    @pytest.mark.parametrize("num_beams", [1, 3], ids=["sampling", "beam sampling"])
    def test_a_seed_determines_the_samples(self, num_beams):
        model, source = varied_model(), padded_source()
        options = {**ENDLESS, "do_sample": True, "num_beams": num_beams, "num_return_sequences": 2}

        def drawn(seed, use_cache=True):
            torch.manual_seed(seed)
            return model.generate(**source, **options, use_cache=use_cache)

        assert drawn(1).shape == (6, 8)
        assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))
        assert torch.equal(drawn(1), drawn(1, use_cache=False))


class TestConstraints:
    @EVERY_SHAPE
    @GREEDY_AND_BEAMS
    def test_forced_prefix(self, changes, num_beams):
        model, source = varied_model(**changes), padded_source()
        prefix = torch.cat([torch.ones(3, 1, dtype=torch.long), tokens(3, 3)], 1)
        out = model.generate(**source, decoder_input_ids=prefix, **ENDLESS, num_beams=num_beams)
        assert torch.equal(out[:, :4], prefix) and out.shape == (3, 11)
        if num_beams == 1:
            assert torch.equal(out, by_hand(model, source, 7, prefix))

    def test_custom_processor_and_stopping_criterion(self):
        class Descend(LogitsProcessor):
            """Allows only the token one below the last."""

            def __call__(self, input_ids, scores):
                allowed = torch.full_like(scores, -torch.inf)
                return allowed.scatter(1, (input_ids[:, -1:] - 1).clamp(min=4), 0.0)

        class AtFive(StoppingCriteria):
            def __call__(self, input_ids, scores, **kwargs):
                return input_ids[:, -1] == 5

        out = varied_model().generate(
            **padded_source(),
            decoder_input_ids=torch.full((3, 1), 9),
            eos_token_id=None,
            max_new_tokens=20,
            logits_processor=LogitsProcessorList([Descend()]),
            stopping_criteria=StoppingCriteriaList([AtFive()]),
        )
        assert out.tolist() == [[1, 9, 8, 7, 6, 5]] * 3

    @looped("options", [{}, {"num_beams": 2}, {"do_sample": True}, {"prompt_lookup_num_tokens": 2}])
    @looped("is_pair", [False, True])
    def test_stop_strings(self, is_pair, options):
        source, target = (train_tokenizer([text] * 3, vocab_size=300) for text in ("a b", "un gato duerme"))
        tokenizer = VanillaTransformerTokenizer.from_pair(source, target) if is_pair else target
        ids = torch.tensor(target("un gato duerme")["input_ids"])

        class Follow(LogitsProcessor):
            """Allows only the next token of the target."""

            def __call__(self, input_ids, scores):
                return torch.full_like(scores, -torch.inf).index_fill(1, ids[input_ids.shape[1] - 1], 0.0)

        shape = {**VOCABULARIES["separate"], "vocab_size": len(source if is_pair else target)}
        out = tiny_model(**shape | {"decoder_vocab_size": len(target)}).generate(
            **tokenizer(["a b"], return_tensors="pt"),
            logits_processor=LogitsProcessorList([Follow()]),
            max_new_tokens=len(ids),
            stop_strings=["gato"],
            tokenizer=tokenizer,
            **options,
        )
        assert tokenizer.decode(out[0], skip_special_tokens=True) == "un gato"


class TestInputs:
    @EVERY_SHAPE
    @GREEDY_AND_BEAMS
    @looped("side", ["left", "right"])
    def test_a_batch_equals_its_sentences_alone(self, changes, num_beams, side):
        model, source = varied_model(**changes), padded_source()
        if side == "left":
            source = {name: rows.flip(1) for name, rows in source.items()}
        rows, options = zip(*source.values(), strict=True), {**ENDLESS, "num_beams": num_beams}
        alone = [model.generate(ids[mask.bool()][None], **options) for ids, mask in rows]
        assert torch.equal(model.generate(**source, **options), torch.cat(alone))

    @EVERY_SHAPE
    def test_a_left_padded_prefix_equals_the_prefix_alone(self, changes):
        model, source = varied_model(**changes), tokens(2, 5)
        short, long = torch.tensor([[1, 7]]), torch.tensor([[1, 9, 8, 7]])
        prefixes = torch.cat([torch.cat([torch.zeros(1, 2, dtype=torch.long), short], 1), long])
        mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
        out = model.generate(source, decoder_input_ids=prefixes, decoder_attention_mask=mask, **ENDLESS)
        alone = model.generate(source[:1], decoder_input_ids=short, **ENDLESS)
        assert torch.equal(out[:1, 2:], alone)
        assert torch.equal(out[1:], model.generate(source[1:], decoder_input_ids=long, **ENDLESS))

    @GREEDY_AND_BEAMS
    def test_embeddings_or_encoder_outputs_instead_of_tokens(self, num_beams):
        model, source = varied_model(), padded_source()
        options = {**ENDLESS, "num_beams": num_beams, "attention_mask": source["attention_mask"]}
        expected = model.generate(source["input_ids"], **options)
        embeds = model.get_input_embeddings()(source["input_ids"])
        assert torch.equal(model.generate(inputs_embeds=embeds, **options), expected)
        encoded = model.get_encoder()(**source)
        assert torch.equal(model.generate(encoder_outputs=encoded, **options), expected)

    @EVERY_SHAPE
    @looped("masked", [False, True])
    def test_continue_from_a_cache(self, changes, masked):
        model, source = varied_model(**changes), padded_source()
        once = model.generate(**source, **ENDLESS)
        first = model.generate(**source, **{**ENDLESS, "max_new_tokens": 3}, return_dict_in_generate=True)
        given = {"decoder_input_ids": first.sequences, "past_key_values": first.past_key_values}
        given |= {"decoder_attention_mask": torch.ones_like(first.sequences)} if masked else {}
        assert torch.equal(model.generate(**source, **given, **{**ENDLESS, "max_new_tokens": 4}), once)

    @EVERY_SHAPE
    def test_continue_from_the_cache_of_several_samples(self, changes):
        model, source = varied_model(**changes), padded_source()
        options = {**ENDLESS, "do_sample": True, "num_return_sequences": 3, "return_dict_in_generate": True}
        first = model.generate(**source, **options)
        assert cached_rows(first) == (9, 9)
        several = {name: value.repeat_interleave(3, 0) for name, value in source.items()}
        given = {**ENDLESS, "max_new_tokens": 4, "decoder_input_ids": first.sequences}
        expected = model.generate(**several, **given)
        assert torch.equal(model.generate(**several, **given, past_key_values=first.past_key_values), expected)

    @pytest.mark.parametrize("cache", ["dynamic", "static"])
    @GREEDY_AND_BEAMS
    def test_a_source_of_padding(self, num_beams, cache):
        model, source = varied_model(), padded_source()
        source["attention_mask"][2] = 0
        options = {**ENDLESS, "num_beams": num_beams, "cache_implementation": cache}
        expected = model.generate(**source, **ENDLESS, num_beams=num_beams, use_cache=False)
        narrow = {name: value[2:, :2] for name, value in source.items()}
        for implementation in ("sdpa", "eager"):
            model.set_attn_implementation(implementation)
            assert torch.equal(model.generate(**source, **options), expected)
            assert torch.equal(model.generate(**narrow, **options), expected[2:])

    @looped("options", SEARCHES)
    @looped("side", ["left", "right"])
    def test_padding_is_inferred_from_ids(self, options, side):
        model, source = varied_model(), padded_source()
        if side == "left":
            source = {name: value.flip(1) for name, value in source.items()}
        ids, options = source["input_ids"], {**ENDLESS, **options}

        def decode(*args, **given):
            torch.manual_seed(3)
            return model.generate(*args, **given, **options)

        expected = decode(**source)
        for found in (decode(ids), decode(inputs=ids), decode(input_ids=ids), decode(ids, attention_mask=None)):
            assert torch.equal(found, expected)
        encoded = model.get_encoder()(**source)
        assert torch.equal(decode(ids, encoder_outputs=encoded), expected)

    @looped("name", ["num_beams", "num_return_sequences"])
    @looped("value", [0, -1, 1.5, "2"])
    def test_numbers_of_hypotheses_are_positive(self, name, value):
        model, source = tiny_model(), padded_source()
        settings = GenerationConfig()
        setattr(settings, name, value)
        for given in ({name: value}, {name: value, "do_sample": True}, {"generation_config": settings}):
            with pytest.raises(ValueError, match=f"^`{name}` is {value!r}; it must be a positive integer"):
                model.generate(**source, **given)
        assert len(model.generate(**source, **{name: np.int64(1)}, max_new_tokens=2)) == 3
        setattr(model.generation_config, name, value)
        with pytest.raises(ValueError, match=f"^`{name}` is {value!r}"):
            model.generate(**source)

    @looped("value", [1.5, 0, -2.0, "2"])
    def test_guidance_is_refused_by_name(self, value):
        model, source = tiny_model(), padded_source()
        settings = GenerationConfig(max_new_tokens=2)
        settings.guidance_scale = value
        negative = {"guidance_scale": value, "negative_prompt_ids": source["input_ids"]}
        for given in ({"guidance_scale": value, "num_beams": 2}, negative, {"generation_config": settings}):
            with pytest.raises(ValueError, match=f"^`guidance_scale` is {value!r}, but"):
                model.generate(**source, **given)
        plain = model.generate(**source, max_new_tokens=2)
        for off in (1, 1.0, None):
            assert torch.equal(model.generate(**source, max_new_tokens=2, guidance_scale=off), plain)
        model.generation_config.guidance_scale = value
        with pytest.raises(ValueError, match=f"^`guidance_scale` is {value!r}, but"):
            model.generate(**source)
        assert torch.equal(model.generate(**source, max_new_tokens=2, guidance_scale=1), plain)

    def test_more_sequences_than_hypotheses(self):
        for options in ({"num_beams": 2, "num_return_sequences": 3}, {"num_return_sequences": 2}):
            with pytest.raises(ValueError, match="num_return_sequences"):
                tiny_model().generate(**padded_source(), **options)

    def test_settings_of_the_model_and_of_the_call(self):
        model, source = varied_model(), padded_source()
        model.generation_config.update(num_beams=3, max_new_tokens=4, eos_token_id=None)
        explicit = GenerationConfig(num_beams=3, max_new_tokens=4, decoder_start_token_id=1, pad_token_id=0)
        assert torch.equal(model.generate(**source), model.generate(**source, generation_config=explicit))
        assert torch.equal(model.generate(**source, num_beams=1), by_hand(model, source, 4))


class TestOutputs:
    @looped("cache", ["dynamic", "static"])
    @looped(
        "options",
        [
            {},
            {"num_beams": 3},
            {"num_beams": 3, "num_return_sequences": 2},
            {"do_sample": True, "num_return_sequences": 2},
            {"do_sample": True, "num_beams": 3, "num_return_sequences": 2},
        ],
    )
    def test_cached_rows_are_those_of_marian(self, options, cache):
        options = {**ENDLESS, **options, "cache_implementation": cache, "return_dict_in_generate": True}
        models = (build("marian", vocab_size=VOCABULARY)[0], varied_model())
        expected, own = (cached_rows(model.generate(**padded_source(), **options)) for model in models)
        assert own == expected and own[0] == own[1]

    def test_streamers(self, capsys):
        texts = ["a b c d", "e f g h"]
        tokenizer = train_tokenizer(texts, algorithm="word", min_frequency=1)
        model = varied_model(vocab_size=len(tokenizer))
        source = tokenizer(texts[:1], return_tensors="pt")
        expected = tokenizer.decode(model.generate(**source, **ENDLESS)[0], skip_special_tokens=True)
        model.generate(**source, **ENDLESS, streamer=TextStreamer(tokenizer, skip_special_tokens=True))
        assert capsys.readouterr().out.split() == expected.split()
        streamer = TextIteratorStreamer(tokenizer, skip_special_tokens=True, timeout=60)
        with ThreadPoolExecutor() as pool:
            pool.submit(model.generate, **source, **ENDLESS, streamer=streamer)
            assert "".join(streamer).split() == expected.split()


class TestSpeculation:
    @EVERY_SHAPE
    def test_an_assistant_changes_no_token(self, changes):
        model = varied_model(**changes)
        assistant = varied_model(**{**changes, "encoder_layers": 1, "decoder_layers": 1})
        source = {"input_ids": tokens(1, 6)}
        expected = model.generate(**source, **ENDLESS)
        calls = []
        assistant.register_forward_hook(lambda *_: calls.append(1))
        assert torch.equal(model.generate(**source, **ENDLESS, assistant_model=assistant), expected)
        assert calls

    @EVERY_SHAPE
    def test_prompt_lookup_changes_no_token(self, changes):
        model, source = varied_model(**changes), {"input_ids": tokens(1, 6)}
        prefix = torch.tensor([[1, 7, 8, 9, 7, 8]])
        expected = model.generate(**source, decoder_input_ids=prefix, **ENDLESS)
        looked_up = model.generate(**source, decoder_input_ids=prefix, **ENDLESS, prompt_lookup_num_tokens=2)
        assert torch.equal(looked_up, expected)


class TestCaches:
    @EVERY_SHAPE
    @GREEDY_AND_BEAMS
    @looped("cache", ["dynamic", "static"])
    def test_equal_no_cache(self, changes, num_beams, cache):
        model, source = varied_model(**changes), padded_source()
        options = {**ENDLESS, "num_beams": num_beams}
        expected = model.generate(**source, **options, use_cache=False)
        # With a static cache, decoding is compiled on accelerators only.
        assert torch.equal(model.generate(**source, **options, cache_implementation=cache), expected)

    @EVERY_SHAPE
    def test_a_padded_prefix_over_a_static_cache(self, changes):
        model, source = varied_model(**changes), tokens(2, 5)
        prefix, mask = torch.tensor([[0, 0, 1, 7], [1, 9, 8, 7]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
        options = {**ENDLESS, "decoder_input_ids": prefix, "decoder_attention_mask": mask}
        expected = model.generate(source, **options)
        assert torch.equal(model.generate(source, **options, cache_implementation="static"), expected)

    @pytest.mark.slow
    @EVERY_SHAPE
    def test_compiled_decoding_is_one_graph_for_all_steps(self, changes):
        model, source = varied_model(**changes, decoder_layers=1), padded_source()
        expected = model.generate(**source, **ENDLESS)
        graphs = []
        torch._dynamo.reset()
        model.forward = torch.compile(model.forward, fullgraph=True, backend=counting_backend(graphs), dynamic=False)
        actual = model.generate(**source, **ENDLESS, cache_implementation="static", disable_compile=True)
        assert torch.equal(actual, expected)
        # One for the first token, which fills the cross-attention cache, and one for all later tokens.
        assert len(graphs) == 2
        torch._dynamo.reset()


@looped("changes", [{}, {"head_dim": 6, "value_head_dim": 6}, VOCABULARIES["tied"]])
@looped(
    "options",
    [
        {},
        {"num_beams": 3},
        {"cache_implementation": "static"},
        {"num_beams": 2, "cache_implementation": "static"},
        {"assisted": True},
        {"prompt_lookup_num_tokens": 2},
    ],
)
def test_outputs_have_the_shapes_of_the_text_config(changes, options):
    model = tiny_model(**changes, attn_implementation="eager")
    rows = 1 if {"assisted", "prompt_lookup_num_tokens"} & options.keys() else 2
    source = tokens(rows, 7)
    if "assisted" in options:
        options = {"assistant_model": tiny_model(**changes, decoder_layers=1)}
    flags = ("output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate")
    outputs = model.generate(source, max_new_tokens=5, min_new_tokens=5, **options, **dict.fromkeys(flags, True))
    beams = rows * options.get("num_beams", 1)
    encoder, decoder = (model.config.get_text_config(**{side: True}) for side in ("encoder", "decoder"))
    heads, layers = decoder.num_attention_heads, decoder.num_hidden_layers
    caches = outputs.past_key_values
    assert isinstance(caches, EncoderDecoderCache)
    for cache in (caches.self_attention_cache, caches.cross_attention_cache):
        assert len(cache.layers) == layers
        for layer in cache.layers:
            for states in (layer.keys, layer.values):
                assert (states.shape[1], states.shape[3]) == (heads, decoder.head_dim)
    assert len(outputs.encoder_attentions) == encoder.num_hidden_layers
    assert {a.shape[1:] for a in outputs.encoder_attentions} == {(encoder.num_attention_heads, 7, 7)}
    for step in outputs.decoder_attentions:
        assert {a.shape[:2] for a in step} == {(beams, heads)} and len(step) == layers
    for step in outputs.decoder_hidden_states:
        assert {h.shape[-1] for h in step} == {decoder.hidden_size} and len(step) == layers + 1
    assert {scores.shape[-1] for scores in outputs.scores} == {decoder.vocab_size}
