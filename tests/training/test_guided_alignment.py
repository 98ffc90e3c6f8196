"""Guided attention: alignments from a file or from statistics, from text to the loss of the head that learns them."""

import pickle
import random
import re
from pathlib import Path

import datasets
import pytest
import torch

from devices import same_numbers
from experiments import arguments, train, write_splits
from hf_vanilla_transformer.data.alignments import alignment_error_rate, parse_pharaoh
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import dense_alignments
from hf_vanilla_transformer.data.encoding import add_alignments, tokenize_pairs
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.inference.alignment import set_alignment_heads, word_alignments
from hf_vanilla_transformer.pretrained.loading import load_model, load_tokenizer
from hf_vanilla_transformer.training import VanillaTransformerTrainer, train_translation
from hf_vanilla_transformer.training.guided_alignment import AlignmentHead
from hf_vanilla_transformer.training.setup import guide_alignments
from parallel_text import write
from tables import looped
from tiny import close, close_gradients, gradients, labelled_batch, perturbed_model, tiny_model
from trainers import TOKENIZER, text_pairs, train_args, trainable_model

SAMPLE = Path(__file__).parents[1] / "data" / "toy_alignments.tsv"

pytestmark = pytest.mark.usefixtures("one_thread")


def copies(rows, seed=0):
    """Return pairs of identical sentences, and the links of each."""
    sentences = text_pairs(rows, seed)["source"][:]
    links = [[(i, i) for i in range(len(sentence.split()))] for sentence in sentences]
    return datasets.Dataset.from_dict({"source": sentences, "target": sentences}), links


def write_alignments(folder, rows=80):
    """Write the alignments of the training pairs of `write_splits`, word by word."""
    lines = [" ".join(f"{i}-{i}" for i in range(len(line.split("\t")[0].split()))) for line in tsv_lines(folder)]
    assert len(lines) == rows
    return write(folder / "train.align", "".join(f"{line}\n" for line in lines))


def tsv_lines(folder):
    lines = (folder / "train.tsv").read_text(encoding="utf-8").splitlines()
    return lines[1:] if lines[0].startswith("source") else lines


@pytest.mark.parametrize("algorithm", ["bpe", "character", "word"])
def test_alignments_travel_with_their_pairs(tmp_path, algorithm):
    """Links follow their pairs through held-out splits, samples, length limits and tokenization."""
    rng, words = random.Random(0), ["ant", "bumblebee", "cat", "dormouse", "eel", "fox", "gnu"]
    rows = [rng.sample(words, rng.randint(1, 7)) for _ in range(200)]
    orders = [rng.sample(range(len(row)), len(row)) for row in rows]
    source = write(tmp_path / "a", "".join(" ".join(row) + "\n" for row in rows))
    targets = ([row[i].upper() for i in order] for row, order in zip(rows, orders, strict=True))
    target = write(tmp_path / "b", "".join("  ".join(row) + "\n" for row in targets))
    links = (" ".join(f"{i}-{j}" for j, i in enumerate(order)) for order in orders)
    path = write(tmp_path / "c", "".join(f"{line}\n" for line in links))
    text = load_parallel_text(
        DataArguments(
            train_source_file=source,
            train_target_file=target,
            guided_alignment=path,
            validation_split_size=20,
            max_train_samples=150,
            cache_dir=str(tmp_path / "cache"),
        )
    )
    both = [" ".join(words), " ".join(words).upper()]
    tokenizer = train_tokenizer(both, algorithm=algorithm, min_frequency=1)
    for on_long in ("drop", "truncate"):
        limit = {"bpe": 9, "character": 30, "word": 6}[algorithm]
        ids, counts = tokenize_pairs(text["train"], tokenizer, max_source_length=limit, on_long=on_long)
        assert counts.read == 150 and (counts.too_long or counts.truncated)
        for row in ids:
            source, target = ([tokenizer.decode([i]) for i in row[name]] for name in ("input_ids", "labels"))
            source_words, target_words = words_of_links(row["alignments"], source, target)
            # The last source word may have lost its end.
            assert source_words and all(any(t.startswith(s) for t in target_words) for s in source_words)
            if on_long == "drop":
                assert sorted(source_words) == sorted(target_words)
                assert sorted("".join(source_words)) == sorted(letters("".join(source[:-1])))


def words_of_links(flat, source, target):
    """Return the words on both sides that linked tokens make up, without order and capitals."""
    partners = ({}, {})
    for link in zip(flat[::2], flat[1::2], strict=True):
        for side in (0, 1):
            partners[side].setdefault(link[side], set()).add(link[1 - side])
    sides = []
    for tokens, own in zip((source, target), partners, strict=True):
        words = {}
        for token, others in sorted(own.items()):
            words[frozenset(others)] = words.get(frozenset(others), "") + letters(tokens[token])
        sides.append(list(words.values()))
    return sides


