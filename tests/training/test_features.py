"""Feature columns, from a TSV file to a trained model, its translations, pipeline, server and card."""

import shutil

import pytest
from fastapi.testclient import TestClient
from transformers import AutoTokenizer, PreTrainedTokenizerFast, pipeline

from experiments import SHAPE, arguments, set_up, train
from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.data.augmentation import Noise, protect_pairs
from hf_vanilla_transformer.data.features import Features
from hf_vanilla_transformer.data.inspection import inspect_pairs
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.inference.alignment import word_alignments
from hf_vanilla_transformer.inference.preparation import Preparation
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.inference.translation import load, remarks_logger, translate
from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.engine import Engine, ServedModel
from hf_vanilla_transformer.training.distillation import distill
from parallel_text import tsv, write

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = [f"{first}{second}{third}a" for first in "bdfg" for second in "aeiou" for third in "lmnr"]
ENDINGS = {"N;PL": "s", "N.X;PL": "z", "V": "", "V;PST": "d", "": "!"}
COLUMNS = {"source_column": "0", "target_column": "1", "feature_columns": ["2"], "feature_separator": ";"}
TAGS = ["N", "N.X", "PL", "PST", "V"]


def inflected(words=WORDS):
    return [(word, word + ending, tags) for word in words for tags, ending in ENDINGS.items()]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("inflected") / "train.tsv", tsv(inflected()))


@pytest.fixture(scope="module")
def folder(file, tmp_path_factory):
    """A model of all interfaces, trained with noise, validation and test pairs."""
    folder = tmp_path_factory.mktemp("model") / "model"
    options = {**COLUMNS, "tokenizer_algorithm": "character", "augment": "lower=0.5,typos=0.5", "max_steps": 8}
    splits = {"validation_split_size": 30, "test_file": file}
    train(folder, model={**SHAPE}, train_file=file, **splits, **options)
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    return load(str(folder), device="cpu")


def tokens(tokenizer, source):
    side = getattr(tokenizer, "source_tokenizer", tokenizer)
    return side.convert_ids_to_tokens(tokenizer(source)["input_ids"])


class TestTokens:
    @pytest.mark.parametrize("separate", [False, True])
    @pytest.mark.parametrize("algorithm", ["bpe", "unigram", "character", "whitespace"])
    def test_each_tag_is_one(self, algorithm, separate, file, tmp_path):
        model = {**SHAPE, "tokenizer_algorithm": algorithm, "separate_vocabularies": separate, "vocab_size": 800}
        trained = set_up(tmp_path / "model", model | {"min_frequency": 1}, train_file=file, **COLUMNS)
        source = "bala\tN.X;V; PL;N.XY"
        assert tokens(trained.tokenizer, source)[-5:] == ["\tN.X", "\tV", "\tPL", "\t<unk>", "</s>"]
        ids = trained.tokenizer(source)["input_ids"]
        trained.tokenizer.save_pretrained(tmp_path / "saved")
        assert AutoTokenizer.from_pretrained(tmp_path / "saved")(source)["input_ids"] == ids
        if not separate:
            plain = PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
            assert plain("bala\tN.X\tV\tPL\t<unk>")["input_ids"] == ids

    def test_letters_are_learned_without_tags(self, loaded):
        _, tokenizer = loaded
        tags = {f"\t{tag}" for tag in (*TAGS, "<unk>")}
        assert {*tokenizer.get_vocab()} == tags | {"<pad>", "<s>", "</s>", "<unk>"} | {*"abdefgilmnorsuz!"}

    def test_text_and_batches_stay(self, loaded):
        _, tokenizer = loaded
        assert tokens(tokenizer, "NV;PL")[:-1] == ["<unk>", "<unk>", "<unk>", "<unk>", "<unk>"]
        batch = tokenizer(["bala\tV", "b"], text_target=["bala", "ba"])
        assert batch["input_ids"] == [tokenizer("bala\tV")["input_ids"], tokenizer("b")["input_ids"]]
        assert tokenizer("bala\t")["input_ids"] == tokenizer("bala")["input_ids"]

    def test_without_a_separator_a_cell_is_a_tag(self, file, tmp_path):
        options = {**COLUMNS, "feature_separator": None}
        tokenizer = set_up(tmp_path / "model", {**SHAPE, "vocab_size": 800}, train_file=file, **options).tokenizer
        assert tokens(tokenizer, "bala\tN;PL")[-2:] == ["\tN;PL", "</s>"]

    def test_columns_share_tags(self, tmp_path):
        rows = [("V", word, word, "PL;V") for word in WORDS]
        file = write(tmp_path / "two.tsv", tsv([("kind", "word", "form", "more"), *rows]))
        names = {"source_column": "word", "target_column": "form", "feature_columns": ["more", "kind"]}
        model = {**SHAPE, "tokenizer_algorithm": "character"}
        trained = set_up(tmp_path / "model", model, train_file=file, feature_separator=";", **names)
        assert trained.text.train[0]["source"] == "bala\tPL;V\tV"
        assert tokens(trained.tokenizer, "bala\tPL;V\tV")[-4:] == ["\tPL", "\tV", "\tV", "</s>"]

    def test_another_tokenizer_is_refused(self):
        plain = PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(["a"]).backend_tokenizer, feature_columns=1)
        with pytest.raises(DataError, match="need a tokenizer of this package, not"):
            Features.of(plain)


