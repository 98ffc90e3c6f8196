"""Original classes and files of OpenNMT-py, Eole, Joey NMT, Sockeye and x-transformers, where installed."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from conversions import ENDS, TOLERANCE, convert, converted_logits
from toolkit_files import (
    BLANK,
    EOLE_VOCABULARY,
    JOEY_CONFIG,
    PAD,
    SOCKEYE_POST,
    SOCKEYE_STACK,
    joey_config,
    source_words,
    target_words,
    write_joey,
)

pytestmark = [
    pytest.mark.slow,
    # The toolkits warn about missing extras and use deprecated features of their dependencies.
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}")
        for kind in ("DeprecationWarning", "FutureWarning", "SyntaxWarning", "UserWarning")
    ),
    pytest.mark.filterwarnings("ignore:Could not import:RuntimeWarning"),
]
LENGTHS = torch.tensor([6, 4, 2])
MASK = torch.arange(6) < LENGTHS[:, None]


def original(name):
    return pytest.importorskip(name, reason="needs a toolkit that is no dependency of ours", exc_type=ImportError)


def drawn(model):
    """Draw all weights at random, so that none keeps its initial value."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(1.0 if "norm" in name and "weight" in name else 0.0, 0.3)
    return model.eval()


def ids(length):
    return torch.randint(4, 13, (3, length))


def check(conversion, tied, source, target, mask, expected):
    assert conversion.config.share_encoder_decoder_embeddings == conversion.config.tie_word_embeddings == tied
    found = converted_logits(conversion.model(), source, target, mask)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert expected.std() > 0.05


@pytest.mark.parametrize(
    "options",
    [[], ["--add_qkvbias"], ["--pos_ffn_activation_fn", "gelu", "--share_embeddings", "--share_decoder_embeddings"]],
    ids=["defaults", "biases", "gelu, tied"],
)
@torch.no_grad()
def test_opennmt(tmp_path, options):
    builder = original("onmt.model_builder")
    from onmt import opts
    from onmt.inputters.inputter import dict_to_vocabs, vocabs_to_dict
    from onmt.utils.parse import ArgumentParser

    tied = "--share_embeddings" in options
    words = {"src": target_words(BLANK) if tied else source_words(BLANK), "tgt": target_words(BLANK)}
    vocabularies = dict_to_vocabs({**words, "data_task": "seq2seq"})
    parser = ArgumentParser()
    opts.train_opts(parser)
    sizes = {"layers": 2, "hidden_size": 16, "word_vec_size": 16, "transformer_ff": 32, "heads": 4}
    arguments = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    kinds = ["--encoder_type", "transformer", "--decoder_type", "transformer", "--position_encoding"]
    opt = parser.parse_args(["--data", "{}", "--src_vocab", "none", *arguments, *kinds, "--add_ffnbias", *options])
    ArgumentParser.update_model_opts(opt)
    torch.manual_seed(0)
    model = drawn(builder.build_base_model(opt, vocabularies))
    weights = {name: tensor for name, tensor in model.state_dict().items() if "generator" not in name}
    content = {"model": weights, "generator": model.generator.state_dict(), "vocab": vocabs_to_dict(vocabularies)}
    torch.save({**content, "opt": opt, "optim": {}}, tmp_path / "model_step_1.pt")
    source, target = ids(6).masked_fill(~MASK, 1), ids(5)
    # The last token of a target is only predicted.
    states, _ = model(source[..., None], torch.nn.functional.pad(target, (0, 1))[..., None], LENGTHS)
    check(convert(tmp_path / "model_step_1.pt"), tied, source, target, MASK, model.generator(states))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_qkvbias": True, "add_ffnbias": True, "norm_eps": 1e-6},
        {"mlp_activation_fn": "gelu-tanh", "share_embeddings": True, "share_decoder_embeddings": True},
        {"position_encoding_type": "Learned"},
    ],
    ids=["defaults", "biases", "gelu, tied", "learned positions"],
)
@torch.no_grad()
def test_eole(tmp_path, options):
    package = original("eole.models.model")
    from eole.config import recursive_model_fields_set
    from eole.config.models import TransformerModelConfig
    from eole.inputters.inputter import dict_to_vocabs, vocabs_to_dict

    options = dict(options)
    kind = options.pop("position_encoding_type", "SinusoidalInterleaved")
    config = TransformerModelConfig(
        architecture="transformer", hidden_size=16, layers=2, heads=4, transformer_ff=32, **options,
        embeddings={"word_vec_size": 16, "position_encoding_type": kind, "n_positions": 30},
    )  # fmt: skip  # one call
    tied = "share_embeddings" in options
    vocabularies = dict_to_vocabs({**EOLE_VOCABULARY, **({"src": target_words(BLANK)} if tied else {})})
    torch.manual_seed(0)
    model = package.EncoderDecoderModel.build_blocks(config, vocabularies)
    model.build_generator(config, None, vocabularies)
    drawn(model)
    left_out = {"tgt_emb.embeddings.weight", "generator.weight"} if tied else set()
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in left_out}
    save_file(weights, tmp_path / "model.00.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model": recursive_model_fields_set(config)}))
    (tmp_path / "vocab.json").write_text(json.dumps(vocabs_to_dict(vocabularies)))
    source, target = ids(6).masked_fill(~MASK, 1), ids(5)
    # The last token of a target is only predicted.
    states = model(source, torch.nn.functional.pad(target, (0, 1)), LENGTHS).dec_out
    check(convert(tmp_path), tied, source, target, MASK, model.generator(states))


