"""The original classes of the notebooks, executed if ../shared/seeds exists beside the checkout."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conversions import TOLERANCE, convert, converted_logits, greedy, normalized, refused
from hf_vanilla_transformer import VanillaTransformerEncoderModel
from paths import SHARED

# Names that the notebooks expect in their sessions.
LIGHTNING = SimpleNamespace(LightningModule=nn.Module, seed_everything=torch.manual_seed)
SESSION = {"torch": torch, "nn": nn, "F": F, "math": math, "L": LIGHTNING}
# Replacements that make a notebook run, or remove its defects.
PATCHES = {
    "002": {"x.shape(1)": "x.shape[1]"},
    "000": {
        "attention_values + word_embeddings": "attention_values + position_encoded",
        "decoder_attention_values + word_embeddings": "decoder_attention_values + decoder_positional_embeddings",
    },
    "004": {
        "layer(enc_out, x, enc_out, mask)": "layer(enc_out, enc_out, x, mask)",
        "self.transformer_block(key, query, value)": "self.transformer_block(key, value, query)",
        "attention_out + value": "attention_out + query",
        "F.softmax(self.fc_out(x))": "F.softmax(self.fc_out(x), dim=-1)",
    },
}


@pytest.fixture(scope="module")
def notebook():
    """Return a function that executes a notebook's definitions, patched or not, and returns them by name."""

    def execute(number, patches=(), **names):
        folder = SHARED / "seeds"
        if not folder.is_dir():
            pytest.skip("needs the notebooks of ../shared/seeds, which are not part of the repository")
        (file,) = folder.glob(f"{number}_*")
        text = file.read_text(encoding="utf-8")
        if text.startswith("{"):
            cells = json.loads(text)["cells"]
            text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        # Longest first: one may contain another.
        for old in sorted(patches, key=len, reverse=True):
            assert old in text
            text = text.replace(old, patches[old])
        session = {**SESSION, "copy": __import__("copy"), **names}
        for definition in re.findall(r"^(?:class|def) .*\n(?:[ \t].*\n|\).*\n|[ \t]*\n)+", text, re.MULTILINE):
            is_model = definition.startswith("class ") and "(Dataset)" not in definition
            if is_model or definition.startswith(("def clones", "def build_", "def subsequent_", "def causal_")):
                exec(compile(definition, file.name, "exec"), session)
        return session

    return execute


def scatter(model):
    """Move norms and biases away from 1 and 0, where a mistake would not show."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    return model.eval()


def assert_same(original, model, options, sizes, length=6, rows=2):
    """Compare log-probabilities of a notebook's model, sentence by sentence, with its conversion."""
    converted = convert(model.state_dict(), **options).model()
    source, target = torch.randint(0, sizes[0], (rows, length)), torch.randint(0, sizes[1], (rows, length))
    with torch.no_grad():
        expected = torch.stack([original(source[row], target[row]) for row in range(rows)])
    torch.testing.assert_close(
        normalized(converted_logits(converted, source, target)), expected, atol=TOLERANCE, rtol=0
    )
    return converted


def assert_refused_unless_patched(original, model, patched, sizes, message):
    """A model with a defect is rightly refused: converted as if patched, its weights compute something else."""
    if patched:
        assert_same(original, model, {"patched": True}, sizes)
        return
    refused(message, model.state_dict())
    with pytest.raises(AssertionError, match="not close"):
        assert_same(original, model, {"patched": True}, sizes)


