"""The layouts of source checkpoints, one module a family."""
