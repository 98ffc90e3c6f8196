"""Translation and scoring of any text: one result per line, in order, independent of batches."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from fuzzing import one_line, texts
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.files import read_lines
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.inference.translation import translate_lines
from hf_vanilla_transformer.training.metrics import translation_scores
from translators import build

pytestmark = pytest.mark.usefixtures("one_thread")

LINES = st.lists(
    st.one_of(texts(), st.sampled_from(["", " ", "a red house", "the small cat sleeps", "no"])), min_size=1, max_size=6
)


@pytest.fixture(scope="module")
def translator():
    return build("pair")


def test_translations_are_the_same_alone_and_in_any_batch(translator, fuzz):
    @fuzz("texts translated alone and in batches and chunks of any size", 5, 150)
    @given(LINES, st.integers(1, 7), st.sampled_from([1, 20, 4096]), st.sampled_from([1, 2]))
    def check(lines, chunk_size, max_tokens, num_beams):
        # A maximum length that does not depend on the batch.
        options = {"num_beams": num_beams, "max_new_tokens": 5}
        sizes = {"chunk_size": chunk_size, "max_tokens": max_tokens}
        together = list(translate_lines(*translator, iter(lines), **sizes, **options))
        alone = [next(translate_lines(*translator, [line], **options)) for line in lines]
        assert together == alone
        assert {row[0].text for line, row in zip(lines, together, strict=True) if not line.strip()} <= {""}


def test_scores_are_the_same_alone_and_in_any_batch(translator, fuzz):
    @fuzz("pairs of texts scored alone and in batches of any size", 10, 300)
    @given(LINES, st.sampled_from([1, 20, 4096]), st.randoms(use_true_random=False))
    def check(lines, max_tokens, order):
        targets = order.sample(lines, len(lines))
        together = score(*translator, lines, targets, max_tokens=max_tokens)
        for source, target, result in zip(lines, targets, together, strict=True):
            (alone,) = score(*translator, [source], [target])
            assert alone.token_ids == result.token_ids
            assert alone.log_prob == pytest.approx(result.log_prob, abs=1e-4)


def test_long_words_and_control_characters(translator, tried):
    lines = ["a" * 10_000, "\0\x1b[31m\x7f", "漢" * 500, "a\u2028b\x85c", "red house " * 200, "\u202eabc"]
    translations = list(translate_lines(*translator, lines, max_new_tokens=3))
    assert len(translations) == len(lines)
    assert translations == [next(translate_lines(*translator, [line], max_new_tokens=3)) for line in lines]
    tried("words of 10,000 characters, control characters, mixed scripts", len(lines))


def test_files_of_the_command_evaluate(tmp_path, capsys, fuzz):
    @fuzz("files of any text scored by evaluate as by sacreBLEU", 15, 500)
    @given(st.lists(st.tuples(texts("\r\ufeff"), texts("\r\ufeff")), min_size=1, max_size=6), st.integers(0, 2))
    def check(pairs, missing):
        for name, side in zip(("hypotheses", "references"), zip(*pairs, strict=True), strict=True):
            lines = side[: len(side) - missing] if name == "references" else side
            (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
        paths = [str(tmp_path / name) for name in ("hypotheses", "references")]
        if missing:
            with pytest.raises(SystemExit) as end:
                main(["evaluate", "--predictions", paths[0], "--references", paths[1]])
            error = capsys.readouterr().err
            assert end.value.code == 2 and error.count("\n") == 1
            assert f"has {len(pairs)} lines but " in error and f"has {max(0, len(pairs) - missing)};" in error
            return
        main(["evaluate", "--predictions", paths[0], "--references", paths[1]])
        bleu, _, chrf = capsys.readouterr().out.splitlines()[:3]
        hypotheses, references = (list(read_lines(path)) for path in paths)
        assert bleu.split()[1] == f"{BLEU().corpus_score(hypotheses, [references]).score:.2f}"
        assert chrf.split()[1] == f"{CHRF().corpus_score(hypotheses, [references]).score:.2f}"


def test_scores_of_several_references(fuzz):
    generator = random.Random(0)

    @fuzz("any translations with any number of references", 20, 1000)
    @given(st.lists(st.tuples(texts(), st.lists(texts(), max_size=3)), max_size=5))
    def check(rows):
        hypotheses, references = [row[0] for row in rows], [row[1] for row in rows]
        try:
            scores = translation_scores(hypotheses, references)
        except ValueError as error:
            assert one_line(error) and (not rows or not all(references))
            return
        longest = max(map(len, references))
        columns = [[row[i] if i < len(row) else None for row in references] for i in range(longest)]
        assert scores["bleu"] == BLEU().corpus_score(hypotheses, columns).score
        assert scores["chrf"] == CHRF().corpus_score(hypotheses, columns).score
        # The order of the rows does not matter.
        order = generator.sample(range(len(rows)), len(rows))
        shuffled = translation_scores([hypotheses[i] for i in order], [references[i] for i in order])
        assert shuffled["bleu"] == pytest.approx(scores["bleu"])
