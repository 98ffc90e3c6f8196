"""Inference with trained models: translation, scoring, the pipeline, the CTranslate2 runtime."""

from .alignment import word_alignments
from .ctranslate2 import CTranslate2Model, load_ctranslate2
from .decoding import Hypothesis
from .ensemble import VanillaTransformerEnsemble
from .glossary import Glossary, read_glossary
from .pipeline import TranslationPipeline
from .reranking import ChannelReranker
from .scoring import Score, score
from .translation import load, translate, translate_document, translate_lines
from .translator import Translator

__all__ = [
    "CTranslate2Model",
    "ChannelReranker",
    "Glossary",
    "Hypothesis",
    "Score",
    "TranslationPipeline",
    "Translator",
    "VanillaTransformerEnsemble",
    "load",
    "load_ctranslate2",
    "read_glossary",
    "score",
    "translate",
    "translate_document",
    "translate_lines",
    "word_alignments",
]
