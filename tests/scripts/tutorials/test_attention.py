import numpy as np
import torch
from matplotlib.image import imread

from hf_vanilla_transformer.data.arguments import DataArguments
from tutorials import attention
from tutorials.attention import ATTENTION_SENTENCES
from tutorials.common import TutorialArguments


def test_attention_gives_the_printed_matrices(run, tmp_path):
    result = run("attention", tmp_path)
    differences = result["figures"]["largest_difference"]
    assert len(differences) == 2 and max(differences) < 1e-7 and result["reproduced"]
    for name in ("cat", "dog"):
        assert imread(tmp_path / "attention" / f"{name}.png").std() > 0.05
    assert result["versions"]["torch"] == torch.__version__ and result["seconds"] > 0
    assert {"tutorial", "claim", "result", "figures", "reproduced"} <= result.keys()


def test_other_weights_are_not_the_tutorials(monkeypatch, tmp_path):
    changed = {sentence: np.roll(weights, 1, axis=1) for sentence, weights in ATTENTION_SENTENCES.items()}
    monkeypatch.setattr(attention, "ATTENTION_SENTENCES", changed)
    monkeypatch.setattr(attention, "plot_attention", lambda *args, **kwargs: None)
    args = TutorialArguments(output_dir=str(tmp_path))
    assert not attention.reproduce_attention(args, DataArguments()).reproduced
