"""Hugging Face `Trainer` with token-budget batches, the paper's loss and exact resuming.

In three parts: `trainer_loss`, `trainer_optimizer` and `trainer_checkpoints`, each built on the one before.
"""

from .trainer_checkpoints import CheckpointTrainer


class VanillaTransformerTrainer(CheckpointTrainer):
    """`Seq2SeqTrainer` with token-budget batches and a loss that never stores the logits.

    Batches and loss are described by `LossTrainer`. Other encoder-decoders are trained as by `Seq2SeqTrainer`.

    A NaN or infinite loss or gradient stops training or skips the step, as `args.on_nonfinite` says; see
    `OptimizerTrainer`. Such weights are never saved. Checkpoints are whole or absent, and signals wait for one; see
    `CheckpointTrainer`.
    """


__all__ = ["VanillaTransformerTrainer"]
