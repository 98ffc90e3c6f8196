import pytest

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.data.alignments import format_pharaoh
from hf_vanilla_transformer.inference.alignment import alignment_heads, word_alignments
from hf_vanilla_transformer.pretrained.loading import load_model, load_tokenizer
from translators import ENGLISH, SPANISH, build


@pytest.fixture
def folder(tmp_path):
    for part in build("pair"):
        part.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def align(folder):
    return word_alignments(load_model(folder), load_tokenizer(folder), ENGLISH, SPANISH)


@pytest.mark.parametrize("options", [(), ("--chunk_size", "2", "--max_tokens", "20")])
def test_a_line_a_pair(folder, files, options, capsys):
    capsys.readouterr()
    main(["align", "--model", folder, *files, "--device", "cpu", *options])
    assert capsys.readouterr().out.splitlines() == list(map(format_pharaoh, align(folder)))


@pytest.mark.parametrize("head", [[0, 1], [1, 0]])
def test_heads_by_reference_are_saved(tmp_path, folder, files, head, capsys):
    model = load_model(folder)
    model.generation_config.alignment_heads = [head]
    links = word_alignments(model, load_tokenizer(folder), ENGLISH, SPANISH)
    (tmp_path / "true").write_text("".join(f"{format_pharaoh(each)}\n" for each in links))
    capsys.readouterr()
    main(["align", "--model", folder, *files, "--set_heads", "--reference", str(tmp_path / "true")])
    assert capsys.readouterr().out.endswith("alignment error rate 0.0 % on 5 pairs\n")
    assert align(folder) == links


def test_heads_by_statistics_are_saved(folder, files, capsys):
    main(["align", "--model", folder, *files, "--set_heads"])
    named = capsys.readouterr().out
    heads = load_model(folder).generation_config.alignment_heads
    assert heads == alignment_heads(load_model(folder)) and f"layer {heads[0][0]} head {heads[0][1]}" in named


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--reference", "true"), "--reference needs --set_heads; add it, or leave --reference out"),
        (("--source", "-", "--target", "-"), "--source and --target are both standard input"),
        (("--set_heads", "--reference", "nowhere.align"), "nowhere.align"),
        (("--model", "no/folder", "--set_heads"), "saves to the model's folder, but no/folder is not one"),
    ],
    ids=["reference", "stdin", "no file", "no folder"],
)
def test_refusals(folder, files, options, message, refusal):
    assert message in refusal("align", "--model", folder, *files, *options)


def test_a_reference_that_does_not_fit(tmp_path, folder, files, refusal):
    (tmp_path / "true").write_text("0-0\n9-0\n")
    line = refusal("align", "--model", folder, *files, "--set_heads", "--reference", tmp_path / "true")
    assert "true, line 2: 9-0 links source word 9, but the source has 4 words" in line
