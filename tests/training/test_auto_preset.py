"""The preset `auto`: the corpus size determines settings that were not given."""

import shutil

import datasets
import pytest
import yaml

from experiments import arguments, assert_equal_weights, set_up, train, weights
from hf_vanilla_transformer.data.corpora import Part
from hf_vanilla_transformer.data.features import Features
from hf_vanilla_transformer.data.reading import PART_COLUMN
from hf_vanilla_transformer.training import auto_preset, setup
from hf_vanilla_transformer.training.arguments import PRESET_DEFAULTS, parse_overrides
from hf_vanilla_transformer.training.auto_preset import (
    TIERS,
    Tier,
    count_words,
    dropout_of,
    resolve_auto_preset,
    told_apart,
)
from hf_vanilla_transformer.training.checkpoints import newest_checkpoint, trained_with
from hf_vanilla_transformer.training.report import start_summary
from hf_vanilla_transformer.training.text_splits import TextSplits
from paths import ROOT
from tables import looped

pytestmark = pytest.mark.usefixtures("one_thread")

AUTO = {"preset": "auto"}
# Resets what `arguments` sets to "not given".
DEFAULTS = {"max_tokens": None, "warmup_steps": None, "num_train_epochs": None}
EPOCHS = range(3, 61)
SMALL = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16}


