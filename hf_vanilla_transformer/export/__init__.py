"""Trained models in other formats: CTranslate2, ONNX, Marian."""

from .formats import export_model

__all__ = ["export_model"]
