"""Output limits: each sentence of a batch ends as `max_length` would end it alone."""

from itertools import product
from types import SimpleNamespace

import peft
import pytest
import torch
from transformers import GenerationConfig

from hf_vanilla_transformer import VanillaTransformerEnsemble
from hf_vanilla_transformer.inference.glossary import Glossary
from hf_vanilla_transformer.inference.preparation import encode
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.pretrained.output_limits import EXTRA_OUTPUT_TOKENS, OutputLimits
from tables import looped
from translators import SPANISH, assert_alike, build, set_end_bias

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # PEFT uses an attribute that transformers has renamed.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]

WORDS = "two dogs run in the street we see a small cat a red house no".split()
# 2 to 29 tokens, end token included.
SENTENCES = [" ".join(words) for words in (WORDS[:1], WORDS * 2, WORDS[:4], WORDS[:4])]
# Biases of the end token: with the first all hypotheses reach the limit, with the second some do.
NEVER, SELDOM = -1e4, -1.0


def ensemble():
    (first, tokenizer), (second, _) = build("shared"), build("shared", d_model=24)
    return VanillaTransformerEnsemble([set_end_bias(first, NEVER), set_end_bias(second, NEVER)]), tokenizer


def wrapped_by_peft():
    model, tokenizer = build("marian", max_position_embeddings=256, forced_eos_token_id=2)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM")
    return peft.get_peft_model(set_end_bias(model, NEVER), config), tokenizer


def other(kind, bias, forced=None):
    model, tokenizer = build(kind, max_position_embeddings=256)
    model.generation_config.forced_eos_token_id = forced
    return set_end_bias(model, bias), tokenizer


MODELS = {
    "ours": lambda: other("shared", NEVER),
    "ours, some end": lambda: other("pair", SELDOM),
    "ours, forced end": lambda: other("shared", NEVER, forced=2),
    "marian": lambda: other("marian", NEVER),
    "marian, forced end": lambda: other("marian", NEVER, forced=2),
    "bart, some end": lambda: other("bart", SELDOM),
    "ensemble": ensemble,
    "peft": wrapped_by_peft,
}
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 4, "num_hypotheses": 4},
    "early stopping": {"num_beams": 3, "early_stopping": True, "length_penalty": 0.0},
    "never": {"num_beams": 3, "num_hypotheses": 2, "early_stopping": "never", "length_penalty": 2.0},
    "large penalty": {"num_beams": 4, "num_hypotheses": 4, "length_penalty": 5.0},
}


# Without scores, our own beam search is used.
CASES = [
    *product(MODELS, ["greedy", "beams"], [True]),
    *product(["ours", "ours, some end", "ensemble"], ["greedy", "beams"], [False]),
    *product(["ours, some end", "marian, forced end"], list(SEARCHES)[2:], [True, False]),
]


@pytest.mark.parametrize(("kind", "search", "with_scores"), CASES)
def test_a_batch_is_translated_as_each_sentence_alone(kind, search, with_scores):
    translator, options = MODELS[kind](), {**SEARCHES[search], "with_scores": with_scores}
    alone = [translate(*translator, [sentence], **options)[0] for sentence in SENTENCES]
    assert_alike(translate(*translator, SENTENCES, **options), alone, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("kind", ["shared", "marian"])
def test_a_limit_is_the_max_length_of_generate(kind, num_beams):
    model, tokenizer = other(kind, NEVER)
    given = {"num_beams": num_beams, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    texts, scores = [], []
    for ids in encode(tokenizer, SENTENCES):
        limit = len(ids) + EXTRA_OUTPUT_TOKENS
        output = model.generate(torch.tensor([ids]), max_length=limit, **given)
        assert output.sequences.shape == (1, limit)
        texts += tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        if num_beams == 1:
            steps = zip(output.logits, output.sequences[0, 1:], strict=True)
            scores.append(sum(step.log_softmax(-1)[0, token].item() for step, token in steps) / (limit - 1))
        else:
            scores += output.sequences_scores.tolist()
    found = [row[0] for row in translate(model, tokenizer, SENTENCES, num_beams=num_beams, with_scores=True)]
    assert [each.text for each in found] == texts
    assert [each.score for each in found] == pytest.approx(scores, abs=1e-5)


@looped("settings", [{"eos_token_id": None}, {"do_sample": True, "num_beams": 1}])
@looped("num_beams", [1, 3])
@looped("kind", ["shared", "marian"])
def test_nothing_follows_a_limit(kind, num_beams, settings):
    """Neither with sampling nor without an end token."""
    model, tokenizer = other(kind, NEVER)
    model.generation_config.update(num_beams=num_beams)
    model.generation_config.update(**settings)
    rows = translate(model, tokenizer, SENTENCES, bad_words_ids=[[i] for i in range(4)])
    lengths = [len(ids) + EXTRA_OUTPUT_TOKENS for ids in encode(tokenizer, SENTENCES)]
    assert [1 + len(row[0].text.split()) for row in rows] == lengths


def test_a_limit_is_within_the_positions_and_of_a_sentence_only_by_default():
    def limits(**config):
        return OutputLimits(SimpleNamespace(config=SimpleNamespace(**config), generation_config=GenerationConfig()))

    learned = limits(max_position_embeddings=60)
    assert [learned(5), learned(11), learned(5, 4)] == [55, 60, 59]
    assert limits(position_embedding_type="sinusoidal")(70) == 70 + EXTRA_OUTPUT_TOKENS
    model, tokenizer = other("shared", NEVER)
    for bound in ({"max_length": 9}, {"max_new_tokens": 8}):
        rows = translate(model, tokenizer, SENTENCES, bad_words_ids=[[i] for i in range(4)], **bound)
        assert [len(row[0].text.split()) for row in rows] == [8] * len(SENTENCES)


@pytest.mark.parametrize("bias", [NEVER, SELDOM])
@pytest.mark.parametrize("kind", ["shared", "marian"])
def test_terms_of_a_glossary(kind, bias):
    model, tokenizer = other(kind, bias)
    glossary = Glossary.of({"street": SPANISH[2], "cat": "gato"})
    options = {"num_beams": 4, "num_hypotheses": 4, "glossary": glossary, "with_scores": True}
    options["bad_words_ids"] = [[0], [1], [3]]
    sentences = [SENTENCES[1], "no small cat", "street"]
    alone = [translate(model, tokenizer, [sentence], **options)[0] for sentence in sentences]
    assert_alike(translate(model, tokenizer, sentences, **options), alone, abs=1e-5, rel=1e-5)
    if bias == NEVER:
        # The limit grows by the tokens of the term's translation.
        assert len(alone[-1][0].text.split()) + 1 == 2 + EXTRA_OUTPUT_TOKENS + len(SPANISH[2].split())
