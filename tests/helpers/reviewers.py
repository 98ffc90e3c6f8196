"""A tiny BERT and reviews that it can learn, for the tests of classifiers."""

import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

WORDS = ["good", "bad", "film", "a", "the", "plot", "."]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save_bert(folder: Path) -> Path:
    """Save a tiny BERT with random weights as a language model, like those on the Hub."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    BertTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, initializer_range=0.3,
    )  # fmt: skip  # one field a line would fill the screen
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def save_reviews(folder: Path) -> Path:
    """Save 48 reviews each for training and testing, positive if they contain "good"; a quarter have 16 words."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        rows = []
        for number in range(48):
            words = generator.choice(WORDS[2:], size=16 if number % 4 == 0 else 6).tolist()
            words[int(generator.integers(6))] = "good" if number % 2 else "bad"
            rows.append({"text": "<br />".join(words), "label": number % 2})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
