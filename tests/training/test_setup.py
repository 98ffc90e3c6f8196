"""Set-up of an experiment: arguments, text of every kind, tokenizers, models, and errors before training."""

import sys
from importlib.util import find_spec
from itertools import product

import datasets
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.trainer_utils import EvalPrediction

from experiments import SHAPE, TINY, arguments, sentences, set_up
from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.corpora import Part
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.pretrained.languages import language_pairs
from hf_vanilla_transformer.pretrained.loading import load_model, load_tokenizer
from hf_vanilla_transformer.training.arguments import ModelArguments, VanillaTransformerTrainingArguments, with_fields
from hf_vanilla_transformer.training.plan import possible_schedule, preset_smoothing, suitable_metrics
from hf_vanilla_transformer.training.setup import check_arguments, set_generation_defaults
from hf_vanilla_transformer.training.text_splits import TextSplits, load_text
from hf_vanilla_transformer.training.tokenizer import load_or_train_tokenizer
from parallel_text import tsv, write
from tables import looped

pytestmark = pytest.mark.usefixtures("one_thread")


class TestText:
    def test_no_training_pairs(self, tmp_path):
        with pytest.raises(DataError, match="there are no training pairs"):
            set_up(tmp_path / "model", test_file=write(tmp_path / "x.tsv", "a\tb\n"))

    def test_a_held_out_split_of_a_stream_may_be_empty(self, tmp_path):
        data_args = DataArguments(
            train_file=write(tmp_path / "x.tsv", tsv(sentences(2))), streaming=True, validation_split_size=1e-9
        )
        with pytest.raises(DataError, match="there are no validation pairs; raise `validation_split_size`"):
            load_text(data_args)


class TestSchedule:
    @pytest.mark.parametrize(("given", "expected"), [({}, 5), ({"eval_steps": 7}, 7)])
    def test_a_stream_is_evaluated_by_steps(self, tmp_path, given, expected):
        args = VanillaTransformerTrainingArguments(str(tmp_path), max_steps=100, **given)
        pairs = datasets.Dataset.from_dict({"source": ["a"], "target": ["b"]})
        chosen = possible_schedule(args, TextSplits(pairs.to_iterable_dataset(), validation=pairs))
        assert (chosen["eval_strategy"], chosen["eval_steps"]) == ("steps", expected)
        assert (chosen["save_strategy"], chosen["save_steps"]) == ("steps", expected)

    def test_nothing_to_evaluate_on(self, tmp_path, files):
        args = set_up(tmp_path / "model", train_file=files["train_file"]).trainer.args
        assert args.eval_strategy == "no" and not args.load_best_model_at_end
        with pytest.raises(DataError, match="`early_stopping_patience` needs validation pairs"):
            set_up(tmp_path / "stopping", train_file=files["train_file"], early_stopping_patience=1)


