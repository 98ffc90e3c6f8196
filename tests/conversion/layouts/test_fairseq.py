"""Conversion of fairseq checkpoints: logits, arguments wherever they are stored, and search."""

import json

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration

import transformers_models
from conversions import convert, refused
from hf_vanilla_transformer import VanillaTransformerTokenizer
from hf_vanilla_transformer.conversion import convert_checkpoint
from tables import looped
from tiny import close
from transformers_models import (
    LOST,
    SEARCHES,
    SIZES,
    WORDS,
    as_fairseq,
    assert_same_function,
    fairseq_content,
    fsmt,
    save_fairseq,
    shaken,
    with_likely_ends,
)


@torch.no_grad()
def fairseq_search(model, source, beams=5, longest=9, pad=1, end=2):
    """Return the tokens that fairseq's generator finds for one sentence, or None beyond `longest` tokens.

    Each step takes the best 2k continuations of k beams. An end among the first k of them finishes a hypothesis, whose
    score is the mean log-probability of its tokens; the best k without an end go on. The search stops with the k-th
    finished hypothesis. The first token is never an end.
    """
    beam, scores, finished = [[end]], torch.zeros(1), []
    for step in range(longest):
        logits = model(source.expand(len(beam), -1), decoder_input_ids=torch.tensor(beam)).logits[:, -1]
        added = logits.log_softmax(-1)
        added[:, pad if step else [pad, end]] = -torch.inf
        best = (scores[:, None] + added).flatten().topk(2 * beams)
        candidates = [
            (value.item(), beam[place // added.shape[1]], place % added.shape[1])
            for value, place in zip(best.values, best.indices.tolist(), strict=True)
        ]
        for score, prefix, token in candidates[:beams]:
            if token == end:
                finished.append((score / (step + 1), [*prefix[1:], token]))
                if len(finished) == beams:
                    return max(finished)[1]
        going = [candidate for candidate in candidates if candidate[2] != end][:beams]
        beam, scores = [[*prefix, token] for _, prefix, token in going], torch.tensor([c[0] for c in going])
    return None


def searched_alike(converted, expected, **options):
    """Count the sources for which `generate()` finds the expected tokens."""
    found = [converted.generate(source, **options)[0, 1:].tolist() for source, _ in expected]
    return sum(ours == tokens for ours, (_, tokens) in zip(found, expected, strict=True))


@pytest.mark.parametrize("how", ["args", "cfg", "nested", "none"])
def test_post_norm(tmp_path, how):
    original = fsmt()
    file = save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(original), how)
    given = LOST if how == "none" else {}
    conversion = convert_checkpoint(file, tmp_path / "ours", **given)
    assert conversion.layout.name == "fairseq"
    assert not any("were not read" in note for note in conversion.notes)
    # fairseq does not store sinusoids.
    assert any(note.startswith("the positions that fairseq computes are not the paper's") for note in conversion.notes)
    with pytest.raises(ValueError, match="`first_position` is set, but the weights have no position table"):
        convert_checkpoint(file, None, dry_run=True, first_position=2, **given)
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    converted.generation_config = original.generation_config
    assert_same_function(original, converted, 1, searches=SEARCHES if how == "args" else ())
    assert converted.config.dropout == (0.1 if how == "none" else 0.3)


def test_pre_norm(tmp_path):
    torch.manual_seed(0)
    config = M2M100Config(vocab_size=50, max_position_embeddings=64, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
                          activation_function="relu", **SIZES)  # fmt: skip  # one call
    original = shaken(M2M100ForConditionalGeneration(config))
    original.generation_config.max_length = 9
    before = {"encoder_normalize_before": True, "decoder_normalize_before": True}
    file = save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(original), **before)
    conversion = convert(file)
    assert conversion.config.norm_position == "pre"
    converted = conversion.model()
    converted.generation_config = original.generation_config
    assert_same_function(original, converted, 1)


@pytest.mark.parametrize("how", ["args", "cfg", "nested"])
@pytest.mark.parametrize("where", ["file", "folder", "beside config.json", "shards", "state dict"])
def test_arguments_are_read_wherever_they_are(tmp_path, where, how):
    original = fsmt(activation_function="gelu", scale_embedding=False)
    weights, arguments = as_fairseq(original), {"activation_fn": "gelu", "no_scale_embedding": True}
    file = save_fairseq(tmp_path / "checkpoint_best.pt", weights, how, **arguments)
    source = {"file": file, "state dict": fairseq_content(weights, how, **arguments)}.get(where, tmp_path)
    if where == "beside config.json":
        (tmp_path / "config.json").write_text(json.dumps({"architectures": ["transformer"], "dropout": 0.3}))
    if where == "shards":
        names, places = list(weights), {}
        for shard in (0, 1):
            part = {name: weights[name] for name in names[shard::2]}
            save_fairseq(tmp_path / f"pytorch_model-{shard}.bin", part, how, **arguments)
            places |= dict.fromkeys(part, f"pytorch_model-{shard}.bin")
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same_function(original, convert(source).model(), 1, searches=())


