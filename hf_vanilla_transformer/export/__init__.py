"""A trained model in other formats: CTranslate2, ONNX, Marian."""
