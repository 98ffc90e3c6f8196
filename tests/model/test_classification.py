"""Sequence classification: mean over tokens, linear layer, three losses, and loading to and from translators."""

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from devices import CHECKS_VALUES, TEST_DEVICE, same_numbers
from hf_vanilla_transformer import (
    VanillaTransformerEncoderModel,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
    train_tokenizer,
)
from tables import looped
from tiny import (
    EVERY_VOCABULARY,
    batch_with_padding,
    close,
    close_gradients,
    gradients,
    loss_and_gradients,
    tiny_config,
    tiny_model,
    tokens,
)

SINGLE, MULTI = "single_label_classification", "multi_label_classification"
LABELS = {
    SINGLE: torch.tensor([2, 0, 1, 2]),
    MULTI: torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]).float(),
    "regression": torch.tensor([[0.5, -1.0, 2.0]] * 4),
}
LOSSES = {SINGLE: F.cross_entropy, MULTI: F.binary_cross_entropy_with_logits, "regression": F.mse_loss}


@same_numbers
def tiny_classifier(**changes):
    torch.manual_seed(0)
    return VanillaTransformerForSequenceClassification(tiny_config(num_labels=3, **changes)).eval()


def source():
    batch = batch_with_padding()
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


class TestLogits:
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_are_a_linear_map_of_the_mean_state(self, side):
        model, batch = tiny_classifier(), source()
        if side == "left":
            batch = {name: rows.flip(1) for name, rows in batch.items()}
        states, masks = model.model.encoder(**batch).last_hidden_state, batch["attention_mask"].bool()
        means = torch.stack([each[mask].mean(0) for each, mask in zip(states, masks, strict=True)])
        close(model(**batch).logits, means @ model.classifier.weight.T + model.classifier.bias)

    def test_of_a_row_of_padding_are_finite(self):
        model = tiny_classifier()
        logits = model(input_ids=tokens(2, 3), attention_mask=torch.tensor([[1, 1, 1], [0, 0, 0]])).logits
        close(logits[1], model.classifier.bias)

    def test_of_embeddings(self):
        model, batch = tiny_classifier(), source()
        embeds = model.get_input_embeddings()(batch["input_ids"])
        close(model(inputs_embeds=embeds, attention_mask=batch["attention_mask"]).logits, model(**batch).logits)

    def test_come_with_states_and_weights_or_as_a_tuple(self):
        model, batch = tiny_classifier(), source()
        model.set_attn_implementation("eager")
        outputs = model(**batch, output_hidden_states=True, output_attentions=True)
        assert [state.shape for state in outputs.hidden_states] == [(2, 6, 16)] * 3
        assert [weights.shape for weights in outputs.attentions] == [(2, 4, 6, 6)] * 2
        (logits,) = model(**batch, return_dict=False)
        close(logits, outputs.logits)

    def test_drop_out_in_training_only(self):
        model, batch = tiny_classifier(dropout=0.5), source()
        close(model(**batch).logits, model(**batch).logits, 0)
        model.train()
        assert not torch.equal(model(**batch).logits, model(**batch).logits)

    def test_compile_in_one_graph(self):
        model, batch = tiny_classifier(), source()
        with torch.no_grad():
            close(torch.compile(model, fullgraph=True, backend="eager")(**batch).logits, model(**batch).logits)


