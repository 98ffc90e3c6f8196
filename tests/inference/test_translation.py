"""Translation with one and with two vocabularies, and with a model of another family."""

import logging
from itertools import count, islice

import pytest
import torch
from transformers import GenerationConfig, MarianMTModel

from hf_vanilla_transformer.inference import decoding as decoding
from hf_vanilla_transformer.inference.preparation import encode
from hf_vanilla_transformer.inference.translation import cross_attention, load, translate, translate_lines
from hf_vanilla_transformer.pretrained.output_limits import EXTRA_OUTPUT_TOKENS
from tables import looped
from translators import SHARED, build, save_translator, set_end_bias, texts

KINDS = ("shared", "pair", "marian")
SENTENCES = ["two dogs run in the red street", "a cat", "the cat sleeps in a house", "run", "we see a small cat", "no"]
END = 2

pytestmark = pytest.mark.usefixtures("one_thread")


def record_generate(model, monkeypatch):
    """Return a list to which every call of `generate()` appends its inputs and output."""
    calls, generate = [], model.generate

    def recording(**options):
        output = generate(**options)
        calls.append((options, output))
        return output

    monkeypatch.setattr(model, "generate", recording, raising=False)
    return calls


def cut_warnings(caplog):
    return [record.message for record in caplog.records if record.name == translate.__module__]


@looped("num_beams", [1, 3])
def test_order_is_kept_and_batches_do_not_matter(translator, num_beams):
    options = {"num_beams": num_beams, "num_hypotheses": num_beams, "max_length": 8}
    if isinstance(translator[0], MarianMTModel):
        # The deeper model gives all sentences the same translation.
        translator = build("marian", init_std=0.5, encoder_layers=1, decoder_layers=1)
        options["bad_words_ids"] = [[0]]
    one_by_one = [translate(*translator, [sentence], **options)[0] for sentence in SENTENCES]
    assert len({hypotheses[0].text for hypotheses in one_by_one}) > 3, "equal outputs would hide a wrong order"
    for max_tokens in (1, 24, 4096):
        assert translate(*translator, SENTENCES, max_tokens=max_tokens, **options) == one_by_one


def test_blank_sentences_have_empty_translations(translator):
    sentences = ["", "a cat", " \t\u0085", "a house", "\u2028"]
    results = translate(*translator, sentences, num_beams=2, num_hypotheses=2, with_scores=True, max_length=6)
    for place in (0, 2, 4):
        assert [(hypothesis.text, hypothesis.score) for hypothesis in results[place]] == [("", 0.0)] * 2
    both = translate(*translator, ["a cat", "a house"], num_beams=2, num_hypotheses=2, max_length=6)
    assert texts([results[1], results[3]]) == texts(both)
    assert translate(*translator, []) == [] and texts(translate(*translator, [" "])) == [[""]]
    assert translate(*translator, [""])[0][0].score is None


def test_n_best_are_sorted_and_distinct(translator):
    options = {"num_beams": 4, "max_length": 6, "with_scores": True}
    best = translate(*translator, SENTENCES, **options)
    for four, (one,) in zip(translate(*translator, SENTENCES, num_hypotheses=4, **options), best, strict=True):
        scores = [hypothesis.score for hypothesis in four]
        assert scores == sorted(scores, reverse=True) and len(set(scores)) == 4
        assert four[0].text == one.text and scores[0] == pytest.approx(one.score, rel=1e-4)


def end_in_turn(input_ids, scores):
    """Let every third row end after 2 tokens, every third after 3, and every third after 4."""
    ends = torch.arange(len(scores)) % 3 + 2 == input_ids.shape[1]
    is_end = torch.arange(scores.shape[1]) == END
    return scores.masked_fill(ends[:, None] != is_end, -torch.inf)


