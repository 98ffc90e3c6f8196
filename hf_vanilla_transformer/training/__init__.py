"""Training: arguments, trainer, checkpoints, metrics, and the experiment that puts them together."""
