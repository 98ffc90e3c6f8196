"""`vanilla-transformer translate`: files, pipes, JSON lines and error messages."""

import io
import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import polib
import pytest
import torch

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    train_tokenizer,
)
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.data.alignments import parse_pharaoh
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.alignment import word_alignments
from hf_vanilla_transformer.inference.reranking import ChannelReranker
from hf_vanilla_transformer.inference.translation import load, translate
from parallel_text import write_lines
from translators import build

SENTENCES = ["two dogs run over the grass", "", "a cat", "the\u0085cat sat", "grün ist das Gras", " ", "a dog"]
LINE_END = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model with separate vocabularies; special tokens are unlikely, but line ends are not."""
    torch.manual_seed(0)
    target = train_tokenizer(["\n\rab é"], algorithm="character")
    assert target.convert_ids_to_tokens(LINE_END) == "\n"
    tokenizer = VanillaTransformerTokenizer.from_pair(train_tokenizer(SENTENCES, vocab_size=300), target)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), decoder_vocab_size=tokenizer.target_vocab_size, d_model=16, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        share_encoder_decoder_embeddings=False, tie_word_embeddings=False, lm_head_bias=True,
    )  # fmt: skip  # one field a line would fill the screen
    model = VanillaTransformerForConditionalGeneration(config)
    model.lm_head.bias.data[:] = torch.tensor([-9.0, -9.0, 1.5, -9.0, *[1.0] * (tokenizer.target_vocab_size - 4)])
    model.generation_config.update(num_beams=2, min_new_tokens=4)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def other(folder, tmp_path_factory):
    """A model with the same tokenizer and different weights."""
    model, tokenizer = load(folder)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    path = tmp_path_factory.mktemp("other")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture
def expected(folder):
    """Translations from the library, two per sentence."""
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(folder)
    results = translate(model, tokenizer, SENTENCES, num_hypotheses=2, with_scores=True)
    assert any("\n" in hypotheses[0].text for hypotheses in results), "or line ends would not be tested"
    return results


def lines_of(results):
    return [hypotheses[0].text.replace("\n", " ").replace("\r", " ") for hypotheses in results]


@pytest.fixture
def fail(refusal):
    return partial(refusal, "translate")


@pytest.fixture
def source(tmp_path):
    return write_lines(tmp_path / "source.txt", SENTENCES)


@pytest.fixture
def run(source, folder, capsysbinary):
    """Translate the sentences, or another input given by options, and return the output lines."""

    def run(*options):
        main(["translate", "--model", folder, "--input", source, *map(str, options)])
        return capsysbinary.readouterr().out.decode().removesuffix("\n").split("\n")

    return run


def test_files_to_a_file_in_order(tmp_path, capsys, folder, expected):
    files = [
        write_lines(tmp_path / "first.txt", SENTENCES[:3]),
        write_lines(tmp_path / "second.txt.gz", SENTENCES[3:]),
    ]
    output = tmp_path / "out.txt"
    output.write_text("from before")
    capsys.readouterr()
    options = ("--chunk_size", "4", "--max_tokens", "20")
    main(["translate", "--model", folder, "--input", *files, "--output", str(output), *options])
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == ""
    assert output.read_text(encoding="utf-8").split("\n") == [*lines_of(expected), ""]
    assert {path.name for path in tmp_path.iterdir()} == {"first.txt", "second.txt.gz", "out.txt"}


def test_standard_input_to_standard_output(capsysbinary, monkeypatch, folder, expected):
    data = b"\xef\xbb\xbf" + "".join(f"{line}\r\n" for line in SENTENCES).encode().removesuffix(b"\r\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)), encoding="ascii"))
    main(["translate", "--model", folder])
    assert capsysbinary.readouterr().out.decode().split("\n") == [*lines_of(expected), ""]


def test_json_lines(run, expected):
    rows = [json.loads(line) for line in run("--format", "json", "--num_hypotheses", "2")]
    assert [row["source"] for row in rows] == SENTENCES
    for row, hypotheses in zip(rows, expected, strict=True):
        assert [hypothesis["text"] for hypothesis in row["hypotheses"]] == [one.text for one in hypotheses]
        scores = [hypothesis["score"] for hypothesis in row["hypotheses"]]
        assert scores == pytest.approx([one.score for one in hypotheses], rel=1e-4)


def test_translations_of_several_lines_are_counted(run, caplog, expected):
    flattened = sum(not {"\n", "\r"}.isdisjoint(own[0].text) for own in expected)
    remark = (
        f"of 7 lines, {flattened} had a translation of several lines, written as one; --format json keeps line ends"
    )
    for options, is_said in ((), True), (("--alignments",), True), (("--format", "json"), False):
        caplog.clear()
        run(*options)
        assert (remark in caplog.messages) == ("several lines" in caplog.text) == is_said, options


class TestAlignments:
    """Word alignments with the translations."""

    def test_text_has_them_behind_three_bars(self, run, folder, expected):
        rows = [line.split(" |||") for line in run("--alignments")]
        assert [text for text, _ in rows] == lines_of(expected)
        found = word_alignments(*load(folder), SENTENCES, [own[0].text for own in expected])
        assert [parse_pharaoh(links) for _, links in rows] == found and any(found)

    def test_json_has_them_as_pairs(self, run, folder, expected):
        for line, own in zip(run("--format", "json", "--alignments"), expected, strict=True):
            row = json.loads(line)
            (links,) = word_alignments(*load(folder), [row["source"]], [own[0].text])
            assert row["hypotheses"][0]["alignment"] == [list(link) for link in links]


def test_options_reach_the_search(run, caplog):
    def scores(*options):
        return [row["hypotheses"][0]["score"] for row in map(json.loads, run("--format", "json", *options))]

    plain = scores()
    assert scores("--num_beams", "2", "--device", "cpu", "--max_tokens", "9999") == pytest.approx(plain, rel=1e-4)
    unlike = [("--num_beams", "1"), ("--length_penalty", "0"), ("--bf16",), ("--max_source_length", "3")]
    unlike += [("--no_repeat_ngram_size", "1")]
    assert "truncated" not in caplog.text
    for options in unlike:
        assert scores(*options) != pytest.approx(plain, rel=1e-6), options
    assert re.search(r"\d of \d sentences had more than 3 tokens and were truncated", caplog.text)


def test_outputs_are_bounded(run):
    def longest(*options):
        # A token of this model is a character.
        rows = map(json.loads, run("--format", "json", "--raw", *options))
        return max(len(row["hypotheses"][0]["text"]) for row in rows)

    assert longest("--max_new_tokens", "5") == 5 < longest()


@pytest.mark.parametrize(
    ("value", "message"), [("0", "--max_new_tokens is 0; it must be"), ("-3", "is -3"), ("1.5", "invalid int value")]
)
def test_a_bound_of_no_tokens(folder, source, fail, value, message):
    assert message in fail("--model", folder, "--input", source, "--max_new_tokens", value)


def test_a_mistake_leaves_the_output_as_it_was(tmp_path, capsys, monkeypatch, folder, fail):
    source, output = tmp_path / "source.txt", tmp_path / "out.txt"
    source.write_bytes(b"a cat\na dog\n\xff\n")
    output.write_text("from before")
    message = fail("--model", folder, "--input", str(source), "--output", str(output))
    assert f"{source}, line 3" in message and "UTF-8" in message
    assert output.read_text() == "from before"
    assert {path.name for path in tmp_path.iterdir()} == {"source.txt", "out.txt"}
    # Preceded by enough lines to fill a block of the UTF-8 decoder.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"\n" * 9000 + b"caf\xe9\n"))))
    expected = "standard input, line 9001: byte 0xe9 at position 4 is not UTF-8"
    assert expected in fail("--model", folder, "--output", str(output))
    assert output.read_text() == "from before"


def test_what_cannot_be_used(tmp_path, capsys, folder, fail):
    source, missing = write_lines(tmp_path / "source.txt", ["a cat"]), str(tmp_path / "missing")
    assert f"model {missing} cannot be loaded" in fail("--model", missing, "--input", source)
    assert f"{missing}: cannot be read" in fail("--model", folder, "--input", missing)
    given = ("--model", folder, "--input", source)
    assert "no folder" in fail(*given, "--output", str(tmp_path / "no folder" / "out.txt")).replace("_", " ")
    assert "directory" in fail(*given, "--output", str(tmp_path))
    assert "--num_hypotheses needs --format json" in fail(*given, "--num_hypotheses", "2")
    assert "raise it" in fail(*given, "--num_hypotheses", "3", "--format", "json")
    shutil.copytree(folder, missing)
    Path(missing, "model.safetensors").write_bytes(b"cut short")
    assert f"model {missing} cannot be loaded" in fail("--model", missing, "--input", source)
    assert "device warp cannot be used" in fail(*given, "--device", "warp")


def test_the_other_backend_is_suggested(tmp_path, capsys, fail):
    pytest.importorskip("ctranslate2", reason="without it, that it is missing is said first")
    folder = str(tmp_path / "model")
    for part in build("shared"):
        part.save_pretrained(folder)
    exported = str(export_model(folder, "ctranslate2", tmp_path / "exported"))
    capsys.readouterr()
    assert "translate with --backend ctranslate2" in fail("--model", exported)
    assert "first, or use --backend transformers" in fail("--model", folder, "--backend", "ctranslate2")


def test_output_to_a_device_is_written_to_it(tmp_path, run):
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    run("--output", link)
    assert link.is_symlink() and link.is_char_device()


@pytest.mark.parametrize("words", [["--version"], ["translate", "--model", "{model}", "--input", "{input}"]])
def test_a_full_disk_is_reported_in_a_line(folder, tmp_path, words):
    (tmp_path / "in.txt").write_text("a cat\n")
    command = [word.format(model=folder, input=tmp_path / "in.txt") for word in words]
    with open("/dev/full", "wb") as output:
        program = [sys.executable, "-m", "hf_vanilla_transformer", *command]
        done = subprocess.run(program, stdout=output, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "standard output" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.slow
def test_each_line_is_answered_and_a_closed_pipe_ends_quietly(folder):
    program = [sys.executable, "-m", "hf_vanilla_transformer", "translate"]
    command = [*program, "--model", folder, "--chunk_size", "1", "--device", "cpu"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        for line in ("a cat", "", "a dog"):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, process.stderr.read().decode()
            assert answer.endswith(b"\n") and (answer == b"\n") == (line == "")
        process.stdout.close()
        process.stdin.write(b"a cat\n" * 3)
        process.stdin.close()
        errors = process.stderr.read()
        assert process.wait() == 0 and errors.count(b"\n") == 1
        assert errors.startswith(b"of 4 lines, 3 ended at") and errors.endswith(
            b"and 3 came back suspiciously short\n"
        )


class TestEnsemble:
    def test_several_models_translate_together(self, run, folder, other, expected):
        together = translate(*load([folder, other]), SENTENCES)
        assert run("--model", folder, other) == lines_of(together)
        assert lines_of(together) not in (lines_of(expected), lines_of(translate(*load(other), SENTENCES)))

    def test_what_cannot_be_used(self, tmp_path, capsys, folder, other, fail):
        for part in build("shared"):
            part.save_pretrained(tmp_path / "strange")
        capsys.readouterr()
        message = fail("--model", folder, other, str(tmp_path / "strange"))
        assert f"the vocabulary of model {tmp_path / 'strange'} differs from that of model {folder}" in message
        message = fail("--model", folder, other, "--backend", "ctranslate2")
        assert "an ensemble needs --backend transformers; name one model" in message


class TestReranking:
    def test_another_model_chooses_among_the_beams(self, run, folder, other):
        given = ("--num_beams", "4", "--rerank_model", other)
        rows = [json.loads(line) for line in run(*given, "--rerank_weight", "-5", "--format", "json")]
        reranker = ChannelReranker(*load(other), weight=-5)
        chosen = translate(*load(folder), SENTENCES, num_beams=4, reranker=reranker)
        found = [[(each["text"], each["score"]) for each in row["hypotheses"]] for row in rows]
        assert found == [[(own[0].text, own[0].score)] for own in chosen]
        plain = translate(*load(folder), SENTENCES, num_beams=4)
        assert [own[0].text for own in plain] != [own[0].text for own in chosen]
        default = translate(*load(folder), SENTENCES, num_beams=4, reranker=ChannelReranker(*load(other)))
        assert run(*given) == lines_of(default)

    def test_a_model_of_the_same_direction(self, tmp_path, folder, source, fail):
        forward = tmp_path / "forward"
        shutil.copytree(folder, forward)
        file = forward / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"source_lang": "en", "target_lang": "de"}))
        message = fail("--model", str(forward), "--input", source, "--rerank_model", str(forward))
        assert f"--rerank_model {forward} translates en to de; name a model of the opposite direction" in message

    def test_what_cannot_be_used(self, tmp_path, folder, source, other, fail):
        given = ("--model", folder, "--input", source)
        assert "--rerank_weight needs --rerank_model" in fail(*given, "--rerank_weight", "2")
        given = (*given, "--rerank_model")
        assert f"model {tmp_path / 'none'} cannot be loaded" in fail(*given, str(tmp_path / "none"))
        assert "--rerank_weight is nan; it must be finite" in fail(*given, other, "--rerank_weight", "nan")
        message = fail(*given, other, "--num_beams", "1")
        assert "reranking needs several hypotheses, but --num_beams is 1; raise it" in message


class TestGlossary:
    def test_terms_are_in_the_output(self, tmp_path, run):
        lines = run("--glossary", write_lines(tmp_path / "terms.tsv", ["dog\téaé", "cat\tbb"]))
        for sentence, line in zip(SENTENCES, lines, strict=True):
            assert ("éaé" in line) >= ("a dog" in sentence) and ("bb" in line) >= ("a cat" in sentence)

    def test_what_cannot_be_used(self, tmp_path, folder, source, fail):
        given = ("--model", folder, "--input", source, "--glossary")
        terms = write_lines(tmp_path / "terms.tsv", ["dog\tab", "dog"])
        assert f"{terms}, line 2: 0 tabs instead of one; write a term" in fail(*given, terms)
        assert "missing.tsv: cannot be read" in fail(*given, str(tmp_path / "missing.tsv"))
        strange = write_lines(tmp_path / "strange.tsv", ["dog\tperro"])
        assert "'perro' cannot be written with the model's vocabulary" in fail(*given, strange)
        message = fail(*given, write_lines(tmp_path / "good.tsv", ["dog\tab"]), "--backend", "ctranslate2")
        assert "--glossary needs --backend transformers" in message


class TestTextAsPeopleTypeIt:
    def test_items_are_kept_and_sentences_split(self, tmp_path, run):
        texts = ["a dog 🙂. a cat", "Ann Lee https://x.org", "12345"]
        source, names = write_lines(tmp_path / "in", texts), write_lines(tmp_path / "names.txt", ["Ann Lee"])
        first, second, third = run("--input", source, "--protect", names, "--rules", "all")
        assert first.count("🙂") == 1 and third == "12345"
        assert second.count("Ann Lee") == second.count("https://x.org") == 1
        assert "🙂" not in "".join(run("--input", source, "--raw"))

    def test_a_pattern_that_is_none(self, tmp_path, folder, fail):
        names = write_lines(tmp_path / "names.txt", ["Ann", "(Lee"])
        message = fail("--model", folder, "--input", write_lines(tmp_path / "in", ["a"]), "--protect", names)
        assert f"{names}, line 2: '(Lee' is not a valid regular expression" in message


class TestDocuments:
    def test_of_html(self, tmp_path, run):
        page = tmp_path / "page.html"
        page.write_text('<p title="5">a <b>cat</b> \n &amp; a dog</p><p translate=no>a dog</p>\n', encoding="utf-8")
        run("--input", page, "--output", tmp_path / "out.html")
        written = (tmp_path / "out.html").read_text(encoding="utf-8")
        assert written.startswith('<p title="5">') and written.endswith("<p translate=no>a dog</p>\n")
        assert written.count("<b>") == written.count("</b>") == 1
        assert [*run("--input", page), ""] == written.split("\n")

    def test_of_messages_with_the_language_of_the_model(self, tmp_path, run):
        messages = tmp_path / "en.po"
        messages.write_text('msgid ""\nmsgstr ""\n"Language: \\n"\n\nmsgid "a dog %s"\nmsgstr ""\n', encoding="utf-8")
        run("--input", messages, "--output", tmp_path / "out.po")
        (entry,) = polib.pofile(str(tmp_path / "out.po"))
        assert entry.msgid == "a dog %s" and "%s" in entry.msgstr

    def test_what_cannot_be_read_leaves_the_output_as_it_was(self, tmp_path, folder, fail):
        broken, output = tmp_path / "broken.xlf", tmp_path / "out.xlf"
        broken.write_text("<xliff>\n<file>", encoding="utf-8")
        output.write_text("before", encoding="utf-8")
        given = ("--model", folder, "--input", str(broken), "--output", str(output))
        assert f"{broken}, line 2" in fail(*given)
        assert output.read_text(encoding="utf-8") == "before" and len(list(tmp_path.iterdir())) == 2
        for option in (("--resume",), ("--alignments",), ("--format", "json")):
            assert f"{' '.join(option)} applies to lines of text" in fail(*given, *option)
        message = fail("--model", folder, "--input", str(broken), str(broken))
        assert "--input lists a document and other files" in message


@pytest.mark.parametrize(
    ("begun", "others"),
    [
        (("--alignments",), [()]),
        (("--max_new_tokens", "5"), [(), ("--max_new_tokens", "6")]),
        (("--model", "{folder}", "{other}"), [(), ("--model", "{other}", "{folder}")]),
        (("--rerank_model", "{other}"), [(), ("--rerank_model", "{folder}")]),
        (("--rerank_model", "{other}"), [("--rerank_model", "{other}", "--rerank_weight", "2")]),
        (("--glossary", "terms.tsv"), [(), ("--glossary", "other.tsv")]),
        (("--protect", "names.txt"), [(), ("--raw",), ("--split_sentences", "never")]),
    ],
    ids=["alignments", "output length", "ensemble", "rerank model", "rerank weight", "glossary", "items"],
)
def test_a_resumed_run_has_the_same_options(tmp_path, monkeypatch, capsys, folder, other, fail, begun, others):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "terms.tsv", ["dog\tab", "cat\tbb"])
    write_lines(tmp_path / "other.tsv", ["dog\tba", "cat\tbb"])
    write_lines(tmp_path / "names.txt", ["Ann( Lee)?"])
    given = ("--model", folder, "--input", "in", "--chunk_size", "1", "--output")
    begun, *others = ([word.format(folder=folder, other=other) for word in words] for words in (begun, *others))
    Path("in").write_bytes(b"a dog\na cat\n\xff\n")
    assert "line 3" in fail(*given, "out", *begun)
    Path("in").write_bytes(b"a dog\na cat\na dog\n")
    for words in others:
        assert "was started with another model, other settings or another input" in fail(
            *given, "out", *words, "--resume"
        )
    # The terms matter, not the file.
    write_lines(tmp_path / "terms.tsv", ["cat\tbb", "", "dog\tab"])
    main(["translate", *given, "out", *begun, "--resume"])
    assert "resuming after 2 finished lines" in capsys.readouterr().err
    main(["translate", *given, "whole", *begun])
    assert Path("out").read_text() == Path("whole").read_text()