def pairs(words: int) -> datasets.Dataset:
    """A pair with this many words of five letters, half of them on each side."""
    return datasets.Dataset.from_dict({"source": ["words " * (words // 2)], "target": ["words " * (words // 2)]})


def corpus(words: int) -> TextSplits:
    return TextSplits(pairs(words), validation=datasets.concatenate_datasets([pairs(60)] * 50))


@pytest.fixture
def small_tier(monkeypatch):
    training = {"learning_rate": 0.01, "warmup_steps": 5, "lr_scheduler_type": "cosine", "guided_alignment": "auto"}
    monkeypatch.setattr(
        auto_preset, "TIERS", (Tier(1e9, 0, "tiny", 300, {**SMALL, "dropout": 0.25}, training, EPOCHS),)
    )
    monkeypatch.setattr(auto_preset, "REASONS", dict.fromkeys([*SMALL, "dropout"], "small") | auto_preset.REASONS)


@pytest.mark.parametrize("tier", TIERS[:-1], ids=lambda tier: f"{tier.words:,} words")
def test_the_size_decides(tier, tmp_path, monkeypatch):
    limit, following = int(tier.words), TIERS[TIERS.index(tier) + 1]
    monkeypatch.setattr(auto_preset, "PAIRS_PER_TOKEN", 1e-9)
    monkeypatch.setattr(auto_preset, "MAX_COPIED_PAIRS", 0)
    for size, expected in ((limit, tier), (limit + 1, following)):
        model_args, data_args, args = arguments(tmp_path, AUTO, **DEFAULTS)
        monkeypatch.setattr(auto_preset, "count_words", lambda train, size=size: size)
        chosen, data_args, args, lines = resolve_auto_preset(model_args, data_args, args, corpus(60))
        shown = {line.split()[0] for line in lines[1:]}
        assert (chosen.preset, chosen.vocab_size) == (expected.preset, expected.vocab_size)
        assert expected.training.items() <= {**vars(data_args), **vars(args)}.items()
        assert args.num_train_epochs == min(max(round(expected.words_in_all / size), 10), 60)
        settings = {"dropout", *expected.overrides, *expected.training}
        assert len(lines) == 3 + len(settings) + (args.eval_strategy == "steps")
        assert shown >= {"vocab_size", "num_train_epochs", "dropout", "warmup_steps"}
        assert model_args.preset == "auto" and model_args.vocab_size is None


@looped(
    ("words", "name", "value"),
    [
        *((words, "num_train_epochs", n) for words, n in ((100, 60), (10_000, 50), (25_000, 20), (1_000_000, 10))),
        *((words, "vocab_size", n) for words, n in ((1000, 4000), (356_000, 4000), (642_000, 8000))),
        *((words, "vocab_size", n) for words, n in ((1_257_000, 16_000), (2e6, 20_000))),
    ],
)
def test_epochs_and_vocabulary_follow_from_the_size(words, name, value):
    assert Tier(1e9, 500_000, "tiny", 20_000, {}, {}).settings(words, words)[name] == value


@pytest.mark.parametrize(
    ("name", "words", "given"),
    [
        ("multi30k", 642_000, {}),
        ("multi30k_lc_norm_tok", 655_000, {"num_train_epochs": 22}),
        ("tatoeba", 1_257_000, {"num_train_epochs": 3, "dropout": 0.2}),
    ],
)
def test_the_tier_of_small_corpora_is_the_recipes_that_were_measured(name, words, given):
    """Word counts are those of the training texts; `given` is from docs/choosing.md."""
    recipe = yaml.safe_load((ROOT / "scripts" / "recipes" / f"{name}.yaml").read_text(encoding="utf-8"))
    tier = TIERS[0]
    settings = tier.settings(words, words) | given
    dropout = settings.pop("dropout", dropout_of(settings["num_train_epochs"]))
    for name in ("augment", "tune_search"):
        if settings.pop(name) != recipe.get(name):
            # Measured on clean text, with the usual search.
            assert name not in recipe
    assert parse_overrides(recipe["config_overrides"]) == {"dropout": dropout}
    assert recipe["preset"] == tier.preset and settings.items() <= recipe.items()


def test_a_search_that_cannot_be_tuned_is_said(tmp_path):
    text = TextSplits(corpus(60).train, validation=pairs(60))
    _, _, args, lines = resolve_auto_preset(*arguments(tmp_path, AUTO, **DEFAULTS), text)
    assert not args.tune_search and "  tune_search False: needs 50 validation pairs" in lines


def test_what_is_left_as_in_the_paper_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(auto_preset, "count_words", lambda train: 300_000_000)
    parts = arguments(tmp_path, AUTO, **DEFAULTS, max_steps=2000)
    _, _, args, lines = resolve_auto_preset(*parts, corpus(60))
    assert {"  dropout 0.3: the paper's", "  warmup_steps 4000: the paper's"} <= {*lines}
    assert args.warmup_steps == 4000


@looped(
    ("pairs", "vocab_size"),
    [(1000, 4000), (14_500, 4000), (29_000, 8000), (1e6, 12_000)],
)
def test_few_pairs_have_a_small_vocabulary(pairs, vocab_size):
    assert TIERS[0].settings(960_000, 960_000, pairs)["vocab_size"] == vocab_size


@pytest.mark.parametrize(
    ("number", "options", "augment"),
    [
        (5000, {}, "default,copies=0.5"),
        (5001, {}, "default"),
        (5000, {"augment": "default"}, "default"),
        (5000, {"separate_vocabularies": True}, "default"),
        (5000, {"features": Features(1)}, "default"),
        (5000, {"directions": (("en", "de"), ("de", "en"))}, "default"),
        (5000, {"target": "source"}, "default"),
    ],
    ids=["few pairs", "many pairs", "given", "separate vocabularies", "tags", "several directions", "one language"],
)
def test_targets_are_copied_if_there_are_few_pairs(number, options, augment, tmp_path):
    words = {"source": "source", "target": options.pop("target", "target")}
    sides = {side: [f"{word} words {i}" for i in range(number)] for side, word in words.items()}
    if features := options.pop("features", None):
        sides["source"] = [f"{source}\ttag" for source in sides["source"]]
    directions = options.pop("directions", (("en", "de"),))
    parts = tuple(Part(*direction) for direction in directions)
    text = TextSplits(datasets.Dataset.from_dict({**sides, PART_COLUMN: [0] * number}), parts=parts, features=features)
    _, _, args, lines = resolve_auto_preset(*arguments(tmp_path, AUTO, **DEFAULTS | options), text)
    assert args.augment == augment
    assert any(line.startswith(f"  augment {augment}") for line in lines)


def test_sides_are_told_apart_by_words_of_other_pairs():
    assert told_apart(["the dog", "the cat", "the hen"], ["der Hund", "der Kater", "der Hahn"]) == 1
    assert told_apart(["a b", "c d"], ["b a", "d c"]) == told_apart(["a"], ["b"]) == 0
    assert told_apart(["", ""], ["a", "b"]) == 0
    assert told_apart(["one a", "c d", "one b", "e f"], ["two a", "c d", "two b", "e f"]) == 0.5


@pytest.mark.parametrize("options", [{}, {"drop_repeated": False}])
def test_repeated_pairs_do_not_enlarge_the_vocabulary(options, tmp_path, monkeypatch):
    monkeypatch.setattr(auto_preset, "count_words", lambda train: 480_000 * len(train))
    monkeypatch.setattr(auto_preset, "PAIRS_PER_TOKEN", 1e-9)

    def vocab_size(sources: list[str], targets: list[str]) -> int:
        text = TextSplits(datasets.Dataset.from_dict({"source": sources, "target": targets}))
        return resolve_auto_preset(*arguments(tmp_path, AUTO, **DEFAULTS | options), text)[0].vocab_size

    assert vocab_size(["a dog", "a cat"], ["ein Hund", "eine Katze"]) == 12_000
    assert vocab_size(["a dog", "a dog"], ["ein Hund", "der Hund"]) == 12_000
    assert vocab_size(["a dog", "a dog"], ["ein Hund", "ein Hund "]) == 6000


def test_every_tier_can_be_used(tmp_path):
    for tier in TIERS:
        overrides = ",".join(f"{name}={value}" for name, value in tier.overrides.items()) or None
        options = {"preset": tier.preset, "vocab_size": tier.vocab_size, "config_overrides": overrides}
        arguments(tmp_path, options, **tier.training)
        assert auto_preset.REASONS.keys() >= tier.settings(tier.words, tier.words).keys()
        # Only for these fields is it known whether they were given.
        assert {*PRESET_DEFAULTS, "learning_rate", "guided_alignment"} >= tier.training.keys()
    assert [tier.words for tier in TIERS] == sorted(tier.words for tier in TIERS) and TIERS[-1].words == float("inf")


@looped(
    ("options", "steps"),
    [
        # 3 epochs of 9,333 words, which is 9,333 x 1.4 tokens or 1 pair.
        ({"max_tokens": 1000}, 3),
        ({"max_tokens": 1000, "num_train_epochs": 5}, 5),
        ({"max_tokens": 0}, 1),
        ({"max_tokens": 1000, "gradient_accumulation_steps": 2}, 1),
        ({"max_steps": 40}, 4),
        ({"max_steps": 1000}, 5),
    ],
)
def test_a_short_run_has_a_short_warmup(tmp_path, small_tier, options, steps):
    model_args, data_args, args = arguments(tmp_path, AUTO, **DEFAULTS | options)
    _, data_args, args, lines = resolve_auto_preset(model_args, data_args, args, corpus(9334))
    assert args.warmup_steps == steps
    assert any(line.startswith(f"  warmup_steps {steps}: ") for line in lines)


@looped(
    ("options", "dropout"),
    [
        ({"num_train_epochs": 14}, 0.1),
        ({"num_train_epochs": 15}, 0.3),
        # 13 steps per epoch.
        ({"max_steps": 190}, 0.1),
        ({"max_steps": 200}, 0.3),
        # Until the number of epochs is known.
        ({"time_budget": 60}, 0.1),
        ({"num_train_epochs": 5, "config_overrides": "dropout=0.3"}, 0.3),
    ],
)
def test_dropout_follows_from_the_epochs(tmp_path, monkeypatch, options, dropout):
    monkeypatch.setattr(auto_preset, "TIERS", (Tier(1e9, 0, "tiny", 300, {}, {"warmup_steps": 5}),))
    parts = arguments(tmp_path, AUTO, **{**DEFAULTS, "max_tokens": 1000, **options})
    chosen, _, args, lines = resolve_auto_preset(*parts, corpus(9334))
    assert chosen.config_overrides == f"dropout={dropout}" and args.dropout_is_open == ("time_budget" in options)
    assert [line for line in lines if line.startswith(f"  dropout {dropout}")]


def test_a_resumed_run_keeps_its_dropout(tmp_path, files, monkeypatch):
    monkeypatch.setattr(auto_preset, "tier_of", lambda corpus: Tier(1e9, 0, "tiny", 300, {}, {"warmup_steps": 5}))
    options = {**files, **DEFAULTS, "max_tokens": 400}
    train(tmp_path / "model", AUTO, **options | {"num_train_epochs": 1})
    longer = {"num_train_epochs": 15, "resume_from_checkpoint": "last"}
    checkpoint = newest_checkpoint(tmp_path / "model")
    parts = arguments(tmp_path / "model", AUTO, **options | longer)
    experiment = setup.set_up(*parts, checkpoint)
    assert experiment.trainer.model.config.dropout == 0.1
    assert "  dropout 0.1, the checkpoint's" in experiment.plan.reasons


@pytest.mark.parametrize("noise", ["none", "default"])
def test_a_resumed_run_keeps_its_noise(tmp_path, files, monkeypatch, noise):
    """Whatever a later version would choose."""
    options, folder = {**files, **DEFAULTS, "max_tokens": 400, "num_train_epochs": 1}, tmp_path / "model"
    for augment, can_copy, resumed in ((noise, False, {}), ("default", True, {"resume_from_checkpoint": "last"})):
        tier = Tier(1e9, 0, "tiny", 300, {}, {"warmup_steps": 5, "augment": augment})
        monkeypatch.setattr(auto_preset, "tier_of", lambda corpus, tier=tier: tier)
        monkeypatch.setattr(auto_preset, "_can_copy", lambda *parts, can_copy=can_copy: can_copy)
        train(folder, AUTO, **options, **resumed)
    recorded = trained_with(newest_checkpoint(folder))["augment"]
    parts = arguments(folder, AUTO, **options, **resumed)
    plan = setup.set_up(*parts, newest_checkpoint(folder)).plan
    assert plan.args.augment == recorded and "copies" not in recorded
    assert f"  augment {recorded}, the checkpoint's" in plan.reasons


def test_what_is_given_stays(tmp_path, small_tier):
    given = {"config_overrides": "dropout=0.1,norm_position=pre", "vocab_size": 77, "learning_rate": 0.02}
    changed = {"warmup_steps": 7, "guided_alignment": "none"}
    model_args, data_args, args = arguments(tmp_path, AUTO | given, **DEFAULTS | changed)
    chosen, data_args, args, lines = resolve_auto_preset(model_args, data_args, args, corpus(7700))
    assert data_args.links is None
    assert chosen.vocab_size == 77 and (args.learning_rate, args.warmup_steps, args.num_train_epochs) == (0.02, 7, 3)
    assert set(chosen.config_overrides.split(",")) >= {"dropout=0.1", "norm_position=pre", "d_model=16"}
    shown = [line for line in lines if "as given" in line]
    assert shown == [
        "  vocab_size 77, as given", "  dropout 0.1, as given", "  learning_rate 0.02, as given",
        "  warmup_steps 7, as given", "  guided_alignment none, as given",
    ]  # fmt: skip  # as they are printed
    assert lines[0] == "preset       tiny, by auto: 0.0077 million words in 1 pairs"
    assert "  num_train_epochs 3: 0.023 million words in total" in lines


def test_defaults_that_are_given_stay(tmp_path, monkeypatch):
    given = dict(PRESET_DEFAULTS, guided_alignment="none", learning_rate=1e-4)
    training = {name: "of the tier" for name in given}
    monkeypatch.setattr(auto_preset, "TIERS", (Tier(1e9, 0, "tiny", 300, {}, training),))
    monkeypatch.setattr(auto_preset, "REASONS", dict.fromkeys(training, "") | auto_preset.REASONS)
    model_args, data_args, args = arguments(tmp_path, AUTO, **given)
    _, data_args, args, lines = resolve_auto_preset(model_args, data_args, args, corpus(60))
    assert {name: getattr(data_args if name == "guided_alignment" else args, name) for name in given} == given
    assert {f"  {name} {value}, as given" for name, value in given.items()} <= {*lines}


def test_what_is_assigned_later_stays(tmp_path, small_tier):
    model_args, data_args, args = arguments(tmp_path, AUTO, **DEFAULTS)
    args.warmup_steps, args.lr_scheduler_type = 7, "linear"
    _, data_args, args, lines = resolve_auto_preset(model_args, data_args, args, corpus(60))
    assert (args.warmup_steps, args.lr_scheduler_type, args.learning_rate) == (7, "linear", 0.01)
    assert {"  warmup_steps 7, as given", "  lr_scheduler_type linear, as given"} <= {*lines}


@pytest.mark.parametrize(
    ("options", "name", "value", "line"),
    [
        (
            {"lr_scheduler_kwargs": {"timescale": 5}},
            *("lr_scheduler_type", "inverse_sqrt", "lr_scheduler_type inverse_sqrt"),
        ),
        ({"max_steps": 50}, "num_train_epochs", 20, "num_train_epochs 50 steps"),
        ({"tokenizer_name_or_path": "there"}, "max_tokens", 8192, "vocab_size the tokenizer's"),
    ],
)
def test_what_follows_from_something_given_stays(tmp_path, small_tier, options, name, value, line):
    _, _, args, lines = resolve_auto_preset(*arguments(tmp_path, AUTO, **DEFAULTS | options), corpus(60))
    assert getattr(args, name) == value
    assert f"  {line}, as given" in lines


def test_a_vocabulary_of_no_tokens_is_refused(files, tmp_path, small_tier):
    with pytest.raises(ValueError, match="`vocab_size` is 0; it must be positive"):
        set_up(tmp_path / "model", AUTO | {"vocab_size": 0}, **files)


def test_other_presets_are_left_alone(tmp_path):
    parts = arguments(tmp_path)
    assert resolve_auto_preset(*parts, corpus(60)) == (*parts, [])


PAIR = {"source": "A small word .", "target": "Ein kleines Wort ."}


@pytest.mark.parametrize(
    ("pair", "options", "reason"),
    [
        (PAIR, {"packing": True}, "not with `packing`"),
        (PAIR | {"target": "一个小词。"}, {}, "words are not separated by white space"),
        (
            PAIR | {"source": "คำเล็กๆคำหนึ่งที่ไม่มีช่องว่าง และอีกคำหนึ่งซึ่งยาวกว่านั้น"},
            {},
            "words are not separated by white space",
        ),
        (PAIR | {"target": "Lentokoneen suihkuturbiinimoottori käynnistettiin ."}, {}, None),
        (PAIR, {}, None),
    ],
    ids=["packing", "Chinese", "Thai", "Finnish", "German"],
)
def test_what_is_not_guided(pair, options, reason, tmp_path, small_tier):
    model_args, data_args, args = arguments(tmp_path, AUTO, **options)
    _, data_args, args, lines = resolve_auto_preset(
        model_args, data_args, args, TextSplits(datasets.Dataset.from_list([pair] * 3))
    )
    assert data_args.links == (None if reason else "auto")
    expected = f"none: {reason}" if reason else "auto: an attention head learns word alignment sooner"
    assert f"  guided_alignment {expected}" in "\n".join(lines)


def test_words_are_estimated(monkeypatch):
    assert count_words(pairs(600)) == 600
    characters = datasets.Dataset.from_dict({"source": ["猫" * 20], "target": ["words " * 10]})
    assert count_words(characters) == 20
    monkeypatch.setattr(auto_preset, "SAMPLE", 10)
    assert count_words(datasets.concatenate_datasets([pairs(600)] * 97)) == 97 * 600


def test_a_stream_has_no_size(files, tmp_path):
    with pytest.raises(ValueError, match="`preset=auto` needs the size of the training text; with `streaming`"):
        set_up(tmp_path / "model", AUTO, train_file=files["train_file"], streaming=True, max_steps=9)


def test_a_run_says_what_was_chosen(files, tmp_path, small_tier):
    # Batches so small that a tenth of the steps exceeds the tier's warm-up.
    parts = arguments(tmp_path / "model", AUTO, **files, **DEFAULTS | {"max_tokens": 30})
    before = [{**vars(part)} for part in parts]
    experiment = setup.set_up(*parts)
    assert [{name: vars(part)[name] for name in own} for part, own in zip(parts, before, strict=True)] == before
    text = start_summary(experiment)
    assert "preset       tiny, by auto: " in text and "\n  lr_scheduler_type cosine: a short run" in text
    assert "up to 0.01 after 5 steps, then cosine" in text
    config = experiment.trainer.model.config
    assert (config.d_model, config.dropout) == (16, 0.25)
    assert "alignments" in experiment.ids.train.column_names
    assert experiment.trainer.model.generation_config.alignment_heads == [[0, 0]]


@pytest.mark.slow
def test_a_resumed_run_has_the_same_plan(files, tmp_path, small_tier):
    saving = {"eval_strategy": "no", "save_strategy": "steps", "save_steps": 4, "save_total_limit": 9}
    options = {**files, **DEFAULTS, **saving, "max_tokens": 400, "average_last_checkpoints": 0}
    steps = train(tmp_path / "whole", AUTO, **options)["steps"]
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "parts" / "checkpoint-4")
    assert train(tmp_path / "parts", AUTO, **options, resume_from_checkpoint="last")["steps"] == steps > 4
    assert_equal_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


@pytest.mark.slow
def test_a_run_that_is_made_longer_keeps_its_warm_up(files, tmp_path, small_tier):
    """The warm-up depends on the length, but is not recomputed for a new one."""
    options = {**files, **DEFAULTS, "eval_strategy": "no", "max_tokens": 400, "average_last_checkpoints": 0}
    train(tmp_path / "run", AUTO, **options, max_steps=20)
    assert train(tmp_path / "run", AUTO, **options, max_steps=40, resume_from_checkpoint="last")["steps"] == 40
    record = trained_with(tmp_path / "run" / "checkpoint-40")
    assert (record["warmup_steps"], record["max_steps"]) == (2, 40)


SPELLING = [f"{onset}{vowel}{coda}" for onset in "bdfgklmnprst" for vowel in "aeiou" for coda in ("", *"mnrst")]
SOUNDS = [" ".join(f"{letter.upper()}0" for letter in word) for word in SPELLING]
HANGUL = [
    chr(0xAC00 + 588 * onset + 28 * vowel + coda) for onset in range(9) for vowel in range(9) for coda in range(9)
]
SUMS = [f"{one}+{other}" for one in range(20) for other in range(20)]
MOLECULES = [
    f"CC{'C' * length}(Cl)c1cc{atom}cc1[nH]%12" for length in range(30) for atom in ("c", "n", "C", "N", "Br")
]


def choose(tmp_path, sources, targets, **options):
    """Return the arguments that `auto` chooses for these pairs, and what it says."""
    pairs = datasets.Dataset.from_dict({"source": sources, "target": targets})
    parts = arguments(tmp_path, AUTO, **DEFAULTS | options)
    return resolve_auto_preset(*parts, TextSplits(pairs, validation=pairs))


@pytest.mark.parametrize(
    ("sources", "targets", "options", "kept"),
    [
        (["A small word ."] * 9, ["Ein kleines Wort ."] * 8 + ["Ein Wort ."], {}, 2),
        (["A small word ."] * 9, ["Ein kleines Wort ."] * 9, {"drop_repeated": False}, 9),
        (SPELLING * 2, SOUNDS * 2, {}, 2 * len(SPELLING)),
        (SPELLING * 2, SOUNDS * 2, {"drop_repeated": True}, len(SPELLING)),
    ],
)
def test_repeated_pairs_of_prose_are_dropped(sources, targets, options, kept, tmp_path):
    _, data_args, _, lines = choose(tmp_path, sources, targets, **options)
    assert data_args.drop_repeated == (kept < len(sources))
    assert any("  drop_repeated" in line for line in lines) == (data_args.drop_repeated or "drop_repeated" in options)
    assert lines[0].endswith(f" in {kept} pairs")


def test_repeated_words_of_several_directions_stay(tmp_path):
    rows = {"source": SPELLING * 2, "target": SOUNDS * 2, PART_COLUMN: [0, 1] * len(SPELLING)}
    text = TextSplits(datasets.Dataset.from_dict(rows), parts=(Part("en", "de"), Part("en", "es")))
    _, data_args, _, lines = resolve_auto_preset(*arguments(tmp_path, AUTO, **DEFAULTS), text)
    assert not data_args.drop_repeated and lines[0].endswith(f" in {2 * len(SPELLING)} pairs")


@looped(
    ("sources", "targets", "algorithms", "is_separate", "normalization"),
    [
        (SPELLING, SOUNDS, ("character", "whitespace"), True, None),
        (SPELLING, [word[::-1] for word in SPELLING], ("character", "character"), False, None),
        (SPELLING, [word.upper() for word in SPELLING], ("character", "character"), True, None),
        (HANGUL, [f"{text} {text}" for text in SOUNDS] * 3, ("character", "whitespace"), True, "NFD"),
        (SUMS, SUMS, ("character", "character"), False, None),
        (MOLECULES, [text[2:] for text in MOLECULES], ("smiles", "smiles"), False, None),
        (SOUNDS, SOUNDS, ("whitespace", "whitespace"), False, None),
    ],
)
def test_the_tokens_of_each_side_follow_from_its_texts(
    sources, targets, algorithms, is_separate, normalization, tmp_path
):
    length = min(len(sources), len(targets))
    chosen, _, args, lines = choose(tmp_path, sources[:length], targets[:length])
    assert (chosen.source_tokenizer[0], chosen.target_tokenizer[0]) == algorithms
    assert (chosen.separate_vocabularies, chosen.source_normalization) == (is_separate, normalization)
    assert args.eval_strategy == args.save_strategy == "steps" and args.augment == "none"
    assert all(
        any(line.startswith(f"  {side}_tokenizer_algorithm") for line in lines) for side in ("source", "target")
    )


def test_given_tokens_stay(tmp_path):
    given = {"source_tokenizer_algorithm": "bpe", "separate_vocabularies": False, "vocab_size": 300}
    chosen, _, _, lines = choose(tmp_path, SPELLING, SPELLING, **given)
    assert chosen.source_tokenizer == ("bpe", None) and chosen.target_tokenizer == ("character", None)
    # Sides of different tokens cannot share a vocabulary.
    assert chosen.separate_vocabularies
    assert "  source_tokenizer_algorithm bpe, as given" in lines
    both, *_ = choose(tmp_path, SPELLING, SPELLING, tokenizer_algorithm="whitespace", separate_vocabularies=True)
    assert both.source_tokenizer == both.target_tokenizer == ("whitespace", None) and both.separate_vocabularies


def test_given_evaluation_steps_stay(tmp_path):
    _, _, args, lines = choose(tmp_path, SPELLING, SOUNDS, eval_steps=7)
    assert (args.eval_strategy, args.eval_steps, args.save_strategy, args.save_steps) == ("steps", 7, "steps", 7)
    assert "  eval_steps 7, as given" in lines
    for given in ({"save_strategy": "epoch"}, {"save_steps": 50}):
        _, _, args, _ = choose(tmp_path, SPELLING, SOUNDS, **given)
        assert args.eval_strategy == "epoch" and given.items() <= vars(args).items()


def test_pairs_decide_about_epochs_and_dropout(tmp_path):
    few, many = (choose(tmp_path, SPELLING * copies, SOUNDS * copies) for copies in (1, 100))
    assert parse_overrides(few[0].config_overrides)["dropout"] > parse_overrides(many[0].config_overrides)["dropout"]
    assert few[2].num_train_epochs > many[2].num_train_epochs


def test_prose_keeps_its_tokens(tmp_path, small_tier):
    sentences = [f"The {word} is not a {other} ." for word, other in zip(SPELLING, SPELLING[::-1], strict=True)]
    chosen, _, args, _ = choose(tmp_path, sentences, sentences)
    assert chosen.source_tokenizer == chosen.target_tokenizer == ("bpe", None)
    assert not chosen.separate_vocabularies and args.eval_strategy == "steps"
    _, _, args, lines = choose(tmp_path, sentences, sentences, lr_scheduler_type="inverse_sqrt")
    assert args.eval_strategy == "epoch" and not any("eval_steps" in line for line in lines)
