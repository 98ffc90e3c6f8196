import io
import json
import sys
from functools import partial

import pytest
import sacrebleu

from hf_vanilla_transformer.cli.evaluate import METRICS
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.training.metrics import ALL_METRIC_NAMES
from parallel_text import tsv, write, write_lines
from tables import looped

REFERENCES = ["A man sleeps in a green room .", "Two dogs run over the\u0085grass .", "¿ Dónde está el niño ?"]
PREDICTIONS = ["A man sleeps in the green room .", "Two dogs run over the\u0085grass .", "¿ DÓNDE está el niño ?"]


@pytest.fixture
def references(tmp_path):
    return write_lines(tmp_path / "references.txt", REFERENCES)


def run(capsys, *arguments: object) -> str:
    main(["evaluate", *map(str, arguments)])
    return capsys.readouterr().out


@pytest.fixture
def fail(refusal):
    return partial(refusal, "evaluate")


@pytest.mark.parametrize("name", ["predictions.txt", "predictions.txt.gz"])
def test_scores_and_signatures(tmp_path, capsys, references, name):
    predictions = write_lines(tmp_path / name, PREDICTIONS)
    report = tmp_path / "scores.json"
    printed = run(capsys, "--predictions", predictions, "--references", references, "--json", str(report))
    scores = json.loads(report.read_text(encoding="utf-8"))
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score)
    assert scores["chrfpp"] == pytest.approx(sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES], word_order=2).score)
    assert scores["ter"] == pytest.approx(sacrebleu.corpus_ter(PREDICTIONS, [REFERENCES]).score)
    assert scores["lowercase_bleu"] > scores["bleu"] and "case:lc" in scores["lowercase_bleu_signature"]
    assert scores["segments"] == 3 and scores["exact_match"] == pytest.approx(100 / 3)
    *rows, exact_match = printed.splitlines()
    names = {"bleu": "BLEU", "lowercase_bleu": "BLEU, lower-cased", "chrf": "chrF2", "chrfpp": "chrF++", "ter": "TER"}
    for row, (key, title) in zip(rows, names.items(), strict=True):
        assert row.split() == [*title.split(), f"{scores[key]:.2f}", scores[f"{key}_signature"]]
    assert exact_match.split() == "exact match 33.33 % of 3 segments".split()
    # Columns are aligned.
    assert len({row.index("nrefs") for row in rows} | {exact_match.index("%")}) == 1


def test_standard_input_several_references_and_lowercase(tmp_path, capsys, references, monkeypatch):
    second = write_lines(tmp_path / "second.txt.gz", PREDICTIONS[:1] + REFERENCES[1:])
    data = "".join(line + "\r\n" for line in PREDICTIONS).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)), encoding="ascii"))
    printed = run(capsys, "--predictions", "-", "--references", references, second, "--lowercase")
    assert printed.count(" 100.00 ") == 5 and " 0.00  nrefs:2|case:lc|tok:tercom" in printed
    assert "nrefs:2|case:lc" in printed


def test_tokenize_option(tmp_path, capsys, references, fail):
    predictions = write_lines(tmp_path / "predictions.txt", PREDICTIONS)
    both = ("--predictions", predictions, "--references", references)
    assert "tok:char" in run(capsys, *both, "--tokenize", "char")
    assert "--tokenize spacy is unknown" in fail(*both, "--tokenize", "spacy")


@pytest.mark.parametrize(("options", "fault"), [([], "(13a)"), (["--tokenize", "char"], None)])
def test_text_that_bleu_does_not_suit(tmp_path, capsys, options, fault):
    words = write_lines(tmp_path / "words.txt", ["katze", "hund", "vogel"])
    both = ("--predictions", words, "--references", words, *options)
    printed = run(capsys, *both)
    assert ("BLEU  " in printed and " 0.00  nrefs:1" in printed) and "100.00  % of 3 segments" in printed
    remark = (
        f"BLEU says little about this text: 3 of 3 references have fewer than the 4 tokens {fault} it needs; rely on"
    )
    assert (remark in printed) == bool(fault)
    other = write_lines(tmp_path / "other.txt", ["katze", "hund", "vogl"])
    assert run(capsys, "--predictions", words, other, *both[2:]).count("says little") == bool(fault)


