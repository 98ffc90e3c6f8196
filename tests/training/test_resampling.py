"""Training pairs retokenized in each epoch: noise, resuming, placeholders."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken
from transformers import TrainerState

from experiments import assert_equal_weights, set_up, train, weights, write_splits
from hf_vanilla_transformer.data.augmentation import Noise, has_placeholders
from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.data.resampling import Resampling
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.pretrained.loading import load_model, load_tokenizer
from hf_vanilla_transformer.text.protection import PLACEHOLDERS
from hf_vanilla_transformer.training import VanillaTransformerTrainer
from hf_vanilla_transformer.training.callbacks import SamplerEpoch
from parallel_text import tsv, write
from processes import leave, run_in_two
from trainers import assert_same_weights, losses, text_pairs, train_args, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

SHARES = "items=0.5,typos=0.5,punctuation=0.5,lower=0.5"
BPE = {"tokenizer_algorithm": "bpe", "vocab_size": 290, "min_frequency": 2}
NOISE = {"augment": SHARES}


def learned_tokenizer():
    pairs = text_pairs()
    tokenizer = train_tokenizer([*pairs["source"][:], *pairs["target"][:]], vocab_size=280)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in PLACEHOLDERS])
    return tokenizer


def resampling_trainer(folder, keep_text=True, dropout=0.1, **options):
    tokenizer = learned_tokenizer()
    return VanillaTransformerTrainer(
        model=trainable_model(vocab_size=len(tokenizer), dropout=dropout),
        args=train_args(folder, **options),
        train_dataset=tokenize_pairs(text_pairs(), tokenizer, keep_text=keep_text)[0],
        eval_dataset=tokenize_pairs(text_pairs(8, seed=1), tokenizer)[0],
        processing_class=tokenizer,
    )


def epochs_of(trainer):
    """Labels of two epochs, each started as the trainer does."""
    loader, found = trainer.get_train_dataloader(), []
    for epoch in (0, 1):
        state = TrainerState(global_step=epoch * len(loader))
        SamplerEpoch().on_epoch_begin(trainer.args, state, trainer.control, loader)
        found.append([batch["labels"] for batch in loader])
    return found


def rows_of(epoch):
    return [row[row >= 0].tolist() for batch in epoch for row in batch]


def texts_of(trainer, epoch):
    """Targets of an epoch, sorted."""
    return sorted(trainer.processing_class.batch_decode(rows_of(epoch), skip_special_tokens=True))


def test_each_epoch_has_other_noise(tmp_path):
    trainer = resampling_trainer(tmp_path, **NOISE)
    epochs = [*epochs_of(trainer), *epochs_of(trainer)]
    first, second, again, _ = (texts_of(trainer, epoch) for epoch in epochs)
    assert first != second and first == again
    assert any("⟦1⟧" in text for text in first)
    assert len(epochs[0]) == len(resampling_trainer(tmp_path).get_train_dataloader())


def test_workers_agree(tmp_path):
    workers = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    found = [rows_of(epochs_of(resampling_trainer(tmp_path, **NOISE, **options))[1]) for options in ({}, workers)]
    assert found[0] == found[1]


def test_what_cannot_be_tokenized_anew(tmp_path):
    with pytest.raises(ValueError, match="`augment` needs token-budget batches; set `max_tokens`, or leave"):
        trainer_of(tmp_path, **NOISE, max_tokens=0)
    with pytest.raises(ValueError, match="`augment`: the training data lack source and target columns; create"):
        resampling_trainer(tmp_path, keep_text=False, **NOISE).get_train_dataloader()
    trainer = resampling_trainer(tmp_path, **NOISE)
    trainer.train_dataset = trainer.train_dataset.map(lambda row: {"alignments": [0, 0]})
    with pytest.raises(ValueError, match="the training data lack alignment columns; create them with"):
        trainer.get_train_dataloader()


def test_targets_are_their_own_sources(tmp_path):
    files = write_splits(tmp_path)
    trainer = set_up(tmp_path / "run", **files, **BPE, augment="copies=0.5").trainer
    assert {torch.equal(ids, labels) for ids, labels in batches_of(trainer)} == {True, False}
    with pytest.raises(ValueError, match="`augment`: copies of targets as sources need one vocabulary"):
        set_up(tmp_path / "separate", **files, **BPE, separate_vocabularies=True, augment="copies=0.5")


def batches_of(trainer, number=6):
    """Yield the source and target ids of the batches of some epochs."""
    for epoch in range(number):
        loader = trainer.get_train_dataloader()
        SamplerEpoch().on_epoch_begin(
            trainer.args, TrainerState(global_step=epoch * len(loader)), trainer.control, loader
        )
        for batch in loader:
            yield (
                batch["input_ids"],
                batch["labels"].where(batch["labels"] >= 0, trainer.processing_class.pad_token_id),
            )


def test_truncated_pairs_keep_their_tokens():
    pairs, tokenizer, limit = text_pairs(), learned_tokenizer(), 5
    whole, _ = tokenize_pairs(pairs, tokenizer)
    limits = {"max_source_length": limit, "max_target_length": limit, "on_long": "truncate"}
    rows, counts = tokenize_pairs(pairs, tokenizer, keep_text=True, **limits)
    cut = [max(len(row["input_ids"]), len(row["labels"])) > limit for row in whole]
    assert 0 < sum(cut) == counts.truncated < len(cut)
    assert [row["source"] is None and row["target"] is None for row in rows] == cut
    own = [{name: row[name] for name in ("input_ids", "labels")} for row in rows]
    resampling = Resampling(tokenizer, Noise({"items": 1}, 0, tokenizer))
    sampled = resampling(list(rows))
    changed = [pair != kept for pair, kept in zip(sampled, own, strict=True)]
    assert any(changed) and not any(is_changed and is_cut for is_changed, is_cut in zip(changed, cut, strict=True))
    # A batch without any text.
    only_cut = [row for row, is_cut in zip(rows, cut, strict=True) if is_cut]
    kept = [pair for pair, is_cut in zip(own, cut, strict=True) if is_cut]
    assert resampling(only_cut) == kept


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"dataloader_num_workers": 2}, {"packing": True}], ids=str)
def test_resuming_is_exact(tmp_path, options):
    options = {"max_steps": 20, "save_strategy": "steps", "save_steps": 7, **options, **NOISE}
    whole = resampling_trainer(tmp_path, **options)
    whole.train()
    resumed = resampling_trainer(tmp_path, **{**options, "dataloader_num_workers": 1})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-14"))
    assert losses(resumed, 14) == losses(whole, 14) != []
    assert_same_weights(whole.model, resumed.model)


CUT = {"max_source_length": 4, "max_target_length": 4, "on_long": "truncate"}
STREAM = {"streaming": True, "max_steps": 6}
WHOLE_RUNS = {
    "pairs": NOISE,
    "guided": {**NOISE, "guided_alignment": "auto"},
    "truncated": NOISE | CUT,
    "stream": NOISE | STREAM,
    "stream with workers": {**NOISE, **STREAM, "dataloader_num_workers": 1},
    "words": {**NOISE, "tokenizer_algorithm": "word", "min_frequency": 1},
    "two vocabularies": {**NOISE, "separate_vocabularies": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", WHOLE_RUNS.values(), ids=WHOLE_RUNS)
def test_a_whole_run(tmp_path, options):
    """Draws are seeded."""
    options = {**write_splits(tmp_path), **BPE, "num_train_epochs": 1, **options}
    plain = {**options, "augment": "none"}
    runs = {"run": options, "again": options, "plain": plain}
    found = {name: train(tmp_path / name, **each)["train_loss"] for name, each in runs.items()}
    assert found["again"] == found["run"] > 0 and found["plain"] != found["run"]
    assert_equal_weights(weights(tmp_path / "run"), weights(tmp_path / "again"))
    if "separate_vocabularies" not in options:
        one, other = (load_tokenizer(tmp_path / name).backend_tokenizer.to_str() for name in ("run", "again"))
        assert one == other


@pytest.mark.parametrize(
    "options", [{}, {"separate_vocabularies": True}, {"streaming": True, "max_steps": 2}], ids=str
)
def test_new_vocabularies_have_placeholders(tmp_path, options):
    files = write_splits(tmp_path)
    experiment = set_up(tmp_path / "run", **files, **BPE, augment="items=0.5", **options)
    experiment.tokenizer.save_pretrained(tmp_path / "saved")
    tokenizer, config = load_tokenizer(tmp_path / "saved"), experiment.trainer.model.config
    assert has_placeholders(tokenizer) and max(config.vocab_size, config.decoder_vocab_size) <= 290
    text = "ant (⟦2⟧) ⟦1⟧."
    for ids in tokenizer(text, text_target=text, return_attention_mask=False).values():
        assert len(ids) < 20
    assert tokenizer.decode(tokenizer(text_target=text)["input_ids"], skip_special_tokens=True) == text
    for augment in ("none", "typos=0.1"):
        plain = set_up(tmp_path / augment, **files, **BPE, augment=augment, **options)
        assert not has_placeholders(plain.tokenizer)


def test_a_vocabulary_without_room_for_placeholders(tmp_path):
    with pytest.raises(ValueError, match="`vocab_size` is 268; it must be at least 269 for bpe"):
        set_up(tmp_path / "run", **write_splits(tmp_path), **BPE | {"vocab_size": 268}, augment="items=0.5")


def test_a_model_that_is_trained_further_gets_placeholders(tmp_path):
    files = write_splits(tmp_path)
    first = set_up(tmp_path / "first", **files, **BPE)
    first.trainer.save_model(tmp_path / "model")
    options = {"model_name_or_path": str(tmp_path / "model"), "augment": "default"}
    second = set_up(tmp_path / "second", {}, **files, **options)
    assert has_placeholders(second.tokenizer)
    assert second.trainer.model.config.vocab_size == first.trainer.model.config.vocab_size + len(PLACEHOLDERS)


def test_a_run_that_is_resumed_keeps_its_noise(tmp_path):
    files = write_splits(tmp_path)
    options = {**files, **BPE, "max_steps": 2, "save_strategy": "steps", "save_steps": 1, "eval_strategy": "no"}
    experiment = set_up(tmp_path / "run", **options, augment="typos=0.5")
    experiment.trainer.train()
    resumed = {**options, "resume_from_checkpoint": "last"}
    with pytest.raises(ValueError, match=r"`augment` typos=0.2 \(was typos=0.5\)"):
        train(tmp_path / "run", **resumed, augment="typos=0.2")


def test_scores_of_evaluations_are_those_of_protected_references(tmp_path):
    pairs = [(f"ant {i}:30 bee cat", f"ANT {i}:30 BEE CAT") for i in range(10, 40)]
    files = {f"{split}_file": write(tmp_path / f"{split}.tsv", tsv(pairs)) for split in ("train", "validation")}
    trainer = set_up(tmp_path / "run", **files, **BPE, augment="items=0.5").trainer
    labels = trainer.eval_dataset["labels"]
    assert trainer.processing_class.decode(labels[0], skip_special_tokens=True) == "ANT ⟦1⟧ BEE CAT"
    width = max(map(len, labels))
    padded = torch.tensor([[*ids, *[-100] * (width - len(ids))] for ids in labels]).numpy()
    assert trainer.compute_metrics(type("Prediction", (), {"predictions": padded}))["exact_match"] == 100


def run_as_process(folder):
    """Train in one of the processes that `run_in_two` starts, and write what came out."""
    trainer = resampling_trainer(folder, dropout=0.0, max_tokens=64, **NOISE)
    trainer.train()
    if trainer.is_world_process_zero():
        Path(folder, "found.json").write_text(json.dumps(losses(trainer)))
        trainer.model.save_pretrained(folder)
    leave()


@pytest.mark.slow
def test_two_processes_have_the_same_noise(tmp_path, monkeypatch):
    """The steps equal those of one process with the batches of both."""
    run_in_two(Path(__file__), tmp_path)
    options = {"dropout": 0.0, "max_tokens": 64, "gradient_accumulation_steps": 2, **NOISE}
    one = resampling_trainer(tmp_path / "one", **options)
    sampler = VanillaTransformerTrainer._sampler

    def of_two(self, dataset):
        with monkeypatch.context() as patch:
            patch.setattr(type(self.args), "world_size", 2)
            return sampler(self, dataset)

    monkeypatch.setattr(VanillaTransformerTrainer, "_sampler", of_two)
    one.train()
    assert losses(one) == pytest.approx(json.loads((tmp_path / "found.json").read_text()), abs=1e-4)
    assert_same_weights(one.model, load_model(tmp_path), 1e-4)


if __name__ == "__main__":
    run_as_process(sys.argv[1])
