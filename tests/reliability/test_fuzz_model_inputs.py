"""Model inputs give finite results, equal for all implementations, or one line that names the input."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import one_line
from reliability import cases
from tiny import VOCABULARY, close, perturbed_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    eager = perturbed_model()
    eager.set_attn_implementation("eager")
    sdpa = perturbed_model()
    sdpa.load_state_dict(eager.state_dict())
    return eager, sdpa


@st.composite
def batches(draw):
    rows, source, target = (draw(st.integers(1, 3)) for _ in range(3))
    seed = draw(st.integers(0, 1000))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, source, generator=generator).gt(0.3).long()
    # A row needs a token to attend to.
    mask[:, draw(st.integers(0, source - 1))] = 1
    return {
        "input_ids": torch.randint(4, VOCABULARY, (rows, source), generator=generator),
        "attention_mask": mask.to(draw(st.sampled_from([torch.long, torch.bool, torch.float32]))),
        "decoder_input_ids": torch.randint(4, VOCABULARY, (rows, target), generator=generator),
    }


def test_implementations_and_caches_agree(models, fuzz):
    @fuzz("masks of any kind: eager, SDPA and a cache agree", 15, 500)
    @given(batches())
    def check(batch):
        with torch.inference_mode():
            eager, sdpa = (model(**batch).logits for model in models)
            assert eager.isfinite().all()
            close(sdpa, eager)
            # Step by step with a cache.
            cache, steps = None, []
            for token in batch["decoder_input_ids"].split(1, dim=1):
                output = models[1](**{**batch, "decoder_input_ids": token}, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                steps.append(output.logits)
            close(torch.cat(steps, 1), eager)


INPUTS = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "labels", "inputs_embeds",
          "encoder_outputs")  # fmt: skip  # an input a line would fill the screen


@st.composite
def odd_tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    # Fewer than four dimensions: torch itself adds four-dimensional masks to the scores, with its own errors.
    if len(shape) < 3 and draw(st.booleans()):
        shape.append(16)
    dtype = draw(st.sampled_from([torch.long, torch.int32, torch.uint8, torch.bool, torch.float32, torch.complex64]))
    value = draw(st.sampled_from([0, 1, 5, 39, 40, -1, -100, 2**31 - 1]))
    x = torch.full(shape, value if dtype in (torch.long, torch.int32, torch.float32) else abs(value) % 2, dtype=dtype)
    form = draw(st.sampled_from(["dense", "dense", "dense", "sparse", "meta", "list", "strided"]))
    if form == "sparse":
        return x.to_sparse()
    if form == "strided":
        return x.repeat(2, *[1] * (x.dim() - 1))[::2] if x.dim() else x
    return {"dense": x, "meta": x.to("meta"), "list": x.tolist()}[form]


def test_odd_inputs(models, fuzz):
    finite = 0

    @fuzz("inputs of any shape, dtype, layout and device", 80, 5000)
    @given(batches(), st.sampled_from(INPUTS), odd_tensors())
    def check(batch, name, odd):
        nonlocal finite
        batch[name] = (odd,) if name == "encoder_outputs" else odd
        if name in ("inputs_embeds", "encoder_outputs"):
            del batch["input_ids"]
        if name == "labels":
            del batch["decoder_input_ids"]
        try:
            with torch.inference_mode():
                output = models[1](**batch)
        except ValueError as error:
            # For a wrong number of rows, the message gives the number.
            assert any(part in one_line(error) for part in ("`", "the encoder's output", "rows for"))
            return
        assert output.logits.isfinite().all() and (output.loss is None or output.loss.isfinite())
        finite += 1

    assert finite >= cases(0, 20)