def test_different_line_counts(tmp_path, references, fail):
    predictions = write_lines(tmp_path / "short.txt", PREDICTIONS[:2])
    message = fail("--predictions", predictions, "--references", references)
    assert f"{predictions} has 2 lines but {references} has 3" in message


def test_empty_missing_and_unreadable_files(tmp_path, references, monkeypatch, fail):
    empty, missing = write_lines(tmp_path / "empty.txt", []), str(tmp_path / "missing.txt")
    assert "empty" in fail("--predictions", empty, "--references", empty)
    assert missing in fail("--predictions", references, "--references", missing)
    unwritable = str(tmp_path / "no folder" / "scores.json")
    assert unwritable in fail("--predictions", references, "--references", references, "--json", unwritable)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"\xff\n"))))
    expected = "standard input, line 1: byte 0xff at position 1 is not UTF-8"
    assert expected in fail("--predictions", "-", "--references", references)


class TestSeveralSystems:
    @pytest.fixture
    def systems(self, tmp_path):
        return [write_lines(tmp_path / "one.hyp", PREDICTIONS), write_lines(tmp_path / "other.hyp", REFERENCES)]

    def test_a_table(self, tmp_path, capsys, references, systems):
        report = tmp_path / "scores.json"
        printed = run(capsys, "--predictions", *systems, "--references", references, "--json", report)
        table, signatures = printed.split("\n\n")
        scores = json.loads(report.read_text())
        assert scores["segments"] == 3
        keys = ("bleu", "lowercase_bleu", "chrf", "chrfpp", "ter", "exact_match")
        for row, path, system in zip(table.splitlines()[1:], systems, scores["systems"], strict=True):
            assert row.split() == [path, *(f"{system[key]:.2f}" for key in keys)] and system["predictions"] == path
        assert len({len(row) for row in table.splitlines()}) == 1
        assert scores["systems"][1]["bleu"] == pytest.approx(100) and "tok:13a" in signatures
        assert signatures.splitlines()[-1].split() == "exact match % of 3 segments".split()

    def test_significance(self, tmp_path, capsys, fail):
        """A worse system differs; an equal one, and one that differs in a single segment of many, do not."""
        right = [f"the number {i} of all numbers is a number" for i in range(60)]
        texts = {
            "refs": right,
            "baseline": [line.replace("number", "numer") for line in right],
            "worse": [line[::-1] for line in right],
            "equal": [line.replace("number", "numer") for line in right],
            "close": [line.replace("number", "numer") for line in right[:-1]] + ["the number"],
        }
        paths = {name: write_lines(tmp_path / name, lines) for name, lines in texts.items()}
        systems = [paths[name] for name in ("baseline", "worse", "equal", "close")]
        options = ["--references", paths["refs"], "--metrics", "bleu", "chrf", "wer", "--significance"]
        printed = run(capsys, "--predictions", *systems, *options, "--json", tmp_path / "scores.json")
        found = {
            each["predictions"]: each.get("p_values")
            for each in json.loads((tmp_path / "scores.json").read_text())["systems"]
        }
        assert found[systems[0]] is None and found[systems[2]] == {"bleu": 1.0, "chrf": 1.0}
        assert max(found[systems[1]].values()) < 0.01 and min(found[systems[3]].values()) > 0.05
        assert "says little" not in printed
        assert "--significance is not for wer and ser" in fail(
            "--predictions", *systems, "--references", paths["refs"], "--metrics", "wer", "--significance"
        )
        few = [write_lines(tmp_path / name, ["a dog runs"]) for name in ("one", "two")]
        assert "p of fewer than 50 segments says little" in run(
            capsys, "--predictions", *few, "--references", few[0], "--significance"
        )
        assert ["p,", "against", systems[0], "BLEU", "chrF2"] in [line.split() for line in printed.splitlines()]

    @looped(
        ("options", "message"),
        [
            (["--significance"], "--significance compares systems, but --predictions names one"),
            (["--comet"], "--comet needs the source sentences; give --sources"),
            (["--langpair", "en-de"], "--sets and --langpair belong together"),
            (["--sources", "-"], "standard input (-) is given twice but can be read only once; use a file instead"),
            (["--sets", "wmt14", "--langpair", "en-de"], "give one of --references, --sets and --pairs"),
        ],
    )  # fmt: skip  # a table
    def test_options_that_miss_others(self, references, fail, options, message):
        assert message in fail("--predictions", references, "--references", "-", *options)

    def test_other_faults(self, tmp_path, references, systems, fail):
        assert "give one of --references, --sets and --pairs" in fail("--predictions", references)
        assert f"--predictions lists {references} twice" in fail(
            "--predictions", references, references, "--references", references
        )
        short = write_lines(tmp_path / "short.hyp", PREDICTIONS[:1])
        message = fail("--predictions", systems[0], short, "--references", references)
        assert f"{short} has 1 lines but {references} has 3" in message
        message = fail("--predictions", systems[0], "--references", references, "--sources", short)
        assert f"{systems[0]} has 3 lines but {short} has 1" in message


