"""BPE-dropout in training: other tokens in each epoch, none in what is evaluated and saved."""

import pytest
import torch
from transformers import DataCollatorForSeq2Seq, TrainerState

from experiments import train, write_splits
from hf_vanilla_transformer.data.bpe_dropout import DroppingTokenizer
from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.data.resampling import Resampling
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.inference.loading import load_tokenizer
from hf_vanilla_transformer.training import VanillaTransformerTrainer
from hf_vanilla_transformer.training.callbacks import SamplerEpoch
from trainers import (
    assert_same_weights,
    losses,
    text_pairs,
    train_args,
    trainable_model,
    trainer_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def bpe_trainer(folder, dropout, keep_text=True, **options):
    pairs = text_pairs()
    tokenizer = train_tokenizer([*pairs["source"][:], *pairs["target"][:]], vocab_size=280)
    model = trainable_model(vocab_size=len(tokenizer))
    return VanillaTransformerTrainer(
        model=model,
        args=train_args(folder, bpe_dropout=dropout, **options),
        train_dataset=tokenize_pairs(pairs, tokenizer, keep_text=keep_text)[0],
        eval_dataset=tokenize_pairs(text_pairs(8, seed=1), tokenizer)[0],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )


def epochs_of(trainer):
    """The labels of two epochs, as the trainer starts them."""
    loader, found = trainer.get_train_dataloader(), []
    for epoch in (0, 1):
        SamplerEpoch().on_epoch_begin(
            trainer.args, TrainerState(global_step=epoch * len(loader)), trainer.control, loader
        )
        found.append([batch["labels"] for batch in loader])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"dataloader_num_workers": 2}, {"packing": True}], ids=str)
def test_resuming_is_exact(tmp_path, options):
    options |= {"max_steps": 20, "save_strategy": "steps", "save_steps": 7}
    whole = bpe_trainer(tmp_path, 0.3, **options)
    whole.train()
    resumed = bpe_trainer(tmp_path, 0.3, **{**options, "dataloader_num_workers": 1})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-14"))
    assert losses(resumed, 14) == losses(whole, 14) != []
    assert_same_weights(whole.model, resumed.model)


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_has_other_tokens_of_the_same_pairs(tmp_path, workers):
    trainer = bpe_trainer(tmp_path, 0.3, dataloader_num_workers=workers, dataloader_persistent_workers=workers > 0)
    first, second = epochs_of(trainer)
    tokenizer = trainer.processing_class
    texts = [
        sorted(tokenizer.decode(row[row >= 0], skip_special_tokens=True) for batch in epoch for row in batch)
        for epoch in (first, second)
    ]
    assert texts[0] == texts[1] == sorted(text_pairs()["target"][:])
    tokens = [sorted(tuple(row[row >= 0].tolist()) for batch in epoch for row in batch) for epoch in (first, second)]
    assert tokens[0] != tokens[1]
    plain = sum(map(len, trainer.train_dataset["labels"][:]))
    assert min(sum(map(len, epoch)) for epoch in tokens) > 1.05 * plain
    assert len(first) == len(second) == len(bpe_trainer(tmp_path, 0.0).get_train_dataloader())


def test_evaluation_has_no_dropout(tmp_path):
    found = []
    for dropout in (0.0, 0.5):
        batches = list(bpe_trainer(tmp_path, dropout).get_eval_dataloader())
        found.append(torch.cat([batch["labels"].flatten() for batch in batches]))
    assert torch.equal(*found)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_packed_batches(tmp_path, dropout):
    trainer = bpe_trainer(tmp_path, dropout, packing=True)
    tokens = [sum(batch.numel() for batch in epoch) for epoch in epochs_of(trainer)]
    assert (tokens[0] == tokens[1]) == (dropout == 0)


def test_data_without_text_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the training data have no text in source and target; make them with"):
        bpe_trainer(tmp_path, 0.1, keep_text=False).get_train_dataloader()
    with pytest.raises(ValueError, match="`bpe_dropout` needs batches by tokens; set `max_tokens`, or leave it out"):
        trainer_of(tmp_path, bpe_dropout=0.1, max_tokens=0)


def test_truncated_pairs_keep_their_tokens():
    pairs = text_pairs()
    tokenizer = train_tokenizer([*pairs["source"][:], *pairs["target"][:]], vocab_size=280)
    limit = 5
    whole, _ = tokenize_pairs(pairs, tokenizer)
    rows, counts = tokenize_pairs(
        pairs, tokenizer, max_source_length=limit, max_target_length=limit, on_long="truncate", keep_text=True
    )
    cut = [max(len(row["input_ids"]), len(row["labels"])) > limit for row in whole]
    assert 0 < sum(cut) == counts.truncated < len(cut)
    assert [row["source"] is None and row["target"] is None for row in rows] == cut
    own = [{name: row[name] for name in ("input_ids", "labels")} for row in rows]
    sampled = Resampling(DroppingTokenizer(tokenizer, 0.9))(list(rows))
    changed = [pair != kept for pair, kept in zip(sampled, own, strict=True)]
    assert any(changed) and not any(is_changed and is_cut for is_changed, is_cut in zip(changed, cut, strict=True))
    # A batch without any text.
    only_cut = [row for row, is_cut in zip(rows, cut, strict=True) if is_cut]
    assert Resampling(DroppingTokenizer(tokenizer, 0.9))(only_cut) == [
        pair for pair, is_cut in zip(own, cut, strict=True) if is_cut
    ]


WHOLE_RUNS = {
    "pairs": {"num_train_epochs": 1},
    "guided": {"num_train_epochs": 1, "guided_alignment": "auto"},
    "truncated": {"num_train_epochs": 1, "max_source_length": 4, "max_target_length": 4, "on_long": "truncate"},
    "stream": {"streaming": True, "max_steps": 6},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", WHOLE_RUNS.values(), ids=WHOLE_RUNS)
def test_a_whole_run(tmp_path, options):
    files = write_splits(tmp_path)
    results = train(tmp_path / "run", **files, tokenizer_algorithm="bpe", vocab_size=270, bpe_dropout=0.3, **options)
    assert results["train_loss"] > 0
    # The draws are seeded.
    again = train(tmp_path / "again", **files, tokenizer_algorithm="bpe", vocab_size=270, bpe_dropout=0.3, **options)
    assert again["train_loss"] == results["train_loss"]
    one, other = (load_tokenizer(tmp_path / name).backend_tokenizer.to_str() for name in ("run", "again"))
    assert one == other and '"ignore_merges":false' in one


def test_aligned_data_without_the_links_of_words_are_refused(tmp_path):
    trainer = bpe_trainer(tmp_path, 0.1)
    trainer.train_dataset = trainer.train_dataset.map(lambda row: {"alignments": [0, 0]})
    with pytest.raises(ValueError, match="the training data have no text in alignment; make them with"):
        trainer.get_train_dataloader()


def test_other_tokens_than_those_of_bpe_are_refused(tmp_path):
    files = write_splits(tmp_path)
    with pytest.raises(ValueError, match="`bpe_dropout` needs a vocabulary of BPE, not WordLevel"):
        train(tmp_path / "run", **files, bpe_dropout=0.1)