def teacher_forced_scores(model, sources, sequences, length_penalty):
    """Score each sequence by a forward pass of its own, without padding and without a cache."""
    scores, repeats, finished = [], len(sequences) // len(sources), set()
    for i, sequence in enumerate(sequences.tolist()):
        end = sequence.index(END) if END in sequence else len(sequence) - 1
        finished.add(END in sequence)
        ids = torch.tensor([sequence[: end + 1]])
        source = torch.tensor([sources[i // repeats]])
        with torch.no_grad():
            log_probs = model(input_ids=source, decoder_input_ids=ids[:, :-1]).logits.log_softmax(-1)
        total = log_probs.gather(2, ids[:, 1:, None]).sum().item()
        scores.append(total / (ids.shape[1] - 1) ** length_penalty)
    assert finished == {True, False}, "outputs that ended and outputs that were truncated"
    return scores


@looped("length_penalty", [None, 0.0, 0.6, 2.0])
@looped(
    "search",
    [
        {"num_beams": 1},
        {"num_beams": 3, "num_hypotheses": 3},
        {"num_beams": 1, "num_hypotheses": 4, "do_sample": True, "temperature": 2.0},
    ],
)
def test_scores_are_those_of_teacher_forcing(translator, monkeypatch, search, length_penalty):
    model, tokenizer = translator
    set_end_bias(model, 4.0)
    calls = record_generate(model, monkeypatch)
    options = search if length_penalty is None else search | {"length_penalty": length_penalty}
    results = translate(
        model, tokenizer, SENTENCES, with_scores=True, max_length=4, logits_processor=[end_in_turn], **options
    )
    ((_, output),) = calls
    ids = encode(tokenizer, SENTENCES)
    by_length = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    penalty = 1.0 if length_penalty is None else length_penalty
    expected = teacher_forced_scores(model, [ids[i] for i in by_length], output.sequences, penalty)
    scores = [hypothesis.score for i in by_length for hypothesis in results[i]]
    assert scores == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_scores_use_the_settings_of_the_model(translator):
    model, tokenizer = translator
    given = {"length_penalty": 0.3, "num_beams": 3}
    expected = translate(model, tokenizer, SENTENCES, max_length=6, with_scores=True, **given)
    model.generation_config.update(**given)
    assert translate(model, tokenizer, SENTENCES, max_length=6, with_scores=True) == expected
    greedy = translate(model, tokenizer, SENTENCES, max_length=6, with_scores=True, num_beams=1)
    assert greedy == translate(
        model, tokenizer, SENTENCES, max_length=6, with_scores=True, num_beams=1, length_penalty=0.3
    )


def test_settings_of_the_model_that_do_not_apply_cause_no_warning(translator, caplog):
    model, tokenizer = translator
    model.generation_config.update(num_beams=4, length_penalty=0.6, early_stopping=True, max_new_tokens=3)
    library = logging.getLogger("transformers")
    library.addHandler(caplog.handler)
    try:
        translate(model, tokenizer, SENTENCES, num_beams=1)
        translate(model, tokenizer, SENTENCES, max_length=6)
        cross_attention(model, tokenizer, SENTENCES[0])
    finally:
        library.removeHandler(caplog.handler)
    assert set(cut_warnings(caplog)) <= {"of 6 lines, 6 came back suspiciously short"}


def test_dropout_is_off_and_the_mode_restored():
    model, _ = build("shared", dropout=0.5, attention_dropout=0.5)
    model.train()
    options = {"max_length": 8, "with_scores": True}
    assert translate(model, SHARED, SENTENCES, **options) == translate(model, SHARED, SENTENCES, **options)
    assert torch.equal(cross_attention(model, SHARED, "a cat")[0], cross_attention(model, SHARED, "a cat")[0])
    assert model.training
    translate(model.eval(), SHARED, SENTENCES, max_length=8)
    assert not model.training


def test_long_sources_are_cut_and_counted(translator, caplog):
    sentences = ["the cat sleeps in a house", "a cat", "two dogs run in the red street", ""]
    options = {"max_length": 8, "num_beams": 2}
    results = translate(*translator, sentences, max_source_length=4, **options)
    assert texts(results) == texts(translate(*translator, ["the cat sleeps", "a cat", "two dogs run", ""], **options))
    assert cut_warnings(caplog)[0] == "2 of 3 sentences had more than 4 tokens and were truncated"


@pytest.mark.parametrize("kind", ["learned", "marian"])
def test_sources_beyond_the_positions_are_cut_and_counted(kind, caplog):
    model, _ = build(kind, max_position_embeddings=10)
    set_end_bias(model, -1e4)
    sentences = ["a cat", "red house " * 30, "the cat"]
    results = translate(model, SHARED, sentences, with_scores=True, raw=True)
    assert "1 of 3 sentences had more than 10 tokens" in caplog.text
    assert texts(translate(model, SHARED, ["a cat", "red house " * 4 + "red", "the cat"])) == texts(results)
    caplog.clear()
    pieces = translate(model, SHARED, sentences)[1][0]
    assert "of 3 lines, 1 had a sentence longer than any in training, which was cut" in caplog.text
    assert pieces.remarks[0] == "cut" and len(pieces.text) > 5 * len(results[1][0].text)
    assert translate(model, SHARED, ["a cat"], max_length=99) == translate(model, SHARED, ["a cat"])
    weights, source_tokens, _ = cross_attention(model, SHARED, sentences[1])
    assert weights.shape[1] == len(source_tokens) == 10


def test_sinusoids_have_no_limit(caplog):
    model, _ = build("shared", max_position_embeddings=8)
    long = "red house " * 30
    whole, cut = (
        translate(model, SHARED, [long], max_length=20, with_scores=True, max_source_length=limit, raw=True)
        for limit in (None, 8)
    )
    assert whole[0][0].score != pytest.approx(cut[0][0].score, rel=1e-3)
    assert "1 of 1 sentences had more than 8 tokens and were truncated" in cut_warnings(caplog)


@pytest.mark.parametrize(("num_beams", "with_scores"), [(1, False), (1, True), (2, True)])
def test_batches_stay_within_the_budget(translator, monkeypatch, num_beams, with_scores):
    """Scores of the whole vocabulary are kept for greedy search only."""
    model, tokenizer = translator
    calls = record_generate(model, monkeypatch)
    budget = {"max_tokens": 200 * num_beams, "num_beams": num_beams, "max_new_tokens": 20}
    translate(model, tokenizer, SENTENCES * 10, with_scores=with_scores, **budget)
    sources = [options["input_ids"] for options, _ in calls]
    assert sum(map(len, sources)) == 60
    tokens = [len(ids) * (20 if with_scores and num_beams == 1 else ids.shape[1]) for ids in sources]
    assert max(tokens) <= 200 < 2 * min(tokens[:-1]), "within the budget, and no batch needlessly small"


@pytest.mark.parametrize("kind", ["shared", "marian"])
def test_beam_search_keeps_no_scores_of_the_whole_vocabulary(kind, monkeypatch):
    model, tokenizer = build(kind)
    options = {"num_beams": 3, "num_hypotheses": 2, "max_length": 8}
    inputs = [tokenizer(sentence, return_tensors="pt") for sentence in SENTENCES[:2]]
    given = {"num_return_sequences": 2, "return_dict_in_generate": True, "output_scores": True, **options}
    del given["num_hypotheses"]
    expected = [model.generate(**source, **given).sequences_scores.tolist() for source in inputs]
    calls = record_generate(model, monkeypatch)
    rows = translate(model, tokenizer, SENTENCES[:2], with_scores=True, **options)
    assert [[hypothesis.score for hypothesis in row] for row in rows] == [
        pytest.approx(row, abs=1e-6) for row in expected
    ]
    assert calls and not any("output_scores" in options for options, _ in calls)


@looped("chunk_size", [1, 4, 100])
def test_lines_are_translated_in_order_whatever_the_chunk(translator, chunk_size):
    sentences = [*SENTENCES[:2], "", *SENTENCES[2:]]
    results = list(translate_lines(*translator, iter(sentences), chunk_size=chunk_size, max_length=8))
    assert results == translate(*translator, sentences, max_length=8)


def test_lines_are_read_as_they_are_needed(translator):
    read = count()
    endless = (f"{SENTENCES[n % len(SENTENCES)]}" for n in read)
    stream = translate_lines(*translator, endless, chunk_size=4, max_length=6)
    assert next(read) == 0, "nothing is read before it is asked for"
    assert len(list(islice(stream, 5))) == 5
    assert next(read) == 9
    stream.close()


def test_progress_goes_to_standard_error(translator, capsys):
    translate(*translator, [*SENTENCES, ""], max_length=4, show_progress=True)
    printed = capsys.readouterr()
    assert printed.out == "" and "Translating" in printed.err and "6/6" in printed.err
    translate(*translator, SENTENCES, max_length=4)
    assert capsys.readouterr().err == ""


@looped(
    ("sentences", "options", "message"),
    [
        ("a cat", {}, "sentences is one string"),
        (["a cat", None], {}, "sentence 2 is a NoneType, not a string"),
        (["a cat", "a \ud800"], {}, r"sentence 2 has a lone surrogate, U\+D800, at position 2"),
        (["a cat"], {"num_hypotheses": 2}, "2 hypotheses need as many beams, but `num_beams` is 1"),
        (["a cat"], {"num_hypotheses": 3, "num_beams": 2, "do_sample": True}, "3 hypotheses need as many beams"),
        (["a cat"], {"num_hypotheses": 0}, "`num_hypotheses` is 0; it must be positive"),
        (["a cat"], {"num_beams": 2, "length_penalty": float("nan")}, "`length_penalty` is nan; it must be"),
        (["a cat"], {"max_length": "x"}, "`max_length` is 'x'; it must be"),
        (["a cat"], {"num_beams": 0}, "`num_beams` is 0"),
        (["a cat"], {"max_tokens": 0}, "`max_tokens` is 0"),
        (["a cat"], {"chunk_size": 0}, "`chunk_size` is 0"),
        (["a cat"], {"max_source_length": 1}, "`max_source_length` is 1; it must be at least 2"),
        (["a cat"], {"generation_config": GenerationConfig(num_beams=2)}, "`generation_config` is not accepted"),
    ],
)
def test_what_cannot_be_translated(translator, sentences, options, message):
    with pytest.raises(ValueError, match=message) as error:
        translate(*translator, sentences, **options)
    assert "\n" not in str(error.value)


def test_cross_attention_is_what_decoding_attended_to(translator):
    model, tokenizer = translator
    source = "the cat sleeps in a house"
    implementation = model.config._attn_implementation
    weights, source_tokens, target_tokens = cross_attention(model, tokenizer, source)
    assert model.config._attn_implementation == implementation
    assert source_tokens == [*source.split(), "</s>"]
    model.set_attn_implementation("eager")
    output = model.generate(
        torch.tensor(encode(tokenizer, [source])),
        max_length=len(source_tokens) + EXTRA_OUTPUT_TOKENS,
        return_dict_in_generate=True,
        output_attentions=True,
    )
    steps = [step[-1][0].mean(0) for step in output.cross_attentions]
    torch.testing.assert_close(weights, torch.cat(steps).cpu(), rtol=1e-4, atol=1e-6)
    assert target_tokens == [tokenizer.decode([token]) for token in output.sequences[0, 1:].tolist()]
    with pytest.raises(ValueError, match="the sentence is blank"):
        cross_attention(model, tokenizer, " ")


@looped("with_scores", [True, False])
@looped("num_beams", [1, 3])
@looped("kind", ["shared", "marian"])
def test_scores_of_nan_are_refused(kind, num_beams, with_scores):
    model, tokenizer = build(kind)
    model.get_decoder().layers[-1].final_layer_norm.weight.data[3] = torch.nan
    # Banned tokens may have scores other than NaN.
    options = {"num_beams": num_beams, "bad_words_ids": [[0], [33]], "max_length": 6, "with_scores": with_scores}
    with pytest.raises(ValueError, match="a score is NaN: .* compute in float32"):
        translate(model, tokenizer, ["a cat"], **options)


@pytest.mark.parametrize("kind", ["shared", "marian"])
def test_a_tokenizer_of_another_model(kind):
    model, tokenizer = build(kind, vocab_size=20, decoder_vocab_size=20, pad_token_id=0)
    with pytest.raises(ValueError, match=r"^`tokenizer` produced id \d+, but `model` has only 20 source tokens; use"):
        translate(model, tokenizer, ["the small cat sleeps"])


def test_a_device_that_is_not_there(tmp_path):
    save_translator("shared", tmp_path)
    with pytest.raises(ValueError, match="`device` warp cannot be used"):
        load(str(tmp_path), device="warp")


@pytest.mark.parametrize(("kind", "widths"), [("shared", {8}), ("learned", {7})])
def test_sources_are_padded_to_few_lengths_where_searches_are_recorded(monkeypatch, kind, widths):
    """Batches of other sentences then have equal shapes. Learned positions limit the padding."""
    limit = {"max_position_embeddings": 7} if kind == "learned" else {}
    model, tokenizer = build(kind, **limit)
    options = {"num_beams": 3, "max_length": 6}
    expected = translate(model, tokenizer, SENTENCES, **options)
    monkeypatch.setattr(decoding, "PADDED_TO", {model.device.type: 8})
    calls = record_generate(model, monkeypatch)
    assert translate(model, tokenizer, SENTENCES, max_tokens=48, **options) == expected
    assert {call["input_ids"].shape[1] for call, _ in calls} == widths and len(calls) > 2