class TestTranslation:
    def test_command_reads_lines_and_the_training_file(self, folder, file, tmp_path, capsys):
        lines = write(tmp_path / "lines.txt", tsv((word, tags) for word, _, tags in inflected(WORDS[:3])))
        rows = write(tmp_path / "rows.tsv", tsv(inflected(WORDS[:3])))
        outputs = []
        for name, words in {lines: [], rows: ["--source_column", "0", "--feature_columns", "2"]}.items():
            main(["translate", "--model", str(folder), "--input", name, *words])
            outputs.append(capsys.readouterr().out)
        assert outputs[0] == outputs[1] and outputs[0].count("\n") == 15

    @pytest.mark.parametrize("line", ["bala", "bala\tV\tPL"])
    def test_other_columns_are_refused(self, line, loaded):
        cells = line.count("\t") + 1
        with pytest.raises(ValueError, match=f"sentence 2 has {cells} of 2 columns: 'bala"):
            translate(*loaded, ["bala\tV", line])
        with pytest.raises(ValueError, match=f"source 1 has {cells} of 2 columns"):
            score(*loaded, [line], ["bala"])

    def test_unknown_tags_are_named(self, loaded, caplog, monkeypatch):
        monkeypatch.setattr(remarks_logger, "propagate", True)
        rows = translate(*loaded, ["bala\tV;OPT;X", "bala\tV;X", "bala\tV"], max_new_tokens=3)
        remarks = [[remark for remark in row[0].remarks or () if remark.startswith("tag")] for row in rows]
        assert remarks == [["tag OPT", "tag X"], ["tag X"], []]
        assert "1 had the tag OPT, which training did not show and 2 had the tag X" in caplog.text

    def test_rules_leave_tags_alone(self, loaded):
        preparation = Preparation(*loaded, rules=["all"])
        (text,) = preparation.prepare([" BALA. Bela @ann   dala \tN;PL\n\nbala\t"], split="always")
        first, second = text.sentences
        assert first.cells == "\tN;PL" and first.input_text.endswith("\tN;PL")
        assert first.text == first.text.strip() and "@ann" not in first.text
        assert (second.input_text, text.layout.gaps) == ("bala\t", ("", "\n\n", ""))

    def test_source_and_tags_reach_the_model_as_in_training(self, loaded):
        model, tokenizer = loaded
        (text,) = Preparation(model, tokenizer).prepare(["bala\tN;PL"])
        assert list(text.sentences[0].ids) == tokenizer("bala\tN;PL")["input_ids"]

    def test_pipeline(self, folder, loaded):
        translator = pipeline("translation", model=str(folder), device="cpu")
        expected = [row[0].text for row in translate(*loaded, ["bala\tN;PL", "bela\tV"])]
        assert [row["translation_text"] for row in translator(["bala\tN;PL", "bela\tV"])] == expected
        with pytest.raises(ValueError, match="sentence 1 has 1 of 2 columns"):
            translator("bala")

    def test_server(self, loaded):
        engine = Engine([ServedModel("forms", *loaded, patience=0.0)])
        client = TestClient(create_application(engine), raise_server_exceptions=False)
        expected = [row[0].text for row in translate(*loaded, ["bala\tN;PL", "bela\tX"])]
        answer = client.post("/v1/translations", json={"text": "bala\tN;PL\nbela\tX"}).json()["translations"][0]
        assert answer["text"] == "\n".join(expected) and "tag X" in answer["remarks"]
        body = {"q": "bala\tN;PL", "source": "en", "target": "xx"}
        assert client.post("/translate", json=body).json()["translatedText"] == expected[0]
        refused = client.post("/v1/translations", json={"text": "bala"})
        assert refused.status_code == 422 and "a source has 1 of 2 columns: 'bala'" in refused.text
        engine.close()

    def test_words_are_those_of_the_text(self, loaded):
        (links,) = word_alignments(*loaded, ["bala\tN;PL"], ["bala bala"])
        assert links == [(0, 0), (0, 1)]

    def test_reranker_is_refused(self, loaded):
        with pytest.raises(ValueError, match="`reranker` cannot tell the tags"):
            translate(*loaded, ["bala\tV"], reranker=lambda sources, rows: rows, num_beams=2)

    def test_feature_columns_alone_are_refused(self, folder, capsys):
        with pytest.raises(SystemExit):
            main(["translate", "--model", str(folder), "--feature_columns", "2"])
        assert "--feature_columns needs --source_column" in capsys.readouterr().err


