"""Export trained models to CTranslate2, ONNX and Marian."""

from .formats import export_model

__all__ = ["export_model"]
