"""Conversion of Sockeye's model folders: keys and values by heads, config, vocabularies, and what is refused."""

import json

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from conversions import TOLERANCE, assert_same_logits, convert, converted_logits, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from source_models import sockeye, sockeye_file

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["a", "cat", "dog", "sleeps", "runs", "the", "small", "big", "and"]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SOURCE, TARGET = [*SPECIAL, *WORDS], [*SPECIAL, *(word.upper() for word in WORDS), "!", "?", ",", "."]
STACK = {
    "model_size": 8, "attention_heads": 2, "feed_forward_num_hidden": 16, "act_type": "relu", "num_layers": 2,
    "dropout_attention": 0.2, "dropout_act": 0.0, "dropout_prepost": 0.3, "positional_embedding_type": "fixed",
    "preprocess_sequence": "n", "postprocess_sequence": "dr", "max_seq_len_source": 40, "max_seq_len_target": 40,
    "depth_key_value": 8, "use_lhuc": False, "use_glu": False, "decoder_type": "transformer",
}  # fmt: skip  # one setting a line would fill the screen
POST = {"preprocess_sequence": "", "postprocess_sequence": "drn"}


def model_folder(folder, model=None, side="both", **settings):
    """Write what Sockeye writes, and return the file of parameters; `settings` change those of a stack or both."""
    stacks = {stack: {**STACK, **(settings if side in ("both", stack) else {})} for stack in ("encoder", "decoder")}
    # Objects under local tags, as Sockeye writes them.
    lines = ["!ModelConfig", "config_data: !DataConfig", "  max_lengths: !!python/tuple [40, 40]"]
    for stack, values in stacks.items():
        text = yaml.safe_dump(values)
        lines += [f"config_{stack}: !TransformerConfig", *(f"  {line}" for line in text.splitlines())]
    (folder / "config").write_text("\n".join(lines))
    for name, tokens in (("src", SOURCE), ("trg", TARGET)):
        (folder / f"vocab.{name}.0.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    torch.save(sockeye_file(model or sockeye()), folder / "params.best")
    return folder / "params.best"


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_folder_says_all(tmp_path, norm):
    torch.manual_seed(0)
    model = sockeye(pre=norm == "pre", activation=torch.nn.functional.silu).eval()
    settings = {"act_type": "swish1", **(POST if norm == "post" else {})}
    conversion = convert(model_folder(tmp_path, model, **settings))
    assert conversion.layout.name == "sockeye"
    config = conversion.config
    assert (config.norm_position, config.final_layer_norm, config.layer_norm_eps) == (norm, norm == "pre", 1e-6)
    assert (config.sinusoidal_layout, config.dropout, config.attention_dropout) == ("concatenated", 0.3, 0.2)
    assert_same_logits(model, conversion.model())


def test_vocabularies_become_the_tokenizer(tmp_path):
    convert_checkpoint(model_folder(tmp_path), tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("the zebra sleeps")["input_ids"] == [9, 1, 7, 3]
    assert tokenizer(text_target="CAT !")["input_ids"] == [5, 13, 3]


def test_without_its_configuration(tmp_path):
    file = model_folder(tmp_path)
    (tmp_path / "config").unlink()
    refused("no `config` beside the weights says how many heads the encoder has; put", file)


@pytest.mark.parametrize(
    ("side", "settings", "message"),
    [
        ("decoder", {"decoder_type": "ssru_transformer"}, "config_decoder_decoder_type: ssru_transformer, which our"),
        ("both", {"postprocess_sequence": "drn"}, "the model has the steps .'n', 'drn'. before and after"),
        ("both", {"act_type": "tanhs"}, "the activation 'tanhs'"),
        ("decoder", {"act_type": "gelu"}, "differ in act_type .'relu' and 'gelu'."),
        ("both", {"attention_heads": 3}, "has 24 rows, which `config` divides among 3 heads"),
    ],
    ids=["ssru", "norms twice", "activation", "activations", "heads"],
)
def test_settings_that_cannot_be_expressed(tmp_path, side, settings, message):
    refused(message, model_folder(tmp_path, side=side, **settings))


def test_an_auxiliary_task_is_no_part_of_ours(tmp_path):
    content = {**sockeye_file(sockeye()), "length_ratio.layers.0.weight": torch.ones(1, 8)}
    file = model_folder(tmp_path)
    torch.save(content, file)
    refused(r"1 unexpected: length_ratio\.layers\.0\.weight", file)


@pytest.mark.slow
# Sockeye uses what newer releases of Python and PyTorch deprecate.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("settings", "tied"),
    [({}, False), (POST, False), ({"act_type": "gelu"}, True), ({"positional_embedding_type": "learned"}, False)],
    ids=["defaults", "post", "gelu, tied", "learned positions"],
)
def test_the_original(tmp_path, settings, tied):
    """Sockeye's own classes and files, where it is installed."""
    reason = "needs Sockeye, which is no dependency of ours"
    package = pytest.importorskip("sockeye.model", reason=reason, exc_type=ImportError)
    from sockeye.encoder import EmbeddingConfig
    from sockeye.transformer import TransformerConfig

    size = 17 if tied else 13
    config = package.ModelConfig(
        config_data=None, vocab_source_size=size, vocab_target_size=17,
        config_embed_source=EmbeddingConfig(vocab_size=size, num_embed=8, dropout=0.0),
        config_embed_target=EmbeddingConfig(vocab_size=17, num_embed=8, dropout=0.0),
        config_encoder=TransformerConfig(**{**STACK, **settings}),
        config_decoder=TransformerConfig(**{**STACK, **settings}),
        weight_tying_type="src_trg_softmax" if tied else "none", dtype="float32",
    )  # fmt: skip  # one call
    torch.manual_seed(0)
    model = package.SockeyeModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(1.0 if "norm" in name and "weight" in name else 0.0, 0.3)
    model.save_config(str(tmp_path))
    model.save_parameters(str(tmp_path / "params.best"))
    conversion = convert(tmp_path / "params.best")
    assert conversion.config.share_encoder_decoder_embeddings == conversion.config.tie_word_embeddings == tied
    source, target = torch.randint(4, 13, (3, 6)), torch.randint(4, 13, (3, 5))
    lengths = torch.tensor([6, 4, 2])
    mask = torch.arange(6) < lengths[:, None]
    with torch.no_grad():
        both = torch.stack([lengths, torch.zeros(3, dtype=torch.long)], 1)
        expected = model.eval()(source[..., None], both, target[..., None], None)["logits"]
    found = converted_logits(conversion.model(), source, target, mask)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert expected.std() > 0.05
