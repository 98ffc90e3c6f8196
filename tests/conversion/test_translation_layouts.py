"""Conversion of Marian, FSMT and fairseq models: what the original classes of transformers compute, to the token."""

import json
from argparse import Namespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    FSMTConfig,
    FSMTForConditionalGeneration,
    FSMTTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
)

from hf_vanilla_transformer.conversion import convert_checkpoint
from hf_vanilla_transformer.conversion.layouts.fairseq import fairseq_sinusoids
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.ctranslate2 import CTranslate2Model
from tiny import BASELINES_DECODE_CORRECTLY, close

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 24, "dropout": 0.0,
}  # fmt: skip  # as in tiny.py
WORDS = ["a dog runs", "the cat sleeps now", "a small dog sleeps", "the house is old", "a cat runs to the old house"]


def shaken(model, scale=0.3):
    """Random biases and norms too, so that none of them is 0 or 1; logits that differ."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * scale)
    return model.eval()


def marian(**changes):
    torch.manual_seed(0)
    options = {"vocab_size": 50, "pad_token_id": 39, "decoder_start_token_id": 39, "scale_embedding": True,
               "activation_function": "swish", **SIZES, **changes}  # fmt: skip  # as above
    model = shaken(MarianMTModel(MarianConfig(**options)))
    model.final_logits_bias.normal_()
    settings = {"num_beams": 4, "bad_words_ids": [[39]], "max_length": 14, "length_penalty": 0.7}
    model.generation_config.update(**settings)
    return model


def fsmt(**changes):
    torch.manual_seed(0)
    options = {"src_vocab_size": 50, "tgt_vocab_size": 40, "max_position_embeddings": 64, **SIZES, **changes}
    model = shaken(FSMTForConditionalGeneration(FSMTConfig(**options)))
    model.generation_config.max_length = 14
    return model


def batch(source=38, target=38, padding=1):
    """Ids of four rows of two to seven tokens, padded on the right."""
    ids, labels = torch.randint(4, source, (4, 7)), torch.randint(4, target, (4, 5))
    mask = (torch.arange(7)[None] < torch.tensor([[7], [4], [2], [5]])).long()
    return {"input_ids": ids.masked_fill(mask == 0, padding), "attention_mask": mask}, labels


def same_function(original, converted, padding):
    source, target = batch(padding=padding)
    with torch.no_grad():
        # With a cache, FSMT would let every token see all of them.
        theirs = original(**source, decoder_input_ids=target, use_cache=False).logits
        close(converted(**source, decoder_input_ids=target).logits, theirs)
        for row, mask in enumerate(source["attention_mask"]):
            alone = source["input_ids"][row : row + 1, : mask.sum()]
            logits = converted(alone, decoder_input_ids=target[row : row + 1]).logits
            close(logits[0], theirs[row])
    ways = [{"num_beams": 1}, {}, {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True}]
    if not BASELINES_DECODE_CORRECTLY and isinstance(original, FSMTForConditionalGeneration):
        ways = []
    elif not BASELINES_DECODE_CORRECTLY and converted.config.vocab_size != converted.config.decoder_vocab_size:
        ways = ways[:1]
    for options in ways:
        ours, expected = converted.generate(**source, **options), original.generate(**source, **options)
        assert torch.equal(ours, expected), options


class TestMarian:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 40},
            {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
            {"scale_embedding": False, "activation_function": "gelu"},
        ],
        ids=["shared", "two vocabularies", "all apart", "unscaled"],
    )
    def test_computes_and_decodes_the_same(self, tmp_path, changes):
        original = marian(**changes)
        original.save_pretrained(tmp_path / "marian")
        conversion = convert_checkpoint(tmp_path / "marian", tmp_path / "ours")
        assert conversion.layout.name == "marian"
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
        same_function(original, converted, 39)
        config = converted.config
        assert config.share_encoder_decoder_embeddings == ("share_encoder_decoder_embeddings" not in changes)
        assert config.tie_word_embeddings == changes.get("tie_word_embeddings", True)
        assert (config.sinusoidal_layout, config.position_embedding_type) == ("concatenated", "sinusoidal")

    def test_a_pickle_that_holds_shared_weights_several_times(self, tmp_path):
        original = marian()
        original.save_pretrained(tmp_path / "marian")
        (tmp_path / "marian" / "model.safetensors").unlink()
        torch.save(original.state_dict(), tmp_path / "marian" / "pytorch_model.bin")
        conversion = convert_checkpoint(tmp_path / "marian", None, dry_run=True)
        same_function(original, conversion.model(), 39)
        assert conversion.config.position_embedding_type == "sinusoidal"

    def test_an_older_folder_keeps_settings_of_decoding_among_those_of_the_model(self, tmp_path):
        marian().save_pretrained(tmp_path / "marian")
        settings = json.loads((tmp_path / "marian" / "generation_config.json").read_text())
        (tmp_path / "marian" / "generation_config.json").unlink()
        file = tmp_path / "marian" / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
        original = MarianMTModel.from_pretrained(tmp_path / "marian")
        assert (original.generation_config.num_beams, original.generation_config.bad_words_ids) == (4, [[39]])
        convert_checkpoint(tmp_path / "marian", tmp_path / "ours")
        same_function(original, AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours"), 39)

    def test_what_its_config_leaves_out_is_as_in_its_code(self, tmp_path):
        original = marian(scale_embedding=False, activation_function="gelu")
        original.save_pretrained(tmp_path / "marian")
        file = tmp_path / "marian" / "config.json"
        config = json.loads(file.read_text())
        del config["scale_embedding"], config["activation_function"]
        file.write_text(json.dumps(config))
        conversion = convert_checkpoint(tmp_path / "marian", None, dry_run=True)
        same_function(original, conversion.model(), 39)
        assert not any("pad_token_id" in note for note in conversion.notes)
        alone = tmp_path / "model.safetensors"
        alone.write_bytes((tmp_path / "marian" / alone.name).read_bytes())
        for options in ({}, {"layout": "marian"}):
            with pytest.raises(ValueError, match=r"config\.json"):
                convert_checkpoint(alone, None, dry_run=True, **options)

    def test_a_file_comes_with_the_configuration_beside_it(self, tmp_path):
        original = marian()
        original.save_pretrained(tmp_path / "marian")
        (tmp_path / "link.safetensors").symlink_to(tmp_path / "marian" / "model.safetensors")
        expected = convert_checkpoint(tmp_path / "marian", None, dry_run=True)
        for file in (tmp_path / "marian" / "model.safetensors", tmp_path / "link.safetensors"):
            conversion = convert_checkpoint(file, None, dry_run=True)
            assert conversion.generation == expected.generation and conversion.generation["num_beams"] == 4
            same_function(original, conversion.model(), 39)

    def test_shared_embeddings_that_no_side_has(self, tmp_path):
        original = marian()
        original.save_pretrained(tmp_path / "marian")
        file = tmp_path / "marian" / "model.safetensors"
        weights = load_file(file)
        shared = weights["model.shared.weight"]
        weights["model.encoder.embed_tokens.weight"], weights["model.decoder.embed_tokens.weight"] = (
            shared + 1,
            shared * 2,
        )
        save_file(weights, file, metadata={"format": "pt"})
        with pytest.raises(ValueError, match=r"1 unexpected: model\.shared\.weight"):
            convert_checkpoint(tmp_path / "marian", None, dry_run=True)

    def test_a_projection_that_is_stored_is_not_replaced_by_the_embeddings(self, tmp_path):
        marian().save_pretrained(tmp_path / "marian")
        file = tmp_path / "marian" / "model.safetensors"
        weights = load_file(file)
        weights["lm_head.weight"] = torch.randn_like(weights["model.shared.weight"])
        save_file(weights, file, metadata={"format": "pt"})
        original = MarianMTModel.from_pretrained(tmp_path / "marian").eval()
        assert torch.equal(original.lm_head.weight, weights["lm_head.weight"])
        same_function(original, convert_checkpoint(tmp_path / "marian", None, dry_run=True).model(), 39)

    def test_fields_of_the_user_come_first(self, tmp_path):
        marian().save_pretrained(tmp_path / "marian")
        given = {"eos_token_id": 7, "decoder_start_token_id": 5, "pad_token_id": 3}
        settings = convert_checkpoint(tmp_path / "marian", None, dry_run=True, **given).model().generation_config
        assert {name: getattr(settings, name) for name in given} == given

    def test_settings_that_only_loading_lets_pass(self, tmp_path):
        original = marian()
        original.save_pretrained(tmp_path / "marian")
        file = tmp_path / "marian" / "generation_config.json"
        found = {**json.loads(file.read_text()), "num_beams": 1, "early_stopping": True, "temperature": 0.7}
        file.write_text(json.dumps(found))
        conversion = convert_checkpoint(tmp_path / "marian", tmp_path / "ours")
        assert any("temperature, early_stopping, length_penalty" in note for note in conversion.notes)
        assert (tmp_path / "ours" / "generation_config.json").is_file()

    def test_missing_positions_are_no_zeros(self, tmp_path):
        marian().save_pretrained(tmp_path / "marian")
        with pytest.raises(ValueError, match="2 missing: .*embed_positions.weight"):
            convert_checkpoint(tmp_path / "marian", None, dry_run=True, position_embedding_type="learned")

    @pytest.mark.parametrize("name", ["tokenizer_config.json", "source.spm"])
    def test_a_damaged_tokenizer(self, tmp_path, name):
        pytest.importorskip("sentencepiece", reason="Marian's tokenizer needs sentencepiece")
        marian().save_pretrained(tmp_path / "marian")
        (tmp_path / "marian" / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
        (tmp_path / "marian" / name).write_text("[]")
        with pytest.raises(ValueError, match="the tokenizer in .* cannot be loaded"):
            convert_checkpoint(tmp_path / "marian", tmp_path / "ours")
        assert not (tmp_path / "ours").exists()

    def test_the_tokenizer_comes_along(self, tmp_path):
        sentencepiece = pytest.importorskip("sentencepiece", reason="Marian's tokenizer needs sentencepiece")
        folder = tmp_path / "marian"
        folder.mkdir()
        for side in ("source", "target"):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(WORDS * 20), model_prefix=str(folder / side), vocab_size=30,
                hard_vocab_limit=False, minloglevel=9,
            )  # fmt: skip  # one call
            (folder / f"{side}.model").rename(folder / f"{side}.spm")
        pieces = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
        tokens = ["</s>", "<unk>", *(pieces.id_to_piece(n) for n in range(3, len(pieces))), "<pad>"]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        tokenizer = MarianTokenizer(
            source_spm=str(folder / "source.spm"), target_spm=str(folder / "target.spm"),
            vocab=str(folder / "vocab.json"), source_lang="en", target_lang="de",
        )  # fmt: skip  # one call
        padding = vocabulary["<pad>"]
        original = marian(vocab_size=len(tokens), pad_token_id=padding, decoder_start_token_id=padding)
        original.generation_config.bad_words_ids = [[padding]]
        original.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        convert_checkpoint(folder, tmp_path / "ours")
        ours = AutoTokenizer.from_pretrained(tmp_path / "ours")
        assert type(ours).__name__ == "MarianTokenizer"
        source = tokenizer(WORDS, return_tensors="pt", padding=True)
        assert torch.equal(ours(WORDS, return_tensors="pt", padding=True)["input_ids"], source["input_ids"])
        assert ours(text_target=WORDS)["input_ids"] == tokenizer(text_target=WORDS)["input_ids"]
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
        translations = ours.batch_decode(converted.generate(**source), skip_special_tokens=True)
        assert translations == tokenizer.batch_decode(original.generate(**source), skip_special_tokens=True)

    def test_goes_on_to_ctranslate2(self, tmp_path):
        pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")
        original = marian(forced_eos_token_id=0)
        # Marian learns that padding never comes; its settings bar it all the same.
        original.final_logits_bias[0, 39] = -30
        original.generation_config.update(early_stopping=True)
        original.save_pretrained(tmp_path / "marian")
        convert_checkpoint(tmp_path / "marian", tmp_path / "ours")
        exported = CTranslate2Model(export_model(tmp_path / "ours", "ctranslate2", tmp_path / "exported"))
        source, _ = batch(padding=39)
        for options in ({}, {"num_beams": 1}):
            expected, found = original.generate(**source, **options), exported.generate(**source, **options)
            for own, other in zip(found.tolist(), expected.tolist(), strict=True):
                # The end is forced upon an output that reaches the bound; here it just stops.
                length = next((n for n, token in enumerate(other) if token == 0), len(other))
                assert own[:length] == other[:length] and not set(own[length:]) - {0, 39}

    def test_other_models_with_its_keys_are_not_taken_for_it(self, tmp_path):
        original = marian()
        original.save_pretrained(tmp_path / "bart")
        config = json.loads((tmp_path / "bart" / "config.json").read_text())
        (tmp_path / "bart" / "config.json").write_text(json.dumps({**config, "model_type": "bart"}))
        with pytest.raises(ValueError, match="keys are those of marian, but its config.json says 'bart'"):
            convert_checkpoint(tmp_path / "bart", tmp_path / "ours")
        assert not (tmp_path / "ours").exists()


class TestFSMT:
    @pytest.mark.parametrize(
        "changes", [{}, {"tgt_vocab_size": 50, "tie_word_embeddings": True}], ids=["apart", "tied"]
    )
    def test_computes_and_decodes_the_same(self, tmp_path, changes):
        original = fsmt(**changes)
        original.save_pretrained(tmp_path / "fsmt")
        conversion = convert_checkpoint(tmp_path / "fsmt", tmp_path / "ours")
        assert conversion.layout.name == "fsmt"
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
        same_function(original, converted, 1)
        assert converted.generation_config.num_beams == 5
        assert converted.config.max_position_embeddings == 64

    def test_positions_that_no_file_holds_are_computed(self, tmp_path):
        original = fsmt()
        original.save_pretrained(tmp_path / "fsmt")
        file = tmp_path / "fsmt" / "model.safetensors"
        save_file({k: v for k, v in load_file(file).items() if "embed_positions" not in k}, file, {"format": "pt"})
        same_function(original, convert_checkpoint(tmp_path / "fsmt", None, dry_run=True).model(), 1)

    def test_the_tokenizer_comes_along(self, tmp_path):
        pytest.importorskip("sacremoses", reason="FSMT's tokenizer needs sacremoses")
        letters = sorted(set("".join(WORDS)) - {" "})
        tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(f"{letter}</w>" for letter in letters), "<madeup>"]
        for name in ("vocab-src.json", "vocab-tgt.json"):
            (tmp_path / name).write_text(json.dumps({token: n for n, token in enumerate(tokens)}))
        (tmp_path / "merges.txt").write_text("#version: 0.2\nd o 10\n")
        tokenizer = FSMTTokenizer(
            langs=["en", "de"], src_vocab_file=str(tmp_path / "vocab-src.json"),
            tgt_vocab_file=str(tmp_path / "vocab-tgt.json"), merges_file=str(tmp_path / "merges.txt"),
        )  # fmt: skip  # one call
        original = fsmt(src_vocab_size=len(tokens), tgt_vocab_size=len(tokens))
        original.save_pretrained(tmp_path / "fsmt")
        tokenizer.save_pretrained(tmp_path / "fsmt")
        convert_checkpoint(tmp_path / "fsmt", tmp_path / "ours")
        ours = AutoTokenizer.from_pretrained(tmp_path / "ours")
        source = tokenizer(WORDS, return_tensors="pt", padding=True, return_token_type_ids=False)
        assert torch.equal(ours(WORDS, return_tensors="pt", padding=True)["input_ids"], source["input_ids"])
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
        translations = ours.batch_decode(converted.generate(**source), skip_special_tokens=True)
        assert translations == tokenizer.batch_decode(original.generate(**source), skip_special_tokens=True)


def as_fairseq(original):
    """The weights of FSMT or M2M-100, which transformers converted from fairseq, under fairseq's keys again."""
    weights = {
        name.removeprefix("model."): tensor.clone()
        for name, tensor in original.state_dict().items()
        if "embed_positions" not in name and not name.startswith("model.shared")
    }
    if "lm_head.weight" in weights:
        weights["decoder.output_projection.weight"] = weights.pop("lm_head.weight")
    for side in ("encoder", "decoder"):
        weights[f"{side}.version"] = torch.tensor([3.0])
        weights[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    return weights


ARGUMENTS = {
    "arch": "transformer", "encoder_attention_heads": 4, "decoder_attention_heads": 2, "activation_fn": "relu",
    "max_source_positions": 64, "max_target_positions": 64, "dropout": 0.3, "no_scale_embedding": False,
    "share_all_embeddings": False, "encoder_normalize_before": False, "decoder_normalize_before": False,
}  # fmt: skip  # as above


def nested(arguments):
    """Arguments as fairseq's dataclasses hold them: those of one side of the model under its name."""
    flat = {name: value for name, value in arguments.items() if not name.startswith(("encoder_", "decoder_"))}
    for side in ("encoder", "decoder"):
        flat[side] = {k.removeprefix(f"{side}_"): v for k, v in arguments.items() if k.startswith(f"{side}_")}
    return flat


def fairseq_content(weights, how="args", **changes):
    """What a checkpoint of fairseq holds, with its arguments where its releases put them, or lost."""
    arguments = {**ARGUMENTS, **changes}
    others = {"_name": None, "common": {"seed": 1}, "task": Namespace(eval_bleu=True)}
    kept = {
        "args": {"args": Namespace(**arguments)},
        "cfg": {"args": None, "cfg": {**others, "model": Namespace(**arguments)}},
        "nested": {"args": None, "cfg": {**others, "model": nested(arguments)}},
        "none": {"args": None},
    }[how]
    extra = {
        "epoch": 3, "train_iterator": {"epoch": 3, "shuffle": True}, "val_loss": np.float64(2.5),
        "best": np.float32(27.5), "metrics": [(0, "_bleu_counts", "SumMeter", {"sum": np.array([9, 4, 2, 1])})],
    }  # fmt: skip  # as above
    return {**kept, "model": weights, "optimizer_history": [{"num_updates": 7}], "extra_state": extra}


def save_fairseq(file, weights, how="args", **changes):
    torch.save(fairseq_content(weights, how, **changes), file)
    return file


# What arguments would tell, where there are none.
LOST = {
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "norm_position": "post", "activation_function": "relu",
    "scale_embedding": True,
}  # fmt: skip  # as above


def with_ends(original):
    """Weights of fairseq by which the end is likely, also as the first token."""
    weights = as_fairseq(original)
    states = weights["decoder.layers.2.final_layer_norm.bias"]
    weights["decoder.output_projection.weight"][2] += 3 * states / (states @ states)
    return weights


@torch.no_grad()
def fairseq_search(model, source, beams=5, longest=9, pad=1, end=2):
    """Return the tokens that fairseq's generator finds for one sentence, or None where it goes on beyond `longest`.

    Written after what it does: at each step the best 2k continuations of the k beams are looked at. Of these, an end
    among the first k finishes a hypothesis, whose score is the mean log-probability of its tokens; the best k that do
    not end go on. The search is over with the k-th finished hypothesis. The first token is no end.
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
    """Return for how many of these sources and tokens `generate()` finds the same."""
    found = [converted.generate(source, **options)[0, 1:].tolist() for source, _ in expected]
    return sum(ours == tokens for ours, (_, tokens) in zip(found, expected, strict=True))


class TestFairseq:
    @pytest.mark.parametrize("how", ["args", "cfg", "nested", "none"])
    def test_post_norm_computes_the_same(self, tmp_path, how):
        original = fsmt()
        file = save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(original), how)
        given = LOST if how == "none" else {}
        conversion = convert_checkpoint(file, tmp_path / "ours", **given)
        assert conversion.layout.name == "fairseq"
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
        converted.generation_config = original.generation_config
        same_function(original, converted, 1)
        assert converted.config.dropout == (0.1 if how == "none" else 0.3)

    def test_pre_norm_computes_the_same(self, tmp_path):
        torch.manual_seed(0)
        config = M2M100Config(vocab_size=50, max_position_embeddings=64, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
                              activation_function="relu", **SIZES)  # fmt: skip  # one call
        original = shaken(M2M100ForConditionalGeneration(config))
        original.generation_config.max_length = 14
        before = {"encoder_normalize_before": True, "decoder_normalize_before": True}
        file = save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(original), **before)
        conversion = convert_checkpoint(file, None, dry_run=True)
        assert conversion.config.norm_position == "pre"
        converted = conversion.model()
        converted.generation_config = original.generation_config
        same_function(original, converted, 1)

    @pytest.mark.parametrize("how", ["args", "cfg", "nested"])
    @pytest.mark.parametrize("where", ["file", "folder", "beside config.json", "shards", "state dict"])
    def test_arguments_are_read_wherever_they_are(self, tmp_path, where, how):
        original = fsmt(activation_function="gelu", scale_embedding=False)
        weights, told = as_fairseq(original), {"activation_fn": "gelu", "no_scale_embedding": True}
        file = save_fairseq(tmp_path / "checkpoint_best.pt", weights, how, **told)
        source = {"file": file, "state dict": fairseq_content(weights, how, **told)}.get(where, tmp_path)
        if where == "beside config.json":
            (tmp_path / "config.json").write_text(json.dumps({"architectures": ["transformer"], "dropout": 0.3}))
        if where == "shards":
            names, places = list(weights), {}
            for shard in (0, 1):
                part = {name: weights[name] for name in names[shard::2]}
                save_fairseq(tmp_path / f"pytorch_model-{shard}.bin", part, how, **told)
                places |= dict.fromkeys(part, f"pytorch_model-{shard}.bin")
            (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
        converted = convert_checkpoint(source, None, dry_run=True).model()
        converted.generation_config = original.generation_config
        same_function(original, converted, 1)

    def test_arguments_that_contradict_each_other(self, tmp_path):
        save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(fsmt()))
        (tmp_path / "config.json").write_text(json.dumps({"activation_fn": "gelu"}))
        with pytest.raises(ValueError, match=r"best\.pt says activation_fn='relu', but another place 'gelu'"):
            convert_checkpoint(tmp_path, None, dry_run=True)

    def test_what_lost_arguments_told_is_asked_for(self, tmp_path):
        file = save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(fsmt()), "none")
        with pytest.raises(ValueError, match="do not determine how .* `norm_position=post.* `activation_function=re"):
            convert_checkpoint(file, None, dry_run=True)
        with pytest.raises(ValueError, match=r"code: `scale_embedding=true\|false`$"):
            given = {name: value for name, value in LOST.items() if name != "scale_embedding"}
            convert_checkpoint(file, None, dry_run=True, **given)
        content = fairseq_content(as_fairseq(fsmt()), "none")
        for other in ({"config": {"lr": 1}}, {"seed": 1}, {"cfg": {"common": {"seed": 1}}}):
            with pytest.raises(ValueError, match=r"code: `norm_position=post\|pre` `activation_function=.* `scale_"):
                convert_checkpoint({**content, **other}, None, dry_run=True, encoder_attention_heads=2)
        # Nor that the first positions are those of padding: another model may have these names.
        learned = {f"{side}.embed_positions.weight": torch.randn(66, 16) for side in ("encoder", "decoder")}
        content["model"] |= learned
        with pytest.raises(ValueError, match="fairseq do not determine how .* code: `first_position=0`$"):
            convert_checkpoint(content, None, dry_run=True, **LOST)
        config = convert_checkpoint(content, None, dry_run=True, first_position=2, **LOST).config
        assert config.max_position_embeddings == 64

    def test_an_early_release_had_no_choice_of_activation_and_scale(self):
        content = fairseq_content(as_fairseq(fsmt()))
        del content["args"].activation_fn, content["args"].no_scale_embedding
        config = convert_checkpoint(content, None, dry_run=True).config
        assert (config.activation_function, config.scale_embedding) == ("relu", True)

    def test_a_text_is_no_switch(self):
        for name in ("encoder_normalize_before", "no_scale_embedding"):
            with pytest.raises(ValueError, match=f"the setting {name} beside the weights is 'False'"):
                convert_checkpoint(fairseq_content(as_fairseq(fsmt()), **{name: "False"}), None, dry_run=True)

    def test_copies_for_its_fast_path_are_no_weights(self, tmp_path):
        weights = as_fairseq(fsmt())
        expected = convert_checkpoint(save_fairseq(tmp_path / "plain.pt", weights), None, dry_run=True).weights
        for name, shape in {"in_proj": (48, 16), "out_proj": (16, 16), "fc1": (32, 16), "fc2": (16, 32)}.items():
            for layer in (0, 1):
                weights[f"encoder.layers.{layer}.{name}_weight"] = torch.zeros(shape)
                weights[f"encoder.layers.{layer}.{name}_bias"] = torch.zeros(shape[0])
        found = convert_checkpoint(save_fairseq(tmp_path / "copies.pt", weights), None, dry_run=True).weights
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        weights["decoder.embed_out"] = torch.ones(40, 16)
        with pytest.raises(ValueError, match="1 unexpected: decoder.embed_out"):
            convert_checkpoint(save_fairseq(tmp_path / "both.pt", weights), None, dry_run=True)

    def test_norms_before_the_sub_layers_without_one_at_the_end(self, tmp_path):
        arguments = {"encoder_normalize_before": True, "decoder_normalize_before": True}
        file = save_fairseq(tmp_path / "checkpoint_best.pt", as_fairseq(fsmt()), **arguments)
        config = convert_checkpoint(file, None, dry_run=True).config
        assert (config.norm_position, config.final_layer_norm) == ("pre", False)

    def test_what_early_releases_named_otherwise(self, tmp_path):
        original = fsmt()
        weights = as_fairseq(original)
        expected = convert_checkpoint(save_fairseq(tmp_path / "new.pt", weights), None, dry_run=True).weights
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
        found = convert_checkpoint(save_fairseq(tmp_path / "old.pt", weights), None, dry_run=True).weights
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            close(found[name], tensor, 0.0)

    def test_learned_positions_begin_after_padding(self, tmp_path):
        weights = as_fairseq(fsmt())
        for side in ("encoder", "decoder"):
            weights[f"{side}.embed_positions.weight"] = torch.randn(66, 16)
        conversion = convert_checkpoint(save_fairseq(tmp_path / "learned.pt", weights), None, dry_run=True)
        assert (conversion.config.position_embedding_type, conversion.config.max_position_embeddings) == (
            "learned",
            64,
        )
        table = conversion.weights["model.decoder.embed_positions.weight"]
        close(table, weights["decoder.embed_positions.weight"][2:], 0.0)
        shorter = save_fairseq(tmp_path / "shorter.pt", weights, max_source_positions=66)
        with pytest.raises(ValueError, match="encoder.embed_positions.weight has 66 rows, but .* 66 tokens, after 2"):
            convert_checkpoint(shorter, None, dry_run=True)
        del weights["decoder.embed_positions.weight"]
        lost = save_fairseq(tmp_path / "lost.pt", weights, decoder_learned_pos=True)
        with pytest.raises(ValueError, match="trained with learned positions, but there is no decoder.embed"):
            convert_checkpoint(lost, None, dry_run=True)

    def test_translations_are_those_of_its_search(self, tmp_path):
        """Finished hypotheses are counted, not compared, and none is empty: otherwise other translations come out."""
        convert_checkpoint(save_fairseq(tmp_path / "checkpoint_best.pt", with_ends(fsmt())), tmp_path / "ours")
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
        settings = converted.generation_config
        assert (settings.num_beams, settings.early_stopping, settings.length_penalty) == (5, True, 1.0)
        settings.max_length = 11
        sources = [torch.randint(4, 38, (1, n)) for n in range(1, 8) for _ in range(3)]
        searched = [(source, fairseq_search(converted, source)) for source in sources]
        # What goes on to a bound, which fairseq has at 200 tokens, scores the end that is forced upon it otherwise.
        expected = [(source, tokens) for source, tokens in searched if tokens is not None]
        assert len(expected) > 5 and len({len(tokens) for _, tokens in expected}) > 1
        assert searched_alike(converted, expected) == len(expected)
        assert searched_alike(converted, expected, early_stopping=False) < len(expected)
        assert searched_alike(converted, expected, min_new_tokens=None) < len(expected)

    def test_its_search_goes_on_to_ctranslate2(self, tmp_path):
        pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")
        convert_checkpoint(save_fairseq(tmp_path / "checkpoint_best.pt", with_ends(fsmt())), tmp_path / "ours")
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
        exported = CTranslate2Model(export_model(tmp_path / "ours", "ctranslate2", tmp_path / "exported"))
        source = {"input_ids": torch.randint(4, 38, (20, 6)), "attention_mask": torch.ones(20, 6, dtype=torch.long)}
        options = {"num_beams": 1, "max_length": 14}
        expected, found = converted.generate(**source, **options), exported.generate(**source, **options)
        for own, other in zip(found[:, 1:].tolist(), expected[:, 1:].tolist(), strict=True):
            # The end is forced upon an output that reaches the bound; here it just stops.
            length = other.index(2)
            assert own[:length] == other[:length]
        assert (converted.generate(**source, **options, min_new_tokens=None)[:, 1] == 2).any(), "none would be empty"

    def test_its_dictionary_becomes_the_tokenizer(self, tmp_path):
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

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"encoder.layernorm_embedding.weight": torch.ones(16)}, "unexpected: encoder.layernorm_embedding.weight"),
            ({"encoder.layer_norm.weight": torch.ones(16)}, "normalize at different places"),
            ({"encoder_normalize_before": True}, "normalize at different places"),
            (
                {"cross_self_attention": True},
                "--cross-self-attention, which cannot be expressed",
            ),
        ],
        ids=["norm of embeddings", "one side pre-norm", "one side pre-norm by its arguments", "other attention"],
    )
    def test_what_it_cannot_express_is_named(self, tmp_path, change, message):
        weights = {name: value for name, value in change.items() if "." in name}
        arguments = {name: value for name, value in change.items() if "." not in name}
        file = save_fairseq(tmp_path / "checkpoint_best.pt", {**as_fairseq(fsmt()), **weights}, **arguments)
        with pytest.raises(ValueError, match=message):
            convert_checkpoint(file, tmp_path / "ours")
        assert not (tmp_path / "ours").exists()


def test_positions_of_fairseq_are_those_of_fsmt():
    module = fsmt().model.encoder.embed_positions
    close(fairseq_sinusoids(64, 16, 1), module.get_embedding(66, 16, 1)[2:])


def test_a_name_on_the_hub_is_fetched_or_refused_in_one_line():
    with pytest.raises(ValueError, match="nobody/nothing is no folder here, and cannot be fetched") as caught:
        convert_checkpoint("nobody/nothing", None, dry_run=True)
    assert "\n" not in str(caught.value)