class TestNotebooks:
    def test_annotated_style(self, notebook):
        session = notebook("001")
        model = scatter(session["Transformer"](11, 11, N=2, d_model=16, d_ff=32, h=4))
        source, target = torch.randint(1, 11, (3, 7)), torch.randint(1, 11, (3, 5))
        source[1, 4:] = 0
        mask = (source != 0)[:, None]
        causal = session["subsequent_mask"](5)
        converted = convert(model.state_dict(), encoder_attention_heads=4).model()
        with torch.no_grad():
            expected = model.generator(model(source, target, mask, causal))
        found = normalized(converted_logits(converted, source, target, source != 0))
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)

        def original(ids, prefix):
            seen = torch.ones(1, 1, ids.shape[1])
            return model.generator(model(ids, prefix, seen, session["subsequent_mask"](prefix.shape[1])))

        expected = greedy(original, source[:1], 1, None, 8)
        assert converted.generate(source[:1], num_beams=1, max_new_tokens=8)[0].tolist() == expected

    def test_scalar_norms(self, notebook):
        session = notebook("002", PATCHES["002"])
        model = scatter(session["build_transformer"](13, 17, 9, 9, d_model=16, N=2, h=4, d_ff=32))
        conversion = convert(model.state_dict(), encoder_attention_heads=4)
        assert conversion.config.position_embedding_type == "learned", "both halves are sines"
        assert conversion.config.max_position_embeddings == 9
        source, target = torch.randint(4, 13, (3, 9)), torch.randint(4, 17, (3, 7))
        source[1, 5:], target[2, 4:] = 1, 1
        seen = (source != 1)[:, None, None]
        causal = (target != 1)[:, None, None] & session["causal_mask"](7)
        with torch.no_grad():
            expected = model.project(model.decode(model.encode(source, seen), seen, target, causal))
        found = normalized(converted_logits(conversion.model(), source, target, source != 1, target != 1))
        torch.testing.assert_close(found[target != 1], expected[target != 1], atol=TOLERANCE, rtol=0)

        def original(ids, prefix):
            return model.project(
                model.decode(model.encode(ids, None), None, prefix, session["causal_mask"](prefix.shape[1]))
            )

        expected = greedy(original, source[:1], 2, 3, 8)
        assert conversion.model().generate(source[:1], num_beams=1, max_new_tokens=8)[0].tolist() == expected

    def test_statquest(self, notebook):
        session = notebook("003", input_vocab=range(4), output_vocab=range(5))
        model = session["Transformer"](4, 5, d_model=2, max_len=8).eval()

        def original(source, target):
            return model(source, target).log_softmax(-1)

        converted = assert_same(original, model, {}, (4, 5))
        for phrase in ([0, 1, 3], [0, 2, 3]):
            expected = greedy(lambda ids, prefix: model(ids[0], prefix[0])[None], torch.tensor([phrase]), 0, 4, 5)
            found = converted.generate(torch.tensor([phrase]), num_beams=1, max_new_tokens=5)
            assert found[0].tolist() == expected

    @pytest.mark.parametrize("patched", [True, False])
    def test_lightning_phrases(self, notebook, patched):
        session = notebook("000", PATCHES["000"] if patched else ())
        model = scatter(session["Transformer"](12, 16, max_len=6))

        def original(source, target):
            return model(source, target).log_softmax(-1)

        message = "residual around self-attention skips the position encoding"
        assert_refused_unless_patched(original, model, patched, (12, 16), message)

    @pytest.mark.parametrize("patched", [True, False])
    # PyTorch warns of softmax without an axis, one of the notebook's defects.
    @pytest.mark.filterwarnings("ignore:Implicit dimension choice for softmax:UserWarning")
    def test_shared_heads(self, notebook, patched):
        session = notebook("004", PATCHES["004"] if patched else ())
        model = scatter(session["Transformer"](32, 13, 17, 6, num_layers=2, n_heads=8))

        def original(source, target):
            return model(source[None], target[None])[0].log()

        conversion = convert(model.state_dict(), patched=True)
        assert conversion.config.encoder_attention_heads == conversion.config.decoder_attention_heads == 8
        source = torch.randint(0, 13, (2, 6))
        encoder = convert(model.state_dict(), encoder_only=True).model()
        assert isinstance(encoder, VanillaTransformerEncoderModel)
        with torch.no_grad():
            encoded = encoder(input_ids=source).last_hidden_state
            torch.testing.assert_close(encoded, model.encoder(source), atol=TOLERANCE, rtol=0)
        message = "masked self-attention reads the encoder's output.*`encoder_only=True`"
        assert_refused_unless_patched(original, model, patched, (13, 17), message)
