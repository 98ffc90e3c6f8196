"""`--source_lang` and `--target_lang` in translate, score and align."""

import json

import pytest

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.data.alignments import format_pharaoh
from hf_vanilla_transformer.inference.alignment import word_alignments
from hf_vanilla_transformer.inference.reranking import ChannelReranker
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.inference.translation import translate
from translators import ENGLISH, SPANISH, build, save_translator


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_translator("multilingual", folder)
    return str(folder)


def run(capsys, *words):
    capsys.readouterr()
    main([*words, "--device", "cpu"])
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("target", ["es", "en", "de"])
def test_the_direction_is_chosen(folder, files, capsys, target):
    model, tokenizer = build("multilingual")
    tokenizer.src_lang, tokenizer.tgt_lang = "es" if target == "en" else "en", target
    options = ["--model", folder, "--target_lang", target]
    translations = [each.text for (each,) in translate(model, tokenizer, ENGLISH)]
    assert run(capsys, "translate", *options, "--input", files[1]) == translations
    scores = [f"{each.log_prob:.4f}\t{each.perplexity:.4f}" for each in score(model, tokenizer, ENGLISH, SPANISH)]
    assert run(capsys, "score", *options, *files) == scores
    links = [format_pharaoh(each) for each in word_alignments(model, tokenizer, ENGLISH, SPANISH)]
    assert run(capsys, "align", *options, *files) == links


def test_reranking_reverses_the_direction(folder, files, capsys):
    model, tokenizer = build("multilingual")
    reranker = ChannelReranker(*build("multilingual"), src_lang="es", tgt_lang="en")
    expected = translate(model, tokenizer, ENGLISH, tgt_lang="es", num_beams=3, reranker=reranker, with_scores=True)
    options = f"--model {folder} --rerank_model {folder} --target_lang es --num_beams 3 --format json".split()
    found = [json.loads(line)["hypotheses"] for line in run(capsys, "translate", *options, "--input", files[1])]
    assert [each[0]["text"] for each in found] == [each.text for (each,) in expected]
    assert [each[0]["score"] for each in found] == pytest.approx([each.score for (each,) in expected], abs=1e-4)


def test_through_another_language(folder, files, capsys, tmp_path, refusal):
    model, tokenizer = build("multilingual")
    options = {"src_lang": "es", "tgt_lang": "de", "with_scores": True}
    command = f"translate --model {folder} --source_lang es --target_lang de --format json --input {files[1]}".split()
    through, direct = (translate(model, tokenizer, ENGLISH, **options, pivot=pivot) for pivot in ("en", "none"))
    assert through != direct
    for given, expected in (([], through), (["--pivot", "none"], direct), (["--pivot", "en"], through)):
        found = [json.loads(line)["hypotheses"] for line in run(capsys, *command, *given)]
        assert [each["text"] for (each,) in found] == [each.text for (each,) in expected]
        assert [each.get("pivot") for (each,) in found] == [each.pivot for (each,) in expected]
    assert "es to de cannot go through fr" in refusal(*command, "--pivot", "fr")


def test_a_resumed_run_has_the_same_pivot(folder, capsys, tmp_path, refusal):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"a dog\n\xff\n")
    command = f"translate --model {folder} --source_lang es --target_lang de --chunk_size 1 --output {output}".split()
    assert "line 2" in refusal(*command, "--input", str(source))
    source.write_text("a dog\na cat\n")
    error = refusal(*command, "--input", str(source), "--resume", "--pivot", "none")
    assert "was started with another model, other settings" in error
    run(capsys, *command, "--input", str(source), "--resume")
    assert len(output.read_text().splitlines()) == 2


def test_without_a_direction_those_that_there_are_are_listed(folder, files, refusal):
    for command in (("translate", "--input", files[1]), ("score", *files), ("align", *files)):
        error = refusal(*command, "--model", folder)
        assert "choose one with --source_lang and --target_lang: it has en-es, es-en, en-de" in error
        assert "no language 'fr'" in refusal(*command, "--model", folder, "--source_lang", "en", "--target_lang", "fr")
