"""Translations that become training pairs: which lines are written, reused, resumed and refused."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from experiments import MODEL, SHAPE, arguments, sentences, train
from hf_vanilla_transformer import VanillaTransformerTokenizer
from hf_vanilla_transformer.data.corpora import BACK_TRANSLATED, corpora_of
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.files import read_lines
from hf_vanilla_transformer.inference.decoding import Hypothesis
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.pretrained.loading import load_tokenizer
from hf_vanilla_transformer.training import synthetic
from hf_vanilla_transformer.training.setup import set_up
from hf_vanilla_transformer.training.synthetic import is_cut_off, translate_to_files, with_back_translations
from hf_vanilla_transformer.training.text_splits import load_text
from parallel_text import lines, write
from translators import ENGLISH, build, save_translator

pytestmark = pytest.mark.usefixtures("one_thread")

ONE_PROCESS = SimpleNamespace(world_size=1, process_index=0, disable_tqdm=True)


@pytest.fixture(scope="module")
def teacher():
    return build("shared")


@pytest.fixture(scope="module")
def reverse(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reverse")
    save_translator("shared", folder)
    return str(folder)


@pytest.fixture(autouse=True)
def _translations_that_never_end_are_kept(monkeypatch):
    monkeypatch.setattr(synthetic, "is_cut_off", lambda _: False)


def files_of(teacher, sentences, folder, **options):
    return translate_to_files(*teacher, sentences, folder / "made", ONE_PROCESS, **options)


def content(text):
    return [list(read_lines(file)) for file in text]


def test_translations_of_different_sentences_with_words(teacher, tmp_path, capsys):
    text = files_of(teacher, [*ENGLISH, " ", ENGLISH[0], "a red\nhouse", ""], tmp_path, num_beams=2)
    sentences, translations = content(text)
    assert sentences == ENGLISH
    assert translations == [row[0].text for row in translate(*teacher, ENGLISH, num_beams=2)]
    assert all(translations) and len(set(translations)) > 1
    assert capsys.readouterr().out == f"synthetic    5 in {text.translations}, 0 empty or cut off\n"


def test_a_model_that_never_ends(teacher, tmp_path, monkeypatch):
    warning = Mock()
    monkeypatch.setattr(synthetic.logger, "warning", warning)
    files_of(teacher, ENGLISH, tmp_path / "ends")
    warning.assert_not_called()
    monkeypatch.setattr(synthetic, "is_cut_off", lambda _: True)
    text = files_of(teacher, ENGLISH, tmp_path / "never")
    expected = f"{text.translations}: no translation is usable; train its model for longer"
    warning.assert_called_once_with(expected)


def test_several_translations_of_each(teacher, tmp_path):
    sentences, translations = content(files_of(teacher, ENGLISH, tmp_path, num_beams=3, num_hypotheses=2))
    expected = [row.text for rows in translate(*teacher, ENGLISH, num_beams=3, num_hypotheses=2) for row in rows]
    assert translations == expected and sentences == [line for line in ENGLISH for _ in range(2)]


@pytest.mark.slow
def test_the_same_call_translates_once(teacher, tmp_path, monkeypatch):
    first = files_of(teacher, ENGLISH, tmp_path, max_tokens=4096)
    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "translate_lines", Mock(side_effect=AssertionError))
        assert files_of(teacher, iter(ENGLISH), tmp_path, max_tokens=64) == first
    others = [
        files_of(teacher, ENGLISH[1:], tmp_path),
        files_of(teacher, ENGLISH, tmp_path, num_beams=2),
        files_of(teacher, ENGLISH, tmp_path, num_beams=2, num_hypotheses=2),
        files_of(build("shared", dropout=0.3), ENGLISH, tmp_path),
    ]
    assert len({first, *others}) == 5


@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupted_call_goes_on(teacher, tmp_path, monkeypatch, number):
    # A length limit independent of the batch, since these outputs never end by themselves.
    options = {"num_beams": 2, "num_hypotheses": number, "max_new_tokens": 8}
    whole = content(files_of(teacher, ENGLISH, tmp_path / "whole", **options))
    monkeypatch.setattr(synthetic, "CHUNK_SIZE", 2)
    asked = []

    def translate_lines(model, tokenizer, lines, **given):
        for line in lines:
            if len(asked) == 3:
                asked.append(line)
                raise KeyboardInterrupt
            asked.append(line)
            yield translate(model, tokenizer, [line], **{**given, "show_progress": False})[0]

    monkeypatch.setattr(synthetic, "translate_lines", translate_lines)
    with pytest.raises(KeyboardInterrupt, match="to continue, start it again"):
        files_of(teacher, ENGLISH, tmp_path / "part", **options)
    assert not list((tmp_path / "part").glob("*.translations.txt"))
    text = files_of(teacher, ENGLISH, tmp_path / "part", **options)
    assert content(text) == whole
    # The third was translated, but its chunk was not complete.
    assert asked == [*ENGLISH[:4], *ENGLISH[2:]]
    assert sorted(path.suffix for path in (tmp_path / "part").iterdir()) == [".txt", ".txt"]


def test_empty_and_endless_translations(teacher, tmp_path, monkeypatch, capsys):
    found = [Hypothesis(text) for text in (" ", "no " * 60, "no\ncat", "no " * 40, "a")]
    found[1] = Hypothesis("no " * 60, remarks=["limit"])
    monkeypatch.setattr(synthetic, "is_cut_off", is_cut_off)
    monkeypatch.setattr(synthetic, "translate_lines", lambda *_, **__: iter([[hypothesis] for hypothesis in found]))
    sentences, translations = content(files_of(teacher, ENGLISH, tmp_path))
    assert sentences == ENGLISH and translations == ["", "", "no cat", "no " * 40, "a"]
    assert "5 in " in (printed := capsys.readouterr().out) and ", 2 empty or cut off" in printed


def test_only_one_process_writes(teacher, tmp_path, capsys):
    two = SimpleNamespace(world_size=2, process_index=1, disable_tqdm=True)
    with pytest.raises(DataError, match="by one process, not by 2; start without a launcher until it exists"):
        translate_to_files(*teacher, ENGLISH, tmp_path / "made", two)
    first = files_of(teacher, ENGLISH, tmp_path)
    capsys.readouterr()
    assert translate_to_files(*teacher, ENGLISH, tmp_path / "made", two) == first
    assert capsys.readouterr().out == ""


def test_faults(teacher, tmp_path):
    with pytest.raises(DataError, match="there are no sentences to translate, except for blank ones"):
        files_of(teacher, ["", " "], tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="`synthetic_dir` .*file cannot be created"):
        files_of(teacher, ENGLISH, tmp_path / "file")


class TestBackTranslation:
    @pytest.fixture
    def given(self, files, reverse, tmp_path):
        """Arguments with two files of German text, including two validation or test targets."""
        held_out = [sentences(12, 1)[3][1], f" {sentences(9, 2)[0][1]}"]
        paths = [write(tmp_path / "one", lines(ENGLISH[:3])), write(tmp_path / "two.gz", lines([*held_out, "", "no"]))]
        return {**files, "monolingual_target": paths, "reverse_model": reverse, "max_length_ratio": 100}

    def test_text_becomes_targets(self, given, teacher, tmp_path, monkeypatch):
        messages = []
        monkeypatch.setattr(synthetic.logger, "warning", messages.append)
        _, data_args, args = arguments(tmp_path / "model", **given)
        done = with_back_translations(data_args, args)
        assert messages == ["2 of 7 monolingual sentences are validation or test targets: left out"]
        expected = [*ENGLISH[:3], "no"]
        outputs = [row[0].text for row in translate(*teacher, expected)]
        _, made = corpora_of(done).entries["train"]
        assert [list(read_lines(file)) for file in made.text.files("train")] == [outputs, expected]
        assert (made.tag, made.hold_out, done.monolingual_target) == (BACK_TRANSLATED, False, None)
        # Nothing is left to do, and nothing is done without such text.
        assert with_back_translations(done, args) is done

    def test_only_the_translations_are_for_training(self, given, tmp_path):
        _, data_args, args = arguments(tmp_path / "model", **given, train_weight=0)
        assert len(load_text(with_back_translations(data_args, args)).train) == 4

    def test_runs_that_share_translations_have_lists_of_their_own(self, given, tmp_path):
        shared, made = {**given, "synthetic_dir": str(tmp_path / "shared")}, []
        for name, text in (("one", "a cat"), ("two", "no cat")):
            mine = {**shared, "monolingual_target": [write(tmp_path / f"{name}.txt", lines([text]))]}
            _, data_args, args = arguments(tmp_path / f"run-{name}", **mine)
            made.append(with_back_translations(data_args, args))
        targets = [corpora_of(each).entries["train"][1].text.train_target_file for each in made]
        assert [[*read_lines(file)] for file in targets] == [["a cat"], ["no cat"]]

    @pytest.mark.parametrize(
        ("algorithm", "separate"),
        [
            ("bpe", False),
            ("bpe", True),
            ("unigram", False),
            ("word", True),
            ("whitespace", False),
            ("character", True),
        ],
    )
    def test_the_tag_is_one_token_and_not_learned(self, given, tmp_path, algorithm, separate):
        vocabulary = {"tokenizer_algorithm": algorithm, "vocab_size": 400, "separate_vocabularies": separate}
        parts = arguments(tmp_path / "model", {**SHAPE, **vocabulary, "lowercase": True}, **given)
        parts[1] = with_back_translations(parts[1], parts[2])
        experiment = set_up(*parts)
        tokenizer, ids = experiment.tokenizer, experiment.ids.train
        (token,) = (i for text, i in tokenizer.get_vocab().items() if text == BACK_TRANSLATED)
        assert sum(row["input_ids"].count(token) for row in ids) == 4
        assert all(row["input_ids"][0] == token for row in ids if token in row["input_ids"])
        assert not any(token in row["labels"] for row in ids) or separate
        letters = {text for text in tokenizer.get_vocab() if "<" in text and len(text) > 1}
        assert letters == {"<pad>", "<s>", "</s>", "<unk>", BACK_TRANSLATED}
        assert isinstance(tokenizer, VanillaTransformerTokenizer) is separate

    def test_a_model_of_the_wrong_direction(self, given, finished, tmp_path):
        forward = {**given, "reverse_model": str(finished)}
        _, data_args, args = arguments(tmp_path / "model", **forward, source_lang="en", target_lang="xx")
        with pytest.raises(DataError, match="translates en to xx; name a model of the opposite direction"):
            with_back_translations(data_args, args)
        _, data_args, args = arguments(tmp_path / "model", **forward, source_lang="xx", target_lang="en")
        assert corpora_of(with_back_translations(data_args, args)).parts[1].tag == BACK_TRANSLATED

    def test_languages_of_a_list(self, given, tmp_path):
        path = tmp_path / "list.yaml"
        path.write_text(f"corpora: [{{source_lang: es, target_lang: en, file: {given['train_file']}}}]")
        save_translator("multilingual", tmp_path / "many")
        text = {"corpora": str(path), "monolingual_target": [given["test_file"]]}
        _, data_args, args = arguments(tmp_path / "model", **text, reverse_model=str(tmp_path / "many"))
        made = corpora_of(with_back_translations(data_args, args)).parts
        assert [part.direction for part in made] == [("es", "en")] * 2

    @pytest.mark.slow
    def test_a_whole_run(self, given, tmp_path):
        results = train(tmp_path / "model", MODEL, **given)
        assert results["train_pairs"] == 84
        tokenizer = load_tokenizer(tmp_path / "model")
        assert BACK_TRANSLATED in tokenizer.get_vocab()
        # A resumed run finds the translations, and the same vocabulary.
        again = train(tmp_path / "model", MODEL, **given, resume_from_checkpoint="last")
        assert again["train_pairs"] == 84 and load_tokenizer(tmp_path / "model").get_vocab() == tokenizer.get_vocab()

    @pytest.mark.slow
    def test_a_model_that_is_continued_learns_the_tag(self, given, finished, tmp_path):
        results = train(tmp_path / "model", {}, **given, model_name_or_path=str(finished), max_steps=1)
        size = len(load_tokenizer(finished))
        assert results["train_pairs"] == 84 and len(load_tokenizer(tmp_path / "model")) == size + 1