class TestPairs:
    PAIRS = (("live", "L AY V"), ("read", "R EH D"), ("live", "L IH V"), ("tear", "T EH R"))

    @pytest.fixture
    def pairs(self, tmp_path):
        return write(tmp_path / "test.tsv", tsv(self.PAIRS))

    @pytest.fixture
    def lists(self, tmp_path):
        """N-best lists: live and read are right at the second rank, tear at the first."""
        ranked = [("X", "L IH V"), ("Y", "R EH D"), ("X", "L IH V"), ("T EH R", "T IH R")]
        records = [{"hypotheses": [{"text": text, "score": 0.0} for text in texts]} for texts in ranked]
        return write_lines(tmp_path / "lists.jsonl", map(json.dumps, records))

    def test_a_repeated_source_has_several_references(self, tmp_path, capsys, pairs):
        predictions = write_lines(tmp_path / "test.hyp", ["L IH V", "R EH D", "X", "T"])
        options = ("--predictions", predictions, "--metrics", "wer", "ser", "--symbols", "whitespace")
        printed = run(capsys, *options, "--pairs", pairs, "--json", tmp_path / "scores.json")
        assert [row.split() for row in printed.splitlines()] == [
            ["WER", "33.33", "sources:3|refs:4|case:mixed"],
            ["SER", "22.22", "sources:3|refs:4|case:mixed|symbols:whitespace"],
            "exact match 66.67 % of 3 sources".split(),
        ]
        scores = json.loads((tmp_path / "scores.json").read_text())
        assert scores["wer"] == pytest.approx(100 / 3) and scores["segments"] == 4 and "bleu" not in scores
        sources = write_lines(tmp_path / "sources", [source for source, _ in self.PAIRS])
        references = write_lines(tmp_path / "references", [target for _, target in self.PAIRS])
        assert run(capsys, *options, "--references", references, "--sources", sources) == printed
        # Line by line without sources.
        assert "WER          75.00  sources:4|refs:4" in run(capsys, *options, "--references", references)

    def test_named_columns(self, tmp_path, capsys, fail):
        pairs = write(tmp_path / "named.csv", "word,phones\na,EY\n")
        options = ("--predictions", write_lines(tmp_path / "x", ["EY"]), "--metrics", "wer", "--pairs", pairs)
        assert "--source_column" in fail(*options)
        assert "WER            0.00" in run(capsys, *options, "--source_column", "word", "--target_column", "phones")

    def test_words_have_error_rates_by_default(self, tmp_path, capsys):
        words = write_lines(tmp_path / "words", [f"{chr(97 + i % 26)}{chr(97 + i // 26)}ta" for i in range(120)])
        printed = run(capsys, "--predictions", words, "--references", words)
        assert printed.startswith("WER ") and "symbols:character" in printed and "\nBLEU " in printed
        assert "rely on WER and SER" in printed

    def test_top_k(self, tmp_path, capsys, pairs, lists):
        options = ("--predictions", lists, "--pairs", pairs, "--metrics", "wer", "--top_k", "2", "1")
        printed = run(capsys, *options, "--json", tmp_path / "scores.json")
        assert [row.split() for row in printed.splitlines()[2:]] == [
            "top 1 33.33 % of 3 sources".split(), "top 2 100.00 % of 3 sources".split()
        ]  # fmt: skip  # a table
        scores = json.loads((tmp_path / "scores.json").read_text())
        assert (scores["top_1"], scores["top_2"], scores["wer"]) == pytest.approx((100 / 3, 100, 200 / 3))

    def test_faults(self, tmp_path, pairs, lists, fail):
        both = ("--predictions", lists, "--pairs", pairs)
        assert f"{lists}, line 1 has 2 hypotheses, fewer than --top_k 3" in fail(*both, "--top_k", "1", "3")
        assert "--top_k is 0; it must be positive" in fail(*both, "--top_k", "0")
        other = write_lines(tmp_path / "other.jsonl", ['{"text": "a"}'])
        message = fail("--predictions", other, "--pairs", pairs, "--top_k", "1")
        assert f"{other}, line 1: no hypotheses; write them by translate" in message
        assert "--pairs includes the sources; leave --sources out" in fail(*both, "--sources", lists)
        assert "give one of --references, --sets and --pairs" in fail(*both, "--references", lists)
        short = write_lines(tmp_path / "short", ["a"])
        assert f"{short} has 1 lines but {pairs} has 4" in fail("--predictions", short, "--pairs", pairs)

    def test_every_metric_is_an_option(self):
        assert set(METRICS) == set(ALL_METRIC_NAMES)