class TestTokenizer:
    @pytest.mark.parametrize("algorithm", ["bpe", "character"])
    def test_separate_vocabularies(self, tmp_path, files, algorithm):
        options = {"separate_vocabularies": True, "tokenizer_algorithm": algorithm, "vocab_size": 300}
        experiment = set_up(tmp_path / "model", **files, **options)
        config = experiment.trainer.model.config
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
        assert not config.share_encoder_decoder_embeddings
        assert (config.vocab_size, config.decoder_vocab_size) == (len(tokenizer), tokenizer.target_vocab_size)

    @pytest.mark.parametrize("separate_vocabularies", [False, True])
    def test_it_saves_the_languages(self, tmp_path, files, separate_vocabularies):
        options = {"separate_vocabularies": separate_vocabularies, "vocab_size": 300}
        tokenizer = set_up(tmp_path / "model", **files, **options, source_lang="en", target_lang="es").tokenizer
        tokenizer.save_pretrained(tmp_path / "saved")
        assert language_pairs(load_tokenizer(tmp_path / "saved")) == [("en", "es")]
        unknown = set_up(tmp_path / "other", **files, **options).tokenizer
        assert language_pairs(unknown) == []

    def test_unigram(self, tmp_path, files):
        options = {"tokenizer_algorithm": "unigram", "vocab_size": 60, "min_frequency": None}
        tokenizer = set_up(tmp_path / "model", **files, **options).tokenizer
        assert type(tokenizer.backend_tokenizer.model).__name__ == "Unigram"

    def test_words_that_occur_once_are_left_out(self, tmp_path):
        model_args, _, args = arguments(tmp_path, tokenizer_algorithm="whitespace", min_frequency=None)
        pairs = datasets.Dataset.from_dict({"source": ["ant bee"], "target": ["ant"]})
        words = load_or_train_tokenizer(model_args, args, TextSplits(pairs)).get_vocab()
        assert "ant" in words and "bee" not in words

    def test_of_a_stream(self, tmp_path, files):
        options = {**files, "streaming": True, "max_steps": 4, "lowercase": True}
        tokenizer = set_up(tmp_path / "model", **options).tokenizer
        assert tokenizer.tokenize("ANT") == ["ant"]

    def test_of_another_process(self, tmp_path, finished, monkeypatch):
        """Only the first process trains one; the others load it."""
        model_args, _, args = arguments(finished)
        monkeypatch.setattr(type(args), "process_index", 1)
        tokenizer = load_or_train_tokenizer(model_args, args, TextSplits(datasets.Dataset.from_dict({})))
        assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(finished).get_vocab()

    def test_from_a_folder(self, tmp_path, files):
        tokenizer = train_tokenizer([text for pair in sentences() for text in pair], algorithm="character")
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        options = {"tokenizer_name_or_path": str(tmp_path / "tokenizer")}
        experiment = set_up(tmp_path / "model", SHAPE, **files, **options)
        assert experiment.tokenizer.get_vocab() == tokenizer.get_vocab()

    @pytest.mark.parametrize("name", ["none", "empty"])
    @pytest.mark.parametrize("option", ["tokenizer_name_or_path", "model_name_or_path"])
    def test_what_cannot_be_loaded(self, tmp_path, files, option, name):
        (tmp_path / "empty").mkdir()
        path = str(tmp_path / name)
        with pytest.raises(ValueError, match=f"tokenizer {path} cannot be loaded"):
            set_up(tmp_path / "model", SHAPE if option.startswith("tok") else {}, **files, **{option: path})

    def test_a_tokenizer_without_a_model(self, tmp_path, files):
        train_tokenizer(["a"]).save_pretrained(tmp_path / "empty")
        with pytest.raises(ValueError, match=f"model {tmp_path / 'empty'} cannot be loaded"):
            set_up(tmp_path / "model", {}, **files, model_name_or_path=str(tmp_path / "empty"))
        one = str(tmp_path / "empty" / "tokenizer.json")
        with pytest.raises(ValueError, match=f"{one} cannot be loaded: it is a file; name the folder"):
            set_up(tmp_path / "model", {}, **files, model_name_or_path=one)

    def test_special_tokens_of_another_kind(self, tmp_path, files):
        vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "ant"]
        inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
        special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(tmp_path / "other")
        options = {**files, "tokenizer_name_or_path": str(tmp_path / "other")}
        with pytest.raises(ValueError) as caught:
            set_up(tmp_path / "model", SHAPE, **options)
        remedy = "pad_token_id=1,bos_token_id=0,eos_token_id=2,decoder_start_token_id=0"
        assert "the tokenizer has pad_token_id 1, bos_token_id 0, but the model pad_token_id 0" in str(caught.value)
        assert str(caught.value).endswith(f"`config_overrides={remedy}`")
        set_up(tmp_path / "model", SHAPE, **options, config_overrides=f"{TINY},{remedy}")


