"""Training with noise: every way to make batches, runs that are resumed, and what the model says of its text."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken
from transformers import GenerationConfig

from experiments import set_up, train, weights, write_splits
from hf_vanilla_transformer.data.augmentation import has_placeholders
from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.inference.ctranslate2 import check_settings
from hf_vanilla_transformer.inference.loading import load_model, load_tokenizer
from hf_vanilla_transformer.text.protection import PLACEHOLDERS
from hf_vanilla_transformer.training import VanillaTransformerTrainer
from parallel_text import tsv, write
from processes import leave, run_in_two
from trainers import assert_same_weights, losses, text_pairs, train_args, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

SHARES = "items=0.5,typos=0.5,punctuation=0.5,lower=0.5"
BPE = {"tokenizer_algorithm": "bpe", "vocab_size": 290, "min_frequency": 2}


def augmented_trainer(folder, augment=SHARES, train_dataset=None, **options):
    pairs = text_pairs()
    tokenizer = train_tokenizer([*pairs["source"][:], *pairs["target"][:]], vocab_size=280)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in PLACEHOLDERS])
    return VanillaTransformerTrainer(
        model=trainable_model(vocab_size=len(tokenizer), dropout=options.pop("dropout", 0.1)),
        args=train_args(folder, augment=augment, **options),
        train_dataset=tokenize_pairs(pairs, tokenizer, keep_text=True)[0] if train_dataset is None else train_dataset,
        processing_class=tokenizer,
    )


def texts_of(trainer, epoch):
    """The targets of an epoch, in the order of the alphabet."""
    loader = trainer.get_train_dataloader()
    loader.collate_fn.set_epoch(epoch)
    rows = [row[row >= 0] for batch in loader for row in batch["labels"]]
    return sorted(trainer.processing_class.batch_decode(rows, skip_special_tokens=True))


@pytest.mark.parametrize("options", [{}, {"bpe_dropout": 0.3}], ids=str)
def test_each_epoch_has_other_noise(tmp_path, options):
    trainer = augmented_trainer(tmp_path, **options)
    first, second, again = (texts_of(trainer, epoch) for epoch in (0, 1, 0))
    assert first != second and first == again
    assert any("⟦1⟧" in text for text in first)
    plain = augmented_trainer(tmp_path, "none", **options)
    assert len(trainer.get_train_dataloader()) == len(plain.get_train_dataloader())


def test_workers_agree(tmp_path):
    workers = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    assert texts_of(augmented_trainer(tmp_path, **workers), 1) == texts_of(augmented_trainer(tmp_path), 1)


def test_noise_needs_batches_by_tokens_and_shares(tmp_path):
    with pytest.raises(ValueError, match="`augment` needs batches by tokens; set `max_tokens`, or leave it out"):
        trainer_of(tmp_path, augment="default", max_tokens=0)
    with pytest.raises(ValueError, match="`augment`: 'all' is no kind of noise"):
        trainer_of(tmp_path, augment="all")
    with pytest.raises(ValueError, match="`augment`: the training data have no text in source and target; make them"):
        trainer_of(tmp_path, augment="default").get_train_dataloader()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"dataloader_num_workers": 2}, {"packing": True}, {"bpe_dropout": 0.2}], ids=str
)
def test_resuming_is_exact(tmp_path, options):
    options |= {"max_steps": 20, "save_strategy": "steps", "save_steps": 7}
    whole = augmented_trainer(tmp_path, **options)
    whole.train()
    resumed = augmented_trainer(tmp_path, **{**options, "dataloader_num_workers": 1})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-14"))
    assert losses(resumed, 14) == losses(whole, 14) != []
    assert_same_weights(whole.model, resumed.model)


WHOLE_RUNS = {
    "pairs": {"num_train_epochs": 1},
    "guided": {"num_train_epochs": 1, "guided_alignment": "auto"},
    "guided with dropout": {"num_train_epochs": 1, "guided_alignment": "auto", "bpe_dropout": 0.3},
    "truncated": {"num_train_epochs": 1, "max_source_length": 4, "max_target_length": 4, "on_long": "truncate"},
    "stream": {"streaming": True, "max_steps": 6},
    "stream with workers": {"streaming": True, "max_steps": 6, "dataloader_num_workers": 1, "bpe_dropout": 0.1},
    "words": {"num_train_epochs": 1, "tokenizer_algorithm": "word", "min_frequency": 1},
    "two vocabularies": {"num_train_epochs": 1, "separate_vocabularies": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", WHOLE_RUNS.values(), ids=WHOLE_RUNS)
def test_a_whole_run(tmp_path, options):
    options = {**write_splits(tmp_path), **BPE, "augment": SHARES, **options}
    results = train(tmp_path / "run", **options)
    assert results["train_loss"] > 0
    assert train(tmp_path / "again", **options)["train_loss"] == results["train_loss"]
    assert train(tmp_path / "plain", **{**options, "augment": "none"})["train_loss"] != results["train_loss"]
    one, other = weights(tmp_path / "run"), weights(tmp_path / "again")
    assert all(torch.equal(one[name], other[name]) for name in one)


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


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_the_model_knows_its_training_sources(tmp_path, streaming, several):
    long = "Ants run. Bees fly. Cats sleep all day." if several else "Ants and bees and cats and dogs"
    pairs = [(long if i % 4 == 0 else f"Ant {i}", "ANT BEE CAT DOG EEL") for i in range(40)]
    files = {"train_file": write(tmp_path / "train.tsv", tsv(pairs)), "source_lang": "en", "target_lang": "de"}
    options = {**files, "streaming": streaming, "max_steps": 2, "eval_strategy": "no"}
    experiment = set_up(tmp_path / "run", **options)
    experiment.trainer.save_model(tmp_path / "model")
    settings = load_model(tmp_path / "model").generation_config
    assert settings.training_source_length == max(len(experiment.tokenizer(s)["input_ids"]) for s, _ in pairs)
    assert settings.training_paragraphs is several and settings.training_capitals is True
    assert settings.training_numbers is True
    assert GenerationConfig.from_pretrained(tmp_path / "model").to_diff_dict()["training_paragraphs"] is several
    # Exports keep them too.
    check_settings(settings.to_dict())
    assert "training_source_length" in json.loads((tmp_path / "model" / "generation_config.json").read_text())


def test_a_model_of_text_without_numbers_knows_none(tmp_path):
    pairs = [("Ant 1" if i == 0 else "Ant bee", "ANT BEE") for i in range(40)]
    files = {"train_file": write(tmp_path / "train.tsv", tsv(pairs)), "source_lang": "en", "target_lang": "de"}
    experiment = set_up(tmp_path / "run", **files, max_steps=2, eval_strategy="no")
    assert experiment.trainer.model.generation_config.training_numbers is False


def run_as_process(folder):
    """Train in one of the processes that `run_in_two` starts, and write what came out."""
    trainer = augmented_trainer(folder, dropout=0.0, max_tokens=64)
    trainer.train()
    if trainer.is_world_process_zero():
        Path(folder, "found.json").write_text(json.dumps(losses(trainer)))
        trainer.model.save_pretrained(folder)
    leave()


@pytest.mark.slow
def test_two_processes_have_the_same_noise(tmp_path, monkeypatch):
    """Those of one process that has the batches of both."""
    run_in_two(Path(__file__), tmp_path)
    one = augmented_trainer(tmp_path / "one", dropout=0.0, max_tokens=64, gradient_accumulation_steps=2)
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