class TestLoss:
    @pytest.mark.parametrize("problem", LABELS)
    def test_is_the_textbook_one(self, problem):
        model, ids, labels = tiny_classifier(), tokens(4, 5), LABELS[problem].to(TEST_DEVICE)
        model.config.problem_type = problem
        outputs = model(input_ids=ids, labels=labels)
        close(outputs.loss, LOSSES[problem](outputs.logits, labels))

    @looped(
        ("num_labels", "labels", "problem"),
        [
            (3, LABELS[SINGLE], SINGLE),
            (3, LABELS[MULTI], MULTI),
            (1, torch.tensor([0.5, 1.0, 2.0, 3.0]), "regression"),
            (1, torch.tensor([[1], [2], [3], [4]]), "regression"),
        ],
    )
    def test_problem_type_is_inferred(self, num_labels, labels, problem):
        model = VanillaTransformerForSequenceClassification(tiny_config(num_labels=num_labels)).eval()
        labels = labels.to(TEST_DEVICE)
        outputs = model(input_ids=tokens(4, 5), labels=labels)
        assert model.config.problem_type == problem
        if problem == "regression":
            close(outputs.loss, (outputs.logits.flatten() - labels.flatten()).square().mean())

    @pytest.mark.parametrize("problem", LABELS)
    def test_any_split_of_a_batch_gives_the_same_gradient(self, problem):
        model, ids, labels = tiny_classifier(), tokens(4, 5), LABELS[problem].to(TEST_DEVICE)
        model.config.problem_type = problem
        _, whole = loss_and_gradients(model, {"input_ids": ids, "labels": labels})
        for rows in (slice(0, 1), slice(1, 4)):
            model(input_ids=ids[rows], labels=labels[rows], num_items_in_batch=labels.numel()).loss.backward()
        close_gradients(gradients(model), whole)

    @pytest.mark.parametrize(
        ("problem", "labels", "message"),
        [
            (SINGLE, torch.ones(4, 3), r"\(4, 3\).*`num_labels`=3 needs integers of shape \(4,\)"),
            (MULTI, torch.ones(4), r"\(4,\).*`num_labels`=3 needs numbers of shape \(4, 3\)"),
            ("regression", torch.ones(4), r"\(4,\).*`num_labels`=3 needs numbers of shape \(4, 3\)"),
            pytest.param(SINGLE, torch.arange(4), r"`labels` has 3 at \[3\].*from 0 to 2", marks=CHECKS_VALUES),
            (SINGLE, torch.ones(4), "float32.*`problem_type`"),
        ],
    )
    def test_unsuitable_labels_raise(self, problem, labels, message):
        model = tiny_classifier()
        model.config.problem_type = problem
        with pytest.raises(ValueError, match=message):
            model(input_ids=tokens(4, 5), labels=labels.to(TEST_DEVICE))


class TestLoading:
    def test_auto_classes(self, tmp_path):
        model, batch = tiny_classifier(id2label={0: "NO", 1: "YES", 2: "MAYBE"}), source()
        model.save_pretrained(tmp_path)
        loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
        assert type(loaded) is VanillaTransformerForSequenceClassification
        assert loaded.config.id2label[2] == "MAYBE"
        close(loaded(**batch).logits, model(**batch).logits, 0)
        assert type(AutoModelForSequenceClassification.from_config(tiny_config())) is type(model)
        encoder = AutoModelForTextEncoding.from_pretrained(tmp_path)
        assert type(encoder) is VanillaTransformerEncoderModel
        close(encoder(**batch).last_hidden_state, model.model(**batch).last_hidden_state, 0)

    @EVERY_VOCABULARY
    @looped("part", [lambda model: model, lambda model: model.model])
    def test_starts_from_the_encoder_of_a_translator(self, part, changes, tmp_path):
        translator = part(tiny_model(**changes))
        translator.save_pretrained(tmp_path)
        model, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
        assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
        assert not info["unexpected_keys"]
        states = translator.get_encoder()(**(batch := source())).last_hidden_state
        close(model.model(**batch).last_hidden_state, states, 0)

    def test_its_encoder_starts_a_translator(self, tmp_path):
        model = tiny_classifier()
        model.save_pretrained(tmp_path)
        translator = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
        close(translator.model.encoder(**(batch := source()))[0], model.model(**batch)[0], 0)
        close(AutoModel.from_pretrained(tmp_path).encoder(**batch)[0], model.model(**batch)[0], 0)

    def test_vocabulary_can_grow(self, tmp_path):
        model, batch = tiny_classifier(), source()
        before = model(**batch).logits
        model.resize_token_embeddings(50)
        close(model(**batch).logits, before, 0)
        model.save_pretrained(tmp_path)
        close(AutoModelForSequenceClassification.from_pretrained(tmp_path)(**batch).logits, before, 0)


def test_learns_with_trainer_and_serves_in_a_pipeline(tmp_path):
    texts = [f"{'good' if i % 2 else 'bad'} {'film' if i % 3 else 'book'} {i % 7}" for i in range(40)]
    tokenizer = train_tokenizer(texts, algorithm="word", vocab_size=50, min_frequency=1)
    rows = [{**tokenizer(text), "labels": i % 2} for i, text in enumerate(texts)]
    config = tiny_config(vocab_size=len(tokenizer), id2label={0: "NEGATIVE", 1: "POSITIVE"}, dropout=0.1)
    model = VanillaTransformerForSequenceClassification(config)
    schedule = {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2, "num_train_epochs": 15}
    options = {"learning_rate": 1e-2, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(str(tmp_path / "run"), **schedule, **options)
    trainer = Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    assert trainer.predict(rows[:2]).predictions.argmax(-1).tolist() == [0, 1]
    classify = pipeline("text-classification", model=model.eval(), tokenizer=tokenizer)
    (answer,) = classify("good book 3")
    assert answer["label"] == "POSITIVE" and answer["score"] > 0.9