class TestModel:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"tokenizer_algorithm": "magic"}, "magic"),
            ({"config_overrides": "d_model=17"}, "`d_model` is 17"),
            ({"config_overrides": "vocab_size=5,decoder_vocab_size=5"}, "the vocab_size of the model is 5"),
            (
                {"config_overrides": f"{TINY},decoder_vocab_size=5", "separate_vocabularies": True},
                "the decoder_vocab_size of the model is 5",
            ),
            ({"config_overrides": "pad_token_id=3"}, "the tokenizer has pad_token_id 0, but the model pad_token_id 3"),
            ({"attn_implementation": "flash_attention_2"}, "`attn_implementation` flash_attention_2 cannot be used"),
            ({"attn_implementation": "flash"}, "`attn_implementation` flash cannot be used"),
            (
                {"attn_implementation": "flex_attention", "use_cpu": True},
                "`attn_implementation` flex_attention has no gradients on a CPU",
            ),
            ({"report_to": "nothing-known"}, "nothing-known is not supported"),
            pytest.param(
                {"report_to": "wandb"},
                "`report_to` cannot be used: .*wandb",
                marks=pytest.mark.skipif(find_spec("wandb") is not None, reason="needs a tool that is not installed"),
            ),
        ],
    )
    def test_faults(self, tmp_path, files, options, message):
        with pytest.raises(ValueError, match=message):
            set_up(tmp_path / "model", **files, **options)

    def test_validation_pairs_are_truncated_to_the_positions(self, tmp_path, files):
        options = {"config_overrides": f"{TINY},position_embedding_type=learned,max_position_embeddings=4"}
        trainer = set_up(tmp_path / "model", **files, **options).trainer
        for side in ("input_ids", "labels"):
            assert max(map(len, trainer.eval_dataset[side])) == 4

    def test_attention(self, tmp_path, files):
        model = set_up(tmp_path / "model", **files, attn_implementation="eager").trainer.model
        assert model.config._attn_implementation == "eager"

    @pytest.mark.parametrize(("beams", "penalty"), [(4, 0.6), (1, None)])
    def test_it_decodes_as_the_final_evaluation(self, tmp_path, files, beams, penalty):
        options = {"final_num_beams": beams, "final_length_penalty": 0.6}
        settings = set_up(tmp_path / "model", **files, **options).trainer.model.generation_config
        assert (settings.num_beams, settings.length_penalty, settings.max_length) == (beams, penalty, 512)

    @pytest.mark.parametrize(("tune_search", "size"), [(True, None), (False, 4)])
    def test_what_was_tuned_for_other_pairs_is_tuned_anew(self, tmp_path, finished, tune_search, size):
        model = load_model(finished)
        model.generation_config.no_repeat_ngram_size = 4
        args = arguments(tmp_path, tune_search=tune_search)[2]
        set_generation_defaults(model, args)
        assert model.generation_config.no_repeat_ngram_size == size

    @pytest.mark.parametrize(("tokenize", "perfect"), [("13a", True), ("none", False)])
    def test_it_scores_by_the_tokenizer(self, tmp_path, tokenize, perfect):
        """13a treats "ANT." and "ANT ." as equal."""
        pairs = [("ant bee cat dog .", "ANT BEE CAT DOG ."), ("bee cat dog eel.", "BEE CAT DOG EEL.")]
        files = {f"{split}_file": write(tmp_path / f"{split}.tsv", tsv(pairs)) for split in ("train", "validation")}
        trainer = set_up(tmp_path / "model", **files, bleu_tokenize=tokenize).trainer
        targets = [pairs[index][1].replace("EEL.", "EEL .") for index in (0, 1)]
        ids = np.array([trainer.processing_class(text).input_ids for text in targets])
        scores = trainer.compute_metrics(EvalPrediction(predictions=ids, label_ids=ids))
        assert scores.keys() == {"bleu", "chrf", "exact_match"}
        assert (scores["bleu"] == pytest.approx(100)) == perfect


