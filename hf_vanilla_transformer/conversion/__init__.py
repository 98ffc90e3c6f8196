"""Conversion of source checkpoints: the weights of other code bases as models of this package."""

from .convert import LAYOUTS, Conversion, convert_checkpoint

__all__ = ["LAYOUTS", "Conversion", "convert_checkpoint"]
