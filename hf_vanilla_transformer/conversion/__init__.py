"""Convert checkpoints of other code bases into models of this package."""

from .convert import Conversion, convert_checkpoint, load_converted
from .layouts import LAYOUTS

__all__ = ["LAYOUTS", "Conversion", "convert_checkpoint", "load_converted"]
