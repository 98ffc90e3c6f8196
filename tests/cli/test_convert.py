import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import source_models
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.conversion import LAYOUTS

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]


@pytest.fixture
def checkpoint(tmp_path):
    torch.save(source_models.TorchNN(norm_first=True).state_dict(), tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def test_converts(checkpoint, tmp_path, capsys):
    out = tmp_path / "out"
    config = ["--config", "encoder_attention_heads=2", "norm_position=pre", "dropout=0.3"]
    main(["convert", "--source", str(checkpoint), "--output_dir", str(out), *config])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{out}: model of layout torch-nn-transformer, ") and "no tokenizer" in printed
    config = AutoModelForSeq2SeqLM.from_pretrained(out).config
    assert (config.norm_position, config.dropout, config.decoder_attention_heads) == ("pre", 0.3, 2)
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors"
    ]  # fmt: skip  # one name a line would fill the screen


def test_options_may_be_given_piece_by_piece(checkpoint, refusal, capsys):
    """As when arguments suggested by a message are appended to the command."""
    arguments = ["convert", "--source", str(checkpoint), "--dry_run", "--config", "norm_position=pre"]
    main([*arguments, "--config", "encoder_attention_heads=2"])
    assert "config: norm_position='pre'" in capsys.readouterr().out
    renames = ["--rename", "src_tok_emb.=one.", "--rename", "one.=tgt_tok_emb."]
    assert "--rename one.=tgt_tok_emb.: no key begins with 'one.'" in refusal(*arguments, *renames)


def test_a_source_is_framed_as_the_notes_say(checkpoint, tmp_path, capsys):
    words = tmp_path / "words.txt"
    words.write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *map(str, range(9))]))
    options = ["--dry_run", "--encoder_only", "--config", "encoder_attention_heads=2"]
    main(["convert", "--source", str(checkpoint), "--source_vocabulary", str(words), *options])
    assert "a source is encoded as <s> ... </s>, as in the code of torch-nn-transformer" in capsys.readouterr().out


def test_dry_run_prints_the_mapping_and_writes_nothing(checkpoint, tmp_path, capsys):
    before = set(tmp_path.iterdir())
    main(["convert", "--source", str(checkpoint), "--dry_run", "--config", "encoder_attention_heads=2"])
    lines = capsys.readouterr().out.splitlines()
    line = "transformer.encoder.layers.1.self_attn.in_proj_weight 24x8 -> "
    assert line + "model.encoder.layers.1.self_attn.v_proj.weight 8x8, split in three" in lines
    assert "config: decoder_attention_heads=2" in lines and 'norm_position="post"' in lines[-1]
    assert "positional_encoding.pos_embedding 40x1x8 -> sinusoids 40x8, computed, not kept" in lines
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "code: --config encoder_attention_heads=8 decoder_attention_heads=8"),
        (("--config", "encoder_attention_heads"), "is not name=value"),
        (("--config", "layout=fairseq"), "--config layout is not a field of the configuration"),
        (("--config", "dropout=0.1", "--config", "dropout=0.2"), "--config dropout is given as both 0.1 and 0.2"),
        (("--config", "encoder_attention_heads=two"), "error: --config encoder_attention_heads is 'two'"),
        (("--layout", "marvin"), "--layout marvin is not one of"),
    ],
)
def test_mistakes_are_one_line(checkpoint, tmp_path, refusal, arguments, message):
    assert message in refusal("convert", "--source", checkpoint, "--output_dir", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


def test_no_output_folder(checkpoint, refusal):
    assert "--output_dir is missing" in refusal("convert", "--source", checkpoint)


def test_help_shows_an_example_of_each_layout(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["convert", "--help-all"])
    printed = capsys.readouterr()
    assert not stop.value.code and printed.err == ""
    for layout in LAYOUTS.values():
        assert layout.name in printed.out and layout.example and layout.example in printed.out


@pytest.mark.parametrize("option", ["--patched", "--repaired"])
def test_patched_has_its_old_spelling_too(tmp_path, capsys, refusal, option):
    torch.save(source_models.phrases().state_dict(), tmp_path / "phrases.pt")
    arguments = ["convert", "--source", str(tmp_path / "phrases.pt"), "--dry_run"]
    main([*arguments, option])
    assert "linear_layer.weight" in capsys.readouterr().out
    assert "trained with patched code, pass --patched" in refusal(*arguments)