class TestSuitableMetrics:
    """BLEU's tokenizer, and the metric of the best model."""

    def chosen(self, tmp_path, targets, language=None, **options):
        _, _, args = arguments(tmp_path, train_file="x.tsv", **options)
        pairs = datasets.Dataset.from_dict({"source": targets, "target": targets})
        splits = TextSplits(pairs, validation=pairs, parts=(Part(target_lang=language),))
        args = with_fields(args, **suitable_metrics(args, splits)[0])
        return args.metric_for_best_model, args.bleu_tokenize, args.greater_is_better

    @looped(
        ("targets", "language", "expected"),
        [
            (["A man sleeps here.", "Yes."], "en", ("bleu", "13a")),
            (["K AE T S", "D AO G"], None, ("bleu", "13a")),
            (["katze", "hund"], "de", ("chrf", "13a")),
            (["CC(=O)Oc1ccccc1C(=O)O", "C1CC1(N)C(=O)O"], None, ("chrf", "13a")),
            (["他喜欢吃苹果。", "今天去学校，明天在家。"], None, ("chrf", "13a")),
            (["他喜欢吃苹果。", "今天去学校，明天在家。"], "zh", ("bleu", "zh")),
            (["他喜欢吃苹果。", "今天去学校，明天在家。"], "zho_Hans", ("bleu", "zh")),
        ],
    )
    def test_they_suit_the_text(self, tmp_path, targets, language, expected):
        assert self.chosen(tmp_path, targets, language) == (*expected, True)

    def test_what_is_given_stays(self, tmp_path):
        options = {"metric_for_best_model": "bleu", "bleu_tokenize": "intl"}
        assert self.chosen(tmp_path, ["cat", "dog"], "zh", **options) == ("bleu", "intl", True)
        assert self.chosen(tmp_path, ["cat"], "xx", metric_for_best_model="loss") == ("loss", "13a", False)

    WORDS = tuple("".join(letters) for letters in product("abcde", repeat=3))
    PHONES = tuple(" ".join(word.upper()) for word in WORDS)

    @looped("targets", [WORDS, PHONES, [f"C{'C' * i}(=O)N" for i in range(120)]])
    def test_words_symbols_and_molecules_have_error_rates(self, tmp_path, targets):
        assert self.chosen(tmp_path, targets) == ("wer", "13a", False)
        assert self.chosen(tmp_path, targets, predict_with_generate=False) == ("loss", "13a", False)
        assert self.chosen(tmp_path, targets, metric_for_best_model="bleu") == ("bleu", "13a", True)

    @looped("metric", ["wer", "ser"])
    def test_error_rates_of_prose(self, tmp_path, metric):
        assert self.chosen(tmp_path, ["A man sleeps here."], metric_for_best_model=metric) == (metric, "13a", False)
        _, _, args = arguments(tmp_path, metric_for_best_model=metric)
        assert args.greater_is_better is False

    def test_a_stream_shows_its_notation(self):
        pairs = datasets.Dataset.from_dict({"source": self.WORDS, "target": self.PHONES})
        assert TextSplits(pairs.to_iterable_dataset()).target_notation.algorithm == "whitespace"
        assert TextSplits(pairs).target_notation.algorithm == "whitespace"

    def test_nothing_is_generated(self, tmp_path):
        assert self.chosen(tmp_path, ["a b c d"], predict_with_generate=False) == ("loss", "13a", False)

    def test_a_tokenizer_that_is_not_installed(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setitem(sys.modules, "MeCab", None)
        assert self.chosen(tmp_path, ["りんごを食べるのが好きです。"], "ja-JP") == ("bleu", "char", True)
        assert "`bleu_tokenize` ja-mecab cannot be used" in caplog.text and "BLEU counts characters" in caplog.text


class TestCheckArguments:
    @looped(
        ("options", "message"),
        [
            ({"early_stopping_patience": 1, "eval_strategy": "no"}, "needs evaluations; set `eval_strategy`"),
            ({"bf16_full_eval": True}, "`bf16_full_eval` has no effect: evaluations during training use the"),
            ({"bleu_tokenize": "14a"}, "`bleu_tokenize` 14a is unknown; use one of none, zh, 13a"),
            ({"metric_for_best_model": "bleurt"}, "`metric_for_best_model` bleurt is unknown; use auto, bleu, chrf"),
            (
                {"predict_with_generate": False, "metric_for_best_model": "bleu"},
                "bleu needs `predict_with_generate`; use loss without it",
            ),
            ({"streaming": True}, "a stream has no epochs; set the length of training with `max_steps`"),
            ({"num_train_epochs": 0.0}, "`num_train_epochs` is 0; it must be positive"),
        ],
    )
    def test_faults(self, tmp_path, options, message):
        _, data_args, args = arguments(tmp_path, train_file="x.tsv", **options)
        with pytest.raises(ValueError, match=message):
            check_arguments(data_args, args, None)

    def test_they_stay_as_they_are(self, tmp_path):
        _, data_args, args = arguments(tmp_path / "model", train_file="x.tsv")
        before = [{**vars(each)} for each in (data_args, args)]
        check_arguments(data_args, args, None)
        assert [vars(data_args), vars(args)] == before and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("model", "given", "assigned", "expected"),
    [
        ({"preset": "table3-d-smoothing0.2"}, None, None, 0.2),
        ({"preset": "table3-d-smoothing0.2"}, 0.1, None, 0.1),
        ({"preset": "table3-d-smoothing0.2"}, None, 0.3, 0.3),
        ({"preset": "base"}, None, None, 0.1),
        ({"model_name_or_path": "there"}, None, None, 0.1),
    ],
)
def test_a_preset_brings_its_smoothing(tmp_path, model, given, assigned, expected):
    args = VanillaTransformerTrainingArguments(str(tmp_path), label_smoothing_factor=given)
    args.label_smoothing_factor = assigned or args.label_smoothing_factor
    chosen = preset_smoothing(args, ModelArguments(**model))
    assert with_fields(args, **chosen).label_smoothing_factor == expected
