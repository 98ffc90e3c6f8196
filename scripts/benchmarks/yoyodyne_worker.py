"""Training steps of yoyodyne's transformer of our size, by its own trainer, in an environment of its own.

Prints seconds and words of the steps after the first. Its model ties the embeddings of both sides by default.
"""

import json
import sys
import time
from typing import Any

import torch

# Its requirements may bring a torchvision for another build of torch, which fails to register its ops.
_register_fake: Any = torch.library.register_fake
torch.library.register_fake = lambda op, *args, **kwargs: (
    (lambda function: function) if str(op).startswith("torchvision::") else _register_fake(op, *args, **kwargs)
)

from lightning.pytorch import Callback  # noqa: E402  # as above
from yoyodyne import data, models, trainers  # noqa: E402
from yoyodyne.models import modules  # noqa: E402


class Clock(Callback):
    """Records when each step ends, and its words."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.words: list[int] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.times.append(time.perf_counter())
        self.words.append(len(batch))


def main(file: str, folder: str, dtype: str, *numbers: str) -> None:
    batch_size, steps, threads, width, inner, layers, heads = map(int, numbers)
    torch.set_num_threads(threads)
    words = data.DataModule(model_dir=folder, train=file, source_sep=" ", target_sep=" ", batch_size=batch_size)
    sizes = {"hidden_size": inner, "layers": layers, "attention_heads": heads, "dropout": 0.1}
    model = models.TransformerModel(
        source_encoder=modules.TransformerEncoder(embedding_size=width, **sizes),
        embedding_size=width,
        **{f"decoder_{name}": size for name, size in sizes.items()},
        vocab_size=words.vocab_size,
        target_vocab_size=words.target_vocab_size,
    )
    clock = Clock()
    trainer = trainers.Trainer(
        max_steps=steps + 1,
        precision="bf16-mixed" if dtype == "bfloat16" else "32-true",
        accelerator="cpu",
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, words)
    print(json.dumps([clock.times[-1] - clock.times[0], sum(clock.words[1:])]))


if __name__ == "__main__":
    main(*sys.argv[1:])
