import evaluate
import numpy as np
import pytest

from imdb.accuracy import Accuracy


def test_nothing_to_score():
    with pytest.raises(ValueError, match="nothing to score"):
        Accuracy().compute()


def test_accuracy():
    metric = Accuracy()
    assert metric.compute(predictions=np.array([1, 0, 2, 2]), references=[1, 0, 2, 1]) == {"accuracy": 0.75}
    metric.add(prediction=1, reference=1)
    metric.add_batch(predictions=[0, 2], references=[0, 1])
    assert metric.compute() == {"accuracy": pytest.approx(2 / 3)}
    assert evaluate.combine([metric]).compute(predictions=[0], references=[1]) == {"accuracy": 0.0}


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([0.2, 0.8], [0, 1], r"`predictions` must be class ids.*float64 of shape \(2,\).*argmax"),
        ([[0, 1], [1, 0]], [0, 1], r"`predictions` must be class ids.*shape \(2, 2\)"),
        ([0, 1], ["a", "b"], "`references` must be class ids"),
        ([0, 1], [0], "2 predictions but 1 references"),
        ([], [], "are empty"),
    ],
)
def test_bad_classes(predictions, references, message):
    metric = Accuracy()
    with pytest.raises(ValueError, match=message):
        metric.compute(predictions=predictions, references=references)
    assert metric.compute(predictions=[1], references=[1]) == {"accuracy": 1.0}


def test_nothing_is_left_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path))
    Accuracy().compute(predictions=[1], references=[1])
    assert list(tmp_path.iterdir()) == []
    Accuracy(keep_in_memory=False)
    assert list(tmp_path.iterdir()) != [], "this is not the folder that evaluate uses"


def test_file_cache_is_emptied(tmp_path):
    metric = Accuracy(keep_in_memory=False, cache_dir=str(tmp_path))
    assert metric.compute(predictions=[1], references=[1]) == {"accuracy": 1.0}
    assert list(tmp_path.rglob("*.arrow")) == []