def letters(text):
    return re.sub("[^a-z]", "", text.lower())


def test_dense_alignments():
    labels = torch.tensor([[5, 6, 2, -100], [-100, -100, 7, 2]])
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    dense = dense_alignments([[0, 0, 1, 0, 1, 1], [0, 0]], labels, mask)
    expected = torch.zeros(2, 4, 3)
    expected[0, 0, :2], expected[0, 1, 1], expected[1, 2, 1] = 0.5, 1, 1
    assert torch.equal(dense, expected)
    assert not dense_alignments([[], []], labels, mask).any()


def guided_trainer(folder, **options):
    model = trainable_model(dropout=0.0)
    set_alignment_heads(model, [[0, 1]])
    data, _ = tokenize_pairs(add_alignments(*copies(60)), TOKENIZER)
    options = {"learning_rate": 0.01, "guided_alignment_weight": 2.0, **options}
    return VanillaTransformerTrainer(
        model=model, args=train_args(folder, **options), train_dataset=data, processing_class=TOKENIZER
    )


def test_accumulated_batches_take_the_step_of_one(tmp_path):
    options = {"max_tokens": 0, "max_steps": 2, "seed": 3}
    weights = []
    for rows, accumulated in ((8, 1), (2, 4)):
        settings = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": accumulated}
        trainer = guided_trainer(tmp_path / f"{rows}", **options, **settings)
        trainer.train()
        weights.append(dict(trainer.model.named_parameters()))
    for name, weight in weights[0].items():
        close(weights[1][name], weight, 2e-4)


def test_the_trained_model_has_no_hooks_left(tmp_path):
    trainer = guided_trainer(tmp_path)
    trainer.train()
    assert not any(module._forward_hooks for module in trainer.model.modules())
    pickle.dumps(trainer.model)


def test_the_head_learns_the_alignments(tmp_path):
    trainer = guided_trainer(tmp_path, num_train_epochs=30)
    pairs, true = copies(40, seed=1)

    def error():
        found = word_alignments(trainer.model, TOKENIZER, pairs["source"][:], pairs["target"][:])
        return alignment_error_rate(found, true, true)

    before = error()
    trainer.train()
    assert error() < 0.5 * before


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["file", "auto"])
def test_a_guided_run_keeps_its_head(tmp_path, guide):
    files = write_splits(tmp_path)
    alignment = write_alignments(tmp_path) if guide == "file" else "auto"
    train(tmp_path / "model", **files, guided_alignment=alignment)
    model = load_model(tmp_path / "model")
    assert model.generation_config.alignment_heads == [[0, 0]]


@pytest.mark.slow
@pytest.mark.parametrize("guide", [None, "none"])
def test_an_unguided_run_chooses_heads(tmp_path, guide):
    train(tmp_path / "model", **write_splits(tmp_path), guided_alignment=guide)
    ((layer, head), *_) = load_model(tmp_path / "model").generation_config.alignment_heads
    assert layer == 0 and head in (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": True}, "`guided_alignment` needs padded batches; leave it or `packing` out"),
        ({"guided_alignment": "nowhere.align"}, "nowhere.align"),
        ({"guided_alignment_weight": 0.0}, "`guided_alignment_weight` is 0; it must be positive"),
        ({"streaming": True, "max_steps": 2}, "`guided_alignment` needs all pairs in memory; leave it or `streaming`"),
    ],
    ids=["packing", "no file", "weight", "streaming"],
)
def test_what_cannot_be_guided(tmp_path, options, message):
    files = write_splits(tmp_path)
    with pytest.raises(ValueError) as caught:
        train_translation(*arguments(tmp_path / "model", **{**files, "guided_alignment": "auto", **options}))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_slow_tokenizer_cannot_be_guided(tmp_path):
    class SlowTokenizer:
        is_fast = False

    with pytest.raises(ValueError, match="but SlowTokenizer is slow; set it to none"):
        guide_alignments(trainable_model(), SlowTokenizer(), train_args(tmp_path))


@pytest.mark.slow
def test_alignment_error_rate_of_a_small_model(tmp_path):
    """The hand-checked sentences of the built-in corpus, by the head that statistics guided."""
    options = {
        "toy_corpus": True,
        "preset": "tiny",
        "config_overrides": "d_model=128,encoder_layers=2,decoder_layers=2,encoder_ffn_dim=512,decoder_ffn_dim=512,"
        "dropout=0.0",
        "vocab_size": 2000,
        "max_tokens": 4096,
        "learning_rate": 0.003,
        "lr_scheduler_type": "linear",
        "warmup_steps": 100,
        "max_steps": 800,
        "eval_strategy": "no",
        "save_strategy": "no",
        "guided_alignment": "auto",
    }
    train(tmp_path, {}, **options)
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    sources, targets, sure, possible = (list(column) for column in zip(*rows, strict=True))
    found = word_alignments(load_model(tmp_path), load_tokenizer(tmp_path), sources, targets)
    error = alignment_error_rate(found, map(parse_pharaoh, sure), map(parse_pharaoh, possible))
    assert error <= 0.05