@pytest.mark.parametrize("padding", [5, None])
def test_the_padding_id_of_another_config_moves_no_positions(tmp_path, padding):
    original = fsmt()
    save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(original))
    (tmp_path / "config.json").write_text(json.dumps({"pad_token_id": padding}))
    assert_same_function(original, convert(tmp_path).model(), 1, searches=())


def test_what_lost_arguments_would_determine_is_required(tmp_path):
    file = save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(fsmt()), "none")
    refused("do not determine how .* `norm_position=post.* `activation_function=re", file)
    given = {name: value for name, value in LOST.items() if name != "scale_embedding"}
    refused(r"code: `scale_embedding=true\|false`$", file, **given)
    content = fairseq_content(as_fairseq(fsmt()), "none")
    for other in ({"config": {"lr": 1}}, {"seed": 1}, {"cfg": {"common": {"seed": 1}}}):
        asked = r"code: `norm_position=post\|pre` `activation_function=.* `scale_"
        refused(asked, {**content, **other}, encoder_attention_heads=2)
    # Nor is it assumed that the first positions are padding: other models may have the same keys.
    learned = {f"{side}.embed_positions.weight": torch.randn(66, 16) for side in ("encoder", "decoder")}
    content["model"] |= learned
    refused("fairseq do not determine how .* code: `first_position=0`$", content, **LOST)
    config = convert(content, first_position=2, **LOST).config
    assert config.max_position_embeddings == 64


def test_what_arguments_say_or_leave_out():
    content = fairseq_content(as_fairseq(fsmt()))
    # As in an early release, which has a fixed activation and scale.
    del content["args"].activation_fn, content["args"].no_scale_embedding
    config = convert(content).config
    assert (config.activation_function, config.scale_embedding) == ("relu", True)
    before = {"encoder_normalize_before": True, "decoder_normalize_before": True}
    config = convert(fairseq_content(as_fairseq(fsmt()), **before)).config
    assert (config.norm_position, config.final_layer_norm) == ("pre", False)
    # Without positional embeddings, the tables are zeros.
    conversion = convert(fairseq_content(as_fairseq(fsmt()), no_token_positional_embeddings=True))
    assert conversion.config.position_embedding_type == "learned"
    assert not conversion.weights["model.encoder.embed_positions.weight"].any()


def test_copies_for_its_fast_path_are_no_weights(tmp_path):
    weights = as_fairseq(fsmt())
    expected = convert(save_fairseq(tmp_path / "plain.pt", weights)).weights
    for name, shape in {"in_proj": (48, 16), "out_proj": (16, 16), "fc1": (32, 16), "fc2": (16, 32)}.items():
        for layer in (0, 1):
            weights[f"encoder.layers.{layer}.{name}_weight"] = torch.zeros(shape)
            weights[f"encoder.layers.{layer}.{name}_bias"] = torch.zeros(shape[0])
    found = convert(save_fairseq(tmp_path / "copies.pt", weights)).weights
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    weights["decoder.embed_out"] = torch.ones(40, 16)
    refused("1 unexpected: decoder.embed_out", save_fairseq(tmp_path / "both.pt", weights))


def test_names_of_early_releases(tmp_path):
    original = fsmt()
    weights = as_fairseq(original)
    expected = convert(save_fairseq(tmp_path / "new.pt", weights)).weights
    for side, layers in (("encoder", 2), ("decoder", 3)):
        for layer in (f"{side}.layers.{i}" for i in range(layers)):
            for attn in ("self_attn", "encoder_attn"):
                for part in ("weight", "bias"):
                    names = [f"{layer}.{attn}.{name}_proj.{part}" for name in "qkv"]
                    if names[0] in weights:
                        weights[f"{layer}.{attn}.in_proj_{part}"] = torch.cat([weights.pop(n) for n in names])
            for number, norm in enumerate(("self_attn_layer_norm", "final_layer_norm")):
                for part in ("weight", "bias") if side == "encoder" else ():
                    weights[f"{layer}.layer_norms.{number}.{part}"] = weights.pop(f"{layer}.{norm}.{part}")
    weights["decoder.embed_out"] = weights.pop("decoder.output_projection.weight")
    found = convert(save_fairseq(tmp_path / "old.pt", weights)).weights
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        close(found[name], tensor, 0.0)


def test_learned_positions_begin_after_padding(tmp_path):
    weights = as_fairseq(fsmt())
    for side in ("encoder", "decoder"):
        weights[f"{side}.embed_positions.weight"] = torch.randn(66, 16)
    conversion = convert(save_fairseq(tmp_path / "learned.pt", weights))
    config = conversion.config
    assert (config.position_embedding_type, config.max_position_embeddings) == ("learned", 64)
    table = conversion.weights["model.decoder.embed_positions.weight"]
    close(table, weights["decoder.embed_positions.weight"][2:], 0.0)
    shorter = save_fairseq(tmp_path / "shorter.pt", weights, max_source_positions=66)
    refused("encoder.embed_positions.weight has 66 rows, but .* imply 66, and 2 more for padding", shorter)
    del weights["decoder.embed_positions.weight"]
    lost = save_fairseq(tmp_path / "lost.pt", weights, decoder_learned_pos=True)
    refused("trained with learned positions, but there is no decoder.embed", lost)