@pytest.mark.parametrize(
    "config",
    [
        joey_config(),
        joey_config(layer_norm="post"),
        joey_config(activation="gelu", embeddings={"embedding_dim": 8, "scale": False}),
        {**JOEY_CONFIG, "model": {**JOEY_CONFIG["model"], "tied_embeddings": True, "tied_softmax": True}},
    ],
    ids=["pre", "post", "gelu, unscaled", "tied"],
)
@torch.no_grad()
def test_joeynmt(tmp_path, config):
    joey = original("joeynmt.model")
    from joeynmt.vocabulary import Vocabulary

    tied = config["model"].get("tied_embeddings", False)
    roles = ("unk", "pad", "bos", "eos")
    special = {f"{role}_token": token for role, token in zip(roles, PAD, strict=True)}
    numbers = {f"{role}_id": number for number, role in enumerate(roles)}
    symbols = SimpleNamespace(**special, **numbers, sep_token=None, sep_id=None, lang_tags=[])
    target_side = target_words(PAD)
    vocabularies = [
        Vocabulary(words[4:], symbols) for words in (target_side if tied else source_words(PAD), target_side)
    ]
    torch.manual_seed(0)
    model = drawn(joey.build_model(config["model"], *vocabularies))
    file = write_joey(tmp_path, model, config)
    for side, vocabulary in zip(("src", "trg"), vocabularies, strict=True):
        vocabulary.to_file(tmp_path / f"{side}_vocab.txt")
    conversion, texts = convert(file), ["the cat sleeps", "a zebra runs and runs"]
    expected, lengths, _ = vocabularies[0].sentences_to_ids([text.split() for text in texts], bos=False, eos=True)
    encoded = conversion.tokenizer(texts, padding=True)
    assert encoded["input_ids"] == expected
    source, target = torch.tensor(expected), torch.randint(4, 13, (2, 5))
    mask = torch.tensor(encoded["attention_mask"]).bool()
    assert mask.sum(1).tolist() == lengths
    seen = torch.ones(2, 1, 5, dtype=torch.bool)
    memory, _ = model.encoder(model.src_embed(source), None, mask[:, None])
    logits, *_ = model.decoder(model.trg_embed(target), memory, None, mask[:, None], None, None, seen)
    check(conversion, tied, source, target, mask, logits)


@pytest.mark.parametrize(
    ("settings", "tied"),
    [
        ({}, False),
        (SOCKEYE_POST, False),
        ({"act_type": "gelu"}, True),
        ({"positional_embedding_type": "learned"}, False),
    ],
    ids=["defaults", "post", "gelu, tied", "learned positions"],
)
@torch.no_grad()
def test_sockeye(tmp_path, settings, tied):
    package = original("sockeye.model")
    from sockeye.encoder import EmbeddingConfig
    from sockeye.transformer import TransformerConfig

    size = 17 if tied else 13
    config = package.ModelConfig(
        config_data=None, vocab_source_size=size, vocab_target_size=17,
        config_embed_source=EmbeddingConfig(vocab_size=size, num_embed=8, dropout=0.0),
        config_embed_target=EmbeddingConfig(vocab_size=17, num_embed=8, dropout=0.0),
        config_encoder=TransformerConfig(**{**SOCKEYE_STACK, **settings}),
        config_decoder=TransformerConfig(**{**SOCKEYE_STACK, **settings}),
        weight_tying_type="src_trg_softmax" if tied else "none", dtype="float32",
    )  # fmt: skip  # one call
    torch.manual_seed(0)
    model = drawn(package.SockeyeModel(config))
    model.save_config(str(tmp_path))
    model.save_parameters(str(tmp_path / "params.best"))
    source, target = ids(6), ids(5)
    both = torch.stack([LENGTHS, torch.zeros(3, dtype=torch.long)], 1)
    expected = model.eval()(source[..., None], both, target[..., None], None)["logits"]
    check(convert(tmp_path / "params.best"), tied, source, target, MASK, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pre_norm": False},
        {"pre_norm_has_final_norm": False},
        {"ff_swish": True, "ff_no_bias": True, "norm_add_unit_offset": False},
        {"attn_dim_head": 6},
        {"tie_token_emb": True},
    ],
    ids=lambda options: ", ".join(options) or "defaults",
)
@torch.no_grad()
def test_x_transformers(options):
    package = original("x_transformers")
    sizes = {"num_tokens": 13, "max_seq_len": 10, "depth": 2, "heads": 2, "attn_dim_head": 8}
    options = {**sizes, **options}
    tied = options.pop("tie_token_emb", False)
    arguments = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in options.items()}
    torch.manual_seed(0)
    model = package.XTransformer(dim=16, tie_token_emb=tied, **arguments).eval()
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    conversion = convert({"model": model.state_dict(), "config": arguments}, **ENDS)
    assert conversion.config.share_encoder_decoder_embeddings == tied
    source, target = torch.randint(0, 13, (3, 6)), torch.randint(0, 13, (3, 5))
    memory = model.encoder(source, mask=MASK, return_embeddings=True)
    expected = model.decoder.net(target, context=memory, context_mask=MASK)
    found = converted_logits(conversion.model(), source, target, MASK)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert expected.std() > 0.05
