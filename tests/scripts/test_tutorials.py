"""scripts/reproduce_tutorials.py: what every tutorial must give, and the recipes behind it."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import nn

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, preset_config
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer
from tutorials import tutorials
from tutorials.tutorials import (
    ATTENTION_SENTENCES,
    COPY_CONFIG,
    COPY_LENGTH,
    COPY_TASK,
    ENCODER_DECODER_CONFIG,
    PHRASES,
    STATQUEST,
    TUTORIALS,
    CopyTask,
    TutorialArguments,
    books_arguments,
    build_copier,
    copy_by,
    decode_anew,
    draw_sequences,
    greedy,
    kept_bytes,
    learn_to_copy,
    measure_attention,
    reproduce,
    train_phrases,
    wrong_phrases,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def row_of(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run(load_script: Callable[[str], ModuleType]) -> Callable[..., None]:
    main = load_script("reproduce_tutorials").main

    def start(name: str, output: Path, *arguments: str) -> None:
        main([name, "--output_dir", str(output), *arguments])

    return start


def test_there_are_the_seven():
    assert list(TUTORIALS) == [
        "phrases", "attention", "copy", "opus_books", "statquest", "encoder_decoder", "complexity",
    ]  # fmt: skip  # a list of names


# phrases and statquest


def test_phrases_are_those_of_the_tutorial_and_the_model_is_its_size(tmp_path: Path):
    model, tokenizer = train_phrases(PHRASES, 0, TutorialArguments(output_dir=str(tmp_path)))
    config = model.config
    assert (config.d_model, config.encoder_layers, config.decoder_layers) == (6, 1, 1)
    assert config.encoder_attention_heads == config.decoder_attention_heads == 1
    # The notebook's 9 and 13 words, and four special tokens.
    assert (len(tokenizer), tokenizer.target_vocab_size) == (9 + 4, 13 + 4)
    assert len(PHRASES.pairs) == 8
    assert PHRASES.training["num_train_epochs"] <= 60 and PHRASES.training["learning_rate"] == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["phrases", "statquest"])
def test_all_phrases_are_exact_in_nine_of_ten_seeds(run: Callable[..., None], name: str, tmp_path: Path, capsys):
    run(name, tmp_path)
    row = row_of(tmp_path, name)
    assert row["figures"]["seeds"] == 10 and row["figures"]["perfect_seeds"] >= 9 and row["holds"]
    assert f"| {name} |" in capsys.readouterr().out


def test_a_phrase_said_wrongly_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    untrained = lambda *args, **kwargs: None  # noqa: E731 - a stand-in for training
    monkeypatch.setattr("tutorials.tutorials.train", untrained)
    args = TutorialArguments(output_dir=str(tmp_path), seeds=3)
    wrong = [wrong_phrases(PHRASES, *train_phrases(PHRASES, seed, args)) for seed in range(3)]
    assert all(wrong) and wrong[0] != wrong[1]
    (row,) = reproduce(["phrases"], args, DataArguments())
    assert row.figures["exact"] == [8 - len(each) for each in wrong] and not row.holds


def test_small_models_take_one_thread_and_give_the_others_back():
    torch.set_num_threads(2)
    with tutorials.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_statquest_learns_and_draws(run: Callable[..., None], tmp_path: Path):
    run("statquest", tmp_path, "--seeds", "1")
    model, _ = train_phrases(STATQUEST, 0, TutorialArguments(output_dir=str(tmp_path)))
    assert model.config.d_model == 2
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    assert not any("fc1" in name for name, _ in model.named_parameters())
    for name in ("position_encoding", "encoder_attention", "decoder_attention", "cross_attention"):
        assert imread(tmp_path / "statquest" / f"{name}.png").std() > 0.02


# attention


def test_attention_gives_the_printed_matrices(run: Callable[..., None], tmp_path: Path):
    run("attention", tmp_path)
    row = row_of(tmp_path, "attention")
    assert len(row["figures"]["greatest_difference"]) == 2 and max(row["figures"]["greatest_difference"]) < 1e-7
    for name in ("cat", "dog"):
        assert imread(tmp_path / "attention" / f"{name}.png").std() > 0.05


def test_the_printed_matrices_are_rows_of_weights():
    for sentence, weights in ATTENTION_SENTENCES.items():
        assert np.shape(weights) == (len(sentence.split()),) * 2
        assert np.allclose(np.sum(weights, axis=1), 1, atol=1e-7)


def test_attention_that_is_off_does_not_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    changed = {sentence: np.roll(weights, 1, axis=1) for sentence, weights in ATTENTION_SENTENCES.items()}
    monkeypatch.setattr("tutorials.tutorials.ATTENTION_SENTENCES", changed)
    (row,) = reproduce(["attention"], TutorialArguments(output_dir=str(tmp_path)), DataArguments())
    assert not row.holds


# copy


def test_sequences_begin_with_the_start_symbol_and_never_hold_padding():
    sequences = draw_sequences(500, torch.Generator().manual_seed(0))
    assert sequences.shape == (500, COPY_LENGTH)
    assert (sequences[:, 0] == 1).all() and set(sequences[:, 1:].flatten().tolist()) == set(range(1, 11))


def test_the_copy_model_is_the_tutorials():
    config = preset_config(COPY_TASK.preset, **COPY_CONFIG)
    assert (config.vocab_size, config.encoder_layers, config.decoder_layers) == (11, 6, 6)
    assert (config.d_model, config.encoder_attention_heads, config.encoder_ffn_dim) == (512, 8, 2048)


def test_untrained_models_decode_as_many_symbols(tmp_path: Path):
    source = torch.arange(COPY_LENGTH)[None] + 1
    decoded = [copy_by(build_copier(COPY_TASK, seed), source) for seed in range(2)]
    for ids in decoded:
        assert ids.shape == (1, COPY_LENGTH) and ids[0, 0] == 1 and 0 <= ids.min() and ids.max() < 11
    assert not torch.equal(*decoded)


def test_copying_counts_whole_sequences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tutorials.tutorials.train", lambda *args, **kwargs: None)

    def copy_but_for_sevens(model: Any, sequences: torch.Tensor) -> torch.Tensor:
        return sequences.masked_fill(sequences == 7, 8)

    monkeypatch.setattr("tutorials.tutorials.copy_by", copy_but_for_sevens)
    exact = learn_to_copy(COPY_TASK, 0, TutorialArguments(output_dir=str(tmp_path)))
    test = draw_sequences(1000, torch.Generator().manual_seed(0))
    assert exact == pytest.approx(1 - (test == 7).any(1).float().mean().item())


def test_interrupted_copying_goes_on_and_leaves_no_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    steps, stop = [], [True]
    training_step = VanillaTransformerTrainer.training_step

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.append(self.state.global_step)
        if stop and self.state.global_step == 3:
            raise KeyboardInterrupt
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(VanillaTransformerTrainer, "training_step", counted)
    monkeypatch.setattr("tutorials.tutorials.COPY_STEPS_BETWEEN_CHECKPOINTS", 2)
    task, args = (
        CopyTask("tiny", steps=5, learning_rate=1e-3, warmup_steps=1),
        TutorialArguments(output_dir=str(tmp_path)),
    )
    with pytest.raises(KeyboardInterrupt):
        learn_to_copy(task, 0, args)
    stop.clear()
    resumed = learn_to_copy(task, 0, args)
    assert steps == [0, 1, 2, 3, 2, 3, 4]
    assert not any(path.is_dir() for path in (tmp_path / "copy").iterdir())
    assert resumed == learn_to_copy(task, 0, args)


@pytest.mark.slow
def test_light_copying_is_exact(run: Callable[..., None], tmp_path: Path):
    run("copy", tmp_path, "--light")
    row = row_of(tmp_path, "copy")
    assert row["holds"] and min(row["figures"]["exact"]) >= 0.99
    assert len(row["figures"]["untrained"]) == 10


# opus_books


def test_books_are_the_default_and_the_splits_are_filled_in(tmp_path: Path):
    assert books_arguments(DataArguments()).dataset_name == "Helsinki-NLP/opus_books"
    default = books_arguments(DataArguments())
    assert (default.dataset_config_name, default.source_lang, default.target_lang) == ("en-es", "en", "es")
    assert (default.test_split_size, default.validation_split_size) == (0.1, 1000)
    own = books_arguments(DataArguments(train_file="a.tsv", test_file="b.tsv", validation_split_size=5))
    assert own.dataset_name is None and own.test_split_size is None and own.validation_split_size == 5


def write_books(path: Path) -> str:
    """Pairs in the form of opus_books, as JSON lines that `datasets` reads."""
    path.mkdir()
    numbers = ["one", "two", "three", "four", "five", "six", "seven"]
    words = ["uno", "dos", "tres", "cuatro", "cinco", "seis", "siete"]
    generator = np.random.default_rng(0)
    with (path / "train.jsonl").open("w", encoding="utf-8") as file:
        for number in range(120):
            chosen = generator.integers(7, size=5)
            pair = {"en": " ".join(numbers[i] for i in chosen), "es": " ".join(words[i] for i in chosen)}
            if number % 10 == 0:
                pair = {"en": f"{pair['en']} once{number}", "es": f"{pair['es']} vez{number}"}
            file.write(json.dumps({"id": str(number), "translation": pair}) + "\n")
    return str(path)


def test_books_with_words_and_with_bpe(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    arguments = (
        "--preset", "tiny", "--max_steps", "2", "--dataset_name", write_books(tmp_path / "books"),
        "--source_lang", "en", "--target_lang", "es", "--validation_split_size", "10",
    )  # fmt: skip  # names with their values
    run("opus_books", tmp_path / "run", *arguments)
    row = row_of(tmp_path / "run", "opus_books")["figures"]
    assert row["test_pairs"] == 12 and len(row["examples"]) == 10
    assert set(row["examples"][0]) == {"source", "reference", "word", "bpe"}
    # A word that occurs once is in no word-level vocabulary; bytes make up any word.
    assert row["word"]["unknown_source"] > 0 and row["bpe"]["unknown_source"] == row["bpe"]["unknown_target"] == 0
    for name in ("word", "bpe"):
        assert {"test_bleu", "test_chrf", "train_runtime", "long_sentence_words"} <= row[name].keys()
    trained = []
    monkeypatch.setattr("tutorials.tutorials.train_translation", lambda *args: trained.append(args))
    run("opus_books", tmp_path / "run", *arguments)
    assert not trained, "a finished run was trained again"
    with pytest.raises(SystemExit):
        run("opus_books", tmp_path / "run", *arguments, "--split_seed", "1")
    assert "--split_seed was 0, is 1" in capsys.readouterr().err


# encoder_decoder


def test_encoder_decoder_gives_the_shape_and_keeps_its_history(run: Callable[..., None], tmp_path: Path):
    run("encoder_decoder", tmp_path)
    row = row_of(tmp_path, "encoder_decoder")
    assert row["holds"] and row["figures"]["shape"] == [2, 12, 11]
    assert row["figures"]["greatest_error_of_sum"] < 1e-5
    assert row["figures"]["greatest_difference_of_logits"] < 1e-5
    assert np.shape(row["figures"]["generated"]) == (2, 13)


def test_decoding_that_forgets_its_history_has_other_logits():
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(preset_config("tiny", **ENCODER_DECODER_CONFIG)).eval()
    source = torch.tensor([[0, 2, 5, 6, 4, 3, 9, 5, 2, 9, 10, 1]])
    with torch.no_grad():
        ids, logits = decode_anew(model, source, 8)
        ids_of_generate, logits_of_generate = greedy(model, source, 8)
        forgetful = torch.cat(
            [model(input_ids=source, decoder_input_ids=last).logits for last in ids[:, :-1].T[..., None]]
        )
    assert torch.equal(ids_of_generate, ids)
    torch.testing.assert_close(logits_of_generate, logits, atol=1e-5, rtol=1e-5)
    assert (forgetful[:, 0] - logits[0])[1:].abs().min(dim=0).values.max() > 1e-2


# complexity


def test_attention_keeps_its_weights_and_its_inputs():
    (measured,) = measure_attention([(48, 8)])
    # The weights once, and queries, keys and values.
    assert measured["bytes"] == 4 * (48 * 48 + 3 * 48 * 8)
    assert measured["seconds"] > 0


def test_kept_bytes_counts_every_piece_once():
    x = torch.randn(10, requires_grad=True)
    assert kept_bytes(lambda x: x * x, x) == 40
    assert kept_bytes(lambda x: x.exp(), x) == 40
    assert kept_bytes(lambda x: x + 1, x) == 0


@pytest.mark.slow
def test_complexity_is_the_tables(run: Callable[..., None], tmp_path: Path):
    run("complexity", tmp_path)
    exponents = row_of(tmp_path, "complexity")["figures"]["exponents"]
    assert exponents["memory_n"] == pytest.approx(2, abs=0.1)
    assert exponents["time_n"] > 1.4 and exponents["time_d"] > 0.4, "a machine under load still shows growth"
    assert imread(tmp_path / "complexity" / "complexity.png").std() > 0.02


# The program


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("phrases", "--seeds", "0"), "--seeds 0 trains nothing"),
        (("rhymes",), "invalid choice: 'rhymes'"),
        (("opus_books", "--preset", "huge"), "unknown preset 'huge'"),
        (("opus_books", "--train_file", "nowhere.tsv"), "nowhere.tsv"),
        (("opus_books", "--dataset_name", "nowhere/at-all"), "nowhere/at-all: cannot be loaded"),
    ],
)
def test_bad_arguments_end_in_one_line(
    run: Callable[..., None], tmp_path: Path, arguments: tuple[str, ...], message: str, capsys
):
    with pytest.raises(SystemExit) as stop:
        run(arguments[0], tmp_path / "run", *arguments[1:])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and "Traceback" not in error


def test_an_output_folder_that_cannot_be_made_is_named(run: Callable[..., None], tmp_path: Path, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit):
        run("attention", tmp_path / "file")
    assert f"--output_dir {tmp_path / 'file'} cannot be made" in capsys.readouterr().err


def test_one_without_data_does_not_keep_the_others_back(run: Callable[..., None], tmp_path: Path, monkeypatch, capsys):
    for name in set(TUTORIALS) - {"attention", "opus_books", "encoder_decoder"}:
        monkeypatch.delitem(TUTORIALS, name)
    with pytest.raises(SystemExit) as stop:
        run("all", tmp_path, "--train_file", "nowhere.tsv")
    assert stop.value.code == 2 and "opus_books: nowhere.tsv" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["attention.json", "encoder_decoder.json"]


def test_a_row_names_versions_and_time(run: Callable[..., None], tmp_path: Path):
    run("attention", tmp_path)
    row = row_of(tmp_path, "attention")
    assert row["versions"]["torch"] == torch.__version__ and row["seconds"] > 0
    assert {"tutorial", "shows", "gives", "figures", "holds"} <= row.keys()


def test_all_runs_every_one_in_its_order(run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    called, follow = [], TUTORIALS["attention"]
    for name in list(TUTORIALS):
        monkeypatch.setitem(TUTORIALS, name, lambda *args, name=name: called.append(name) or follow(*args))
    run("all", tmp_path)
    assert called == list(TUTORIALS)
    assert all((tmp_path / f"{name}.json").is_file() for name in TUTORIALS)