class TestTraining:
    def test_card_shows_the_columns(self, folder):
        card = (folder / "README.md").read_text()
        assert 'tokenizer(["bala\\tN;PL"], return_tensors="pt")' in card
        assert "1 column of tags, separated by tabs; `;` separates" in card and "\nbala\tN;PL\n```" in card
        assert "`--source_column 0 --feature_columns 2`" in card

    def test_noise_and_items_leave_tags_alone(self, loaded):
        _, tokenizer = loaded
        texts = {"source": ["Balala Belele\tN;PL;ABCDEF"], "target": ["x"]}
        noisy = {Noise({"lower": 1, "typos": 1}, 0, tokenizer)(texts, epoch)["source"][0] for epoch in range(20)}
        assert len(noisy) > 5 and all(source.endswith("\tN;PL;ABCDEF") for source in noisy)
        assert all(source.partition("\t")[0].islower() for source in noisy)
        items = {"source": ["a@b.org\ta@b.org"], "target": ["a@b.org"]}
        assert protect_pairs(items, Features(1)) == {"source": ["⟦1⟧\ta@b.org"], "target": ["⟦1⟧"]}

    def test_facts_are_those_of_the_text(self, loaded):
        facts = Preparation(*loaded).facts
        assert facts.usual_case == "lower" and not facts.has_capitals
        assert not Preparation(*loaded).is_cased

    def test_a_trained_model_keeps_its_columns(self, folder, file, tmp_path):
        shutil.copytree(folder, tmp_path / "old")
        model = {"model_name_or_path": str(tmp_path / "old")}
        more = write(tmp_path / "more.tsv", tsv([*inflected(), ("bala", "balax", "NEW")]))
        tuned = set_up(tmp_path / "new", model, train_file=more, **COLUMNS)
        assert tokens(tuned.tokenizer, "bala\tNEW")[-2:] == ["\tNEW", "</s>"]
        with pytest.raises(DataError, match="was trained with feature columns; name those"):
            set_up(tmp_path / "other", model, train_file=file, source_column="0", target_column="1")

    def test_guided_alignment_links_words_of_the_text(self, file, tmp_path):
        trained = set_up(tmp_path / "model", {**SHAPE}, train_file=file, guided_alignment="auto", **COLUMNS)
        tags = [trained.tokenizer.convert_tokens_to_ids(f"\t{tag}") for tag in TAGS]
        for row in trained.ids.train:
            linked = {row["input_ids"][token] for token in row["alignments"][::2]}
            assert linked and not linked.intersection(tags)

    def test_tags_are_no_words_to_the_preset_auto(self, file, tmp_path):
        small = "d_model=16,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"
        model = {"preset": "auto", "vocab_size": 800, "config_overrides": small}
        trained = set_up(tmp_path / "model", model, train_file=file, **COLUMNS)
        assert (trained.plan.data_args.guided_alignment, trained.plan.args.augment) == (None, "none")

    def test_corpora_have_the_columns_of_the_options(self, file, tmp_path):
        entry = f"file: {file}, source_lang: a, target_lang"
        corpora = write(
            tmp_path / "corpora.yaml", f"corpora: [{{{entry}: b}}, {{{entry}: c, filters: [equal, script]}}]"
        )
        trained = set_up(tmp_path / "model", {**SHAPE, "vocab_size": 800}, corpora=corpora, **COLUMNS)
        assert tokens(trained.tokenizer, "bala\tN;PL")[-3:] == ["\tN", "\tPL", "</s>"]
        assert len(trained.ids.train) == 2 * len(inflected())
        write(tmp_path / "corpora.yaml", f"corpora: [{{{entry}: b, both_directions: true}}]")
        with pytest.raises(DataError, match="line 1: `both_directions` would have no `feature_columns`"):
            set_up(tmp_path / "other", {**SHAPE}, corpora=corpora, **COLUMNS)

    def test_teacher_and_text_must_both_have_features(self, loaded, file, tmp_path):
        plain = {"train_file": file, "source_column": "0", "target_column": "1"}
        with pytest.raises(DataError, match="teacher and text must both have feature columns, or neither"):
            distill(*loaded, *arguments(tmp_path / "student", {**SHAPE}, **plain))


def test_features_do_not_count_as_odd():
    pairs = [("line", {"source": f"{word}\tN;PL;NOM;ACC;DAT", "target": word}) for word in ["мама", "папа"] * 50]
    _, findings = inspect_pairs(lambda: pairs, has_features=True)
    assert [finding.kind for finding in findings] == ["repeated"]