@pytest.mark.slow
def test_searches_as_fairseq_does(tmp_path):
    """The search ends by counting finished hypotheses, none of them empty; other settings give other translations."""
    convert_checkpoint(save_fairseq(tmp_path / "checkpoint_best.pt", with_likely_ends(fsmt())), tmp_path / "ours")
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    settings = converted.generation_config
    assert (settings.num_beams, settings.early_stopping, settings.length_penalty) == (5, True, 1.0)
    settings.max_length = 11
    sources = [torch.randint(4, 38, (1, n)) for n in range(1, 8) for _ in range(3)]
    searched = [(source, fairseq_search(converted, source)) for source in sources]
    # fairseq scores the forced end at its limit of 200 tokens differently, so such outputs are not compared.
    expected = [(source, tokens) for source, tokens in searched if tokens is not None]
    assert len(expected) > 5 and len({len(tokens) for _, tokens in expected}) > 1
    assert searched_alike(converted, expected) == len(expected)
    assert searched_alike(converted, expected, early_stopping=False) < len(expected)
    assert searched_alike(converted, expected, min_new_tokens=None) < len(expected)


def test_dictionaries_become_the_tokenizer(tmp_path):
    words = sorted({word for text in WORDS for word in text.split()})
    for side, size in (("de", 50), ("en", 40)):
        lines = [f"{word} {100 - n}" for n, word in enumerate(words)]
        lines += [f"madeupword{n:04} 0" for n in range(size - 4 - len(words))]
        (tmp_path / f"dict.{side}.txt").write_text("\n".join(lines) + "\n")
    file = save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(fsmt()))
    dictionaries = (tmp_path / "dict.de.txt", tmp_path / "dict.en.txt")
    convert_checkpoint(file, tmp_path / "ours", None, *dictionaries)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    ids = tokenizer("a dog flies")["input_ids"]
    assert ids == [4 + words.index("a"), 4 + words.index("dog"), 3, 2]
    with pytest.raises(ValueError, match=r"dict\.en\.txt has 40 tokens, but the embeddings .* have 50"):
        convert_checkpoint(file, tmp_path / "wrong", None, dictionaries[1], dictionaries[0])
    assert not (tmp_path / "wrong").exists()


def test_a_shared_dictionary_becomes_one_tokenizer(tmp_path):
    (tmp_path / "dict.txt").write_text("".join(f"word{n} 1\n" for n in range(46)))
    content = fairseq_content(as_fairseq(fsmt(tgt_vocab_size=50)))
    tokenizer = convert(content, source_vocabulary=tmp_path / "dict.txt").tokenizer
    assert not isinstance(tokenizer, VanillaTransformerTokenizer)
    assert tokenizer("word0 word9")["input_ids"] == tokenizer(text_target="word0 word9")["input_ids"] == [4, 13, 2]


@looped(
    ("name", "value", "message"),
    [
        ("encoder.layernorm_embedding.weight", torch.ones(16), r"3 missing: decoder\.layernorm_embedding\.bias"),
        ("layernorm_embedding", True, r"4 missing: decoder\.layernorm_embedding\.bias"),
        ("encoder.layer_norm.weight", torch.ones(16), "have norms at different places"),
        ("encoder_normalize_before", True, "have norms at different places"),
        ("cross_self_attention", True, "--cross-self-attention, which our configuration cannot express"),
    ],
)
def test_inexpressible_models_are_refused(name, value, message):
    weight, argument = ({name: value}, {}) if "." in name else ({}, {name: value})
    refused(message, fairseq_content({**as_fairseq(fsmt()), **weight}, **argument))


@pytest.mark.parametrize("kind", ["bart", "mbart"])
@pytest.mark.parametrize("how", ["args", "nested", "none"])
def test_norms_after_the_embeddings(kind, how):
    """BART and mBART were trained by fairseq with --layernorm-embedding and learned positions."""
    original = getattr(transformers_models, kind)()
    original.final_logits_bias.zero_()
    weights = as_fairseq(original)
    del weights["final_logits_bias"]
    for side in ("encoder", "decoder"):
        del weights[f"{side}.embed_positions._float_tensor"]
        weights[f"{side}.embed_positions.weight"] = getattr(original.model, side).embed_positions.weight.detach()
    given = {**LOST, "activation_function": "gelu", "scale_embedding": False, "first_position": 2}
    given["norm_position"] = "post" if kind == "bart" else "pre"
    before = dict.fromkeys(("encoder_normalize_before", "decoder_normalize_before"), kind == "mbart")
    arguments = {"layernorm_embedding": True, "activation_fn": "gelu", "no_scale_embedding": True, **before}
    content = fairseq_content(weights, how, **arguments)
    given = given if how == "none" else {}
    conversion = convert(content, **given)
    assert conversion.config.embedding_layer_norm
    assert_same_function(original, conversion.model(), 1, searches=())
    contradiction = "`embedding_layer_norm=False`, but the weights imply True; leave it out"
    refused(contradiction, content, **given, embedding_layer_norm=False)