class TestPublicSets:
    def test_several_follow_one_another(self, tmp_path, capsys, public_set, fail):
        public_set("wmt14", "en-de", REFERENCES)
        public_set("wmt15", "en-de", PREDICTIONS)
        predictions = write_lines(tmp_path / "both.hyp", REFERENCES + PREDICTIONS)
        report = tmp_path / "scores.json"
        options = ("--predictions", predictions, "--langpair", "en-de")
        printed = run(capsys, *options, "--sets", "wmt14,wmt15", "--json", report)
        scores = json.loads(report.read_text())
        assert (scores["bleu"], scores["segments"], scores["sets"]) == (pytest.approx(100), 6, ["wmt14", "wmt15"])
        assert printed.replace("wmt14,wmt15", "") == run(capsys, *options, "--sets", "wmt14", "wmt15")
        assert f"{predictions} has 6 lines but wmt14 has 3" in fail(*options, "--sets", "wmt14")

    def test_the_target_language_decides_the_tokenizer(self, tmp_path, capsys, public_set):
        public_set("wmt17", "en-zh", REFERENCES)
        options = ("--predictions", write_lines(tmp_path / "x", REFERENCES), "--sets", "wmt17", "--langpair", "en-zh")
        assert run(capsys, *options).count("tok:zh") == 2
        assert run(capsys, *options, "--tokenize", "char").count("tok:char") == 2

    def test_faults(self, references, public_set, fail):
        options = ("--predictions", references, "--langpair", "en-de")
        assert "--sets wmt104 is not a test set of sacreBLEU; did you mean wmt14?" in fail(
            *options, "--sets", "wmt104"
        )
        assert "--sets names no test set; give at least one, such as multi30k/2016" in fail(*options, "--sets", ",")
        assert "--sets includes the sources; leave --sources out" in fail(
            *options, "--sets", "wmt14", "--sources", references
        )


class TestComet:
    @pytest.mark.usefixtures("comet")
    def test_its_score_stands_beside_the_others(self, tmp_path, capsys, references):
        predictions = write_lines(tmp_path / "predictions.txt", PREDICTIONS)
        report = tmp_path / "scores.json"
        options = ("--predictions", predictions, references, "--references", references, "--sources", references)
        printed = run(capsys, *options, "--comet", "--json", report)
        scores = json.loads(report.read_text())["systems"]
        assert [each["comet"] for each in scores] == pytest.approx([1 / 3, 1])
        assert {each["comet_model"] for each in scores} == {"Unbabel/wmt22-comet-da"}
        assert [row.split()[-1] for row in printed.splitlines()[:3]] == ["COMET", "0.3333", "1.0000"]
        assert printed.splitlines()[-1].split() == ["COMET", "Unbabel/wmt22-comet-da"]
        alone = run(capsys, "--predictions", predictions, *options[3:], "--comet", predictions)
        assert alone.splitlines()[-1].split() == ["COMET", "0.3333", predictions]

    def test_without_the_program(self, monkeypatch, tmp_path, references, fail):
        monkeypatch.setenv("PATH", str(tmp_path))
        message = fail("--predictions", references, "--references", references, "--sources", references, "--comet")
        assert "--comet needs the program comet-score of unbabel-comet" in message