HEAD = (1, 1)


@same_numbers
def aligned_batch(rows=4, length=7):
    """A batch of padded pairs; some labels have no links."""
    batch = labelled_batch(rows, length)
    batch["attention_mask"][0, -3:] = 0
    links = torch.rand(rows, length, length + 1) < 0.25
    links &= batch["labels"].ne(-100)[..., None] & batch["attention_mask"].bool()[:, None]
    batch["alignments"] = links / links.sum(-1, keepdim=True).clamp(min=1)
    assert links.any(-1).any() and not links.any(-1).all()
    return batch


def guided_loss(model, batch, weight, count=None, **options):
    """The loss with that of the alignments, as the trainer adds them up."""
    head = AlignmentHead.of(model)
    batch = dict(batch)
    others = {name: x for name, x in batch.items() if name != "alignments"}
    head.attach()
    loss = model(**others, num_items_in_batch=count, **options).loss
    return loss + weight * head.loss(batch, count)


def guided_model(**changes):
    model = perturbed_model(**changes).train()
    model.generation_config.alignment_heads = [[*HEAD]]
    return model


def plain_loss(model, batch, weight, count):
    """The same loss from the weights that eager attention returns."""
    batch = dict(batch)
    alignments = batch.pop("alignments")
    model.set_attn_implementation("eager")
    outputs = model(**batch, output_attentions=True)
    model.set_attn_implementation("sdpa")
    linked = alignments > 0
    logs = torch.where(linked, outputs.cross_attentions[HEAD[0]][:, HEAD[1]], 1.0).log()
    labels = batch["labels"].ne(-100).sum()
    return outputs.loss * labels / count - weight * (alignments * logs).sum() / count


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("changes", [{}, {"norm_position": "pre"}], ids=["post", "pre"])
def test_the_loss_is_that_of_the_returned_weights(implementation, changes):
    torch.manual_seed(1)
    model, batch = guided_model(**changes), aligned_batch()
    expected = plain_loss(model, batch, 0.3, 11)
    expected.backward()
    expected_gradients = gradients(model)
    model.set_attn_implementation(implementation)
    loss = guided_loss(model, batch, 0.3, 11)
    loss.backward()
    close(loss, expected)
    close_gradients(gradients(model), expected_gradients)


@pytest.mark.parametrize("skip_logits", [False, True])
def test_any_split_of_a_batch_gives_the_same_gradients(skip_logits):
    torch.manual_seed(2)
    model, batch = guided_model(), aligned_batch(rows=6)
    count = batch["labels"].ne(-100).sum()
    options = {"smoothing": 0.1, "skip_logits": skip_logits}
    guided_loss(model, batch, 0.5, **options).backward()
    whole = gradients(model)
    for sizes in ([1] * 6, [4, 2]):
        for part in zip(*(value.split(sizes) for value in batch.values()), strict=True):
            guided_loss(model, dict(zip(batch, part, strict=True)), 0.5, count, **options).backward()
        close_gradients(gradients(model), whole)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_gradient_checkpointing_changes_no_gradient():
    torch.manual_seed(3)
    model, batch = guided_model(), aligned_batch()
    guided_loss(model, batch, 0.5).backward()
    expected = gradients(model)
    model.gradient_checkpointing_enable()
    guided_loss(model, batch, 0.5).backward()
    close_gradients(gradients(model), expected)


def test_labels_padded_on_the_left():
    torch.manual_seed(4)
    model, batch = guided_model(), aligned_batch()
    shifts = batch["labels"].eq(-100).sum(1)
    left = dict(batch)
    for name in ("labels", "alignments"):
        rows = zip(batch[name], shifts.tolist(), strict=True)
        left[name] = torch.stack([row.roll(shift, 0) for row, shift in rows])
    assert left["labels"][3, 0] == -100
    close(guided_loss(model, left, 0.5), guided_loss(model, batch, 0.5))


@looped("head", [None, (3, 0), (0, 2), (-1, 0)])
def test_impossible_heads(head):
    model = tiny_model()
    model.generation_config.alignment_heads = head and [[*head]]
    with pytest.raises(ValueError, match="`generation_config.alignment_heads` is .*decoder's 3 layers"):
        AlignmentHead.of(model)


def test_alignments_of_another_shape():
    batch = aligned_batch()
    batch["alignments"] = batch["alignments"][:, :, 1:]
    with pytest.raises(ValueError, match=r"`alignments` have shape \(4, 7, 7\).*have \(4, 7, 8\); pass \(B, T, S\)"):
        guided_loss(guided_model(), batch, 0.5)
