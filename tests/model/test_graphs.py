"""Graphs of the model against the model itself: compiled, exported by torch and by the exporters of transformers."""

import copy
import shutil

import pytest
import torch
from torch.export import Dim
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from tiny import (
    EVERY_SHAPE,
    SHAPES,
    close,
    close_gradients,
    counting_backend,
    gradients,
    loss_and_gradients,
    one_layer_model,
)
from translators import ENGLISH, build

exporters = pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
pytest.importorskip("onnxruntime", reason="ONNX graphs run in onnxruntime, of the extra `export`")

from transformers.exporters import DynamoConfig, DynamoExporter, OnnxConfig, OnnxExporter  # noqa: E402 - needs the above

# All changes of shapes in one model.
SEVERAL = {name: value for changes in SHAPES.values() for name, value in changes.items()}
# Each case takes seconds; the fast one covers every property.
ATTENTION_AND_SHAPES = pytest.mark.parametrize(
    ("attention", "changes"),
    [
        ("sdpa", SEVERAL),
        *(
            pytest.param(attention, changes, marks=pytest.mark.slow, id=f"{attention}-{name}")
            for attention in ("eager", "sdpa")
            for name, changes in SHAPES.items()
        ),
    ],
)
EXPORTERS = {"dynamo": (DynamoExporter, DynamoConfig, 1e-5), "onnx": (OnnxExporter, OnnxConfig, 1e-4)}

# torch, onnxscript and onnxruntime warn about their own code and about missing libraries.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def inputs(rows, source, target=None, seed=1, of_target="decoder_input_ids"):
    """Inputs whose last source is padded."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(length):
        return torch.randint(4, 40, (rows, length), generator=generator)

    mask = torch.ones(rows, source, dtype=torch.long)
    mask[-1, source // 2 :] = 0
    made = {"input_ids": tokens(source), "attention_mask": mask}
    return made if target is None else {**made, of_target: tokens(target)}


# Batches of different shapes; graphs are exported from the first.
BATCHES = (inputs(3, 6, 5), inputs(2, 9, 3, seed=2), inputs(5, 4, 11, seed=3))
LABELLED = inputs(3, 6, 5, of_target="labels")


def run_graph(exported, given):
    """Return an exported graph's logits, with the interface of the release that exported it."""
    given = copy.deepcopy(given)
    if hasattr(exported, "components"):
        return exported(**given).logits
    if isinstance(exported, torch.export.ExportedProgram):
        return exported.module()(**given).logits
    return torch.as_tensor(exported(**given)[0])


class TestExporters:
    @ATTENTION_AND_SHAPES
    def test_dynamo_graphs_take_any_shape(self, changes, attention):
        self.check("dynamo", changes, attention)

    # Fast tests of tests/export/test_onnx.py cover the same exporter.
    @pytest.mark.slow
    @EVERY_SHAPE
    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_onnx_graphs_take_any_shape(self, changes, attention):
        self.check("onnx", changes, attention)

    def check(self, kind, changes, attention):
        exporter, config, tolerance = EXPORTERS[kind]
        model = one_layer_model(**changes)
        model.set_attn_implementation(attention)
        exported = exporter().export(model, BATCHES[0], config(dynamic=True))
        for given in BATCHES:
            with torch.no_grad():
                expected = model(**given).logits
            close(run_graph(exported, given), expected, tolerance)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", EXPORTERS)
    @pytest.mark.parametrize("multi_token_decode", [False, True])
    @pytest.mark.parametrize("cache", [None, "static"])
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_every_stage_of_generation_exports(self, kind, multi_token_decode, cache, dynamic):
        if not hasattr(exporters, "ExportedModel"):
            pytest.skip("this release of transformers exports single stages only")
        exporter, config, _ = EXPORTERS[kind]
        model, settings = one_layer_model(), None
        if cache:
            static = {"cache_implementation": cache, "max_cache_len": 16}
            settings = GenerationConfig(**{**model.generation_config.to_diff_dict(), **static})
        options = {"generation_config": settings, "multi_token_decode": multi_token_decode}
        exported = exporter().export_for_generation(model, inputs(3, 6), config(dynamic=dynamic), **options)
        assert list(exported.components) == ["prefill", "decode"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPORTERS)
@pytest.mark.parametrize("name", ["shared", "pair", "learned"])
def test_greedy_translations_are_those_of_generate(kind, name, tmp_path):
    """Export encoder and decoder with its cache, and run them in turn; ONNX graphs are also saved and loaded."""
    if not hasattr(exporters, "ExportedModel"):
        pytest.skip("this release of transformers has no runners for what it exports")
    exporter, config, tolerance = EXPORTERS[kind]
    model, tokenizer = build(name)
    source = dict(tokenizer(ENGLISH, padding=True, return_tensors="pt", return_token_type_ids=False))
    expected = model.generate(**source, max_new_tokens=8, eos_token_id=None)

    encoder = exporter().export(model.get_encoder(), source, config(dynamic=True))
    stages = exporter().export_for_generation(model, source, config(dynamic=True), multi_token_decode=True)
    # A saved Dynamo graph holds pickled inputs, which torch does not load.
    if kind == "onnx":
        encoder.save_pretrained(tmp_path / "encoder")
        stages.save_pretrained(tmp_path / "decoder")
        load = exporters.ExportedModel.from_pretrained
        encoder, stages = load(tmp_path / "encoder"), load(tmp_path / "decoder")
    decoder = stages.runners["decode"]

    # Fewer sentences than at export.
    for rows in (slice(0, 5), slice(0, 2)):
        part = {column: value[rows] for column, value in source.items()}
        states = encoder(**part).last_hidden_state
        close(states, model.get_encoder()(**part).last_hidden_state, tolerance)
        cache, target = filled_cache(model, states), torch.ones(len(states), 1, dtype=torch.long)
        for _ in range(8):
            given = {
                "attention_mask": part["attention_mask"],
                "decoder_input_ids": target[:, cache.get_seq_length() :],
                "encoder_outputs": BaseModelOutput(last_hidden_state=states),
                "past_key_values": cache,
            }
            step = decoder(**given)
            cache = step.past_key_values
            target = torch.cat([target, step.logits[:, -1:].argmax(-1)], 1)
        assert torch.equal(target, expected[rows])


def filled_cache(model, states):
    """Return the exported decoder's first cache: the encoder's keys and values, and no target token."""
    cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    for place, layer in enumerate(model.model.decoder.layers):
        attention = layer.encoder_attn
        heads = [
            projection(states).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for projection in (attention.k_proj, attention.v_proj)
        ]
        cache.cross_attention_cache.update(*heads, place)
        cache.is_updated[place] = True
        cache.self_attention_cache.update(*(part[:, :, :0] for part in heads), place)
    return cache


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("of_target", ["decoder_input_ids", "labels"])
def test_torch_exports_one_graph_for_all_shapes(strict, of_target):
    """With labels the graph computes logits too. Strict tracing is that of `TestCompile`."""
    model, given = one_layer_model(), {**inputs(3, 6, 5, of_target=of_target), "use_cache": False}
    # A single token needs another graph.
    rows, source, target = Dim("rows", min=2), Dim("source", min=2), Dim("target", min=3)
    shapes = {name: {0: rows, 1: source} for name in ("input_ids", "attention_mask")}
    shapes |= {of_target: {0: rows, 1: target}, "use_cache": None}
    program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=strict)
    # Sinusoids have no limit, although 32 are cached.
    assert model.config.max_position_embeddings == 32
    for source, target in ((9, 4), (50, 45)):
        other = {**inputs(2, source, target, seed=4, of_target=of_target), "use_cache": False}
        found, expected = program.module()(**other), model(**other)
        close(found.logits, expected.logits)
        if of_target == "labels":
            close(found.loss, expected.loss)


@pytest.mark.slow
def test_torch_exports_onnx_for_all_shapes(tmp_path):
    """`torch.onnx.export` itself, without the exporters of transformers; ONNX has no modulo of a dynamic size."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="runs the graph")

    class Logits(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, decoder_input_ids):
            options = {"decoder_input_ids": decoder_input_ids, "use_cache": False}
            return self.model(input_ids, attention_mask, **options).logits

    model, rows, source, target = one_layer_model(), Dim("rows"), Dim("source"), Dim("target")
    shapes = {name: {0: rows, 1: source} for name in ("input_ids", "attention_mask")}
    shapes["decoder_input_ids"] = {0: rows, 1: target}
    with torch.no_grad():
        program = torch.onnx.export(
            Logits(model), (), kwargs=inputs(3, 6, 5), dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    program.save(tmp_path / "model.onnx")
    other = inputs(2, 50, 45, seed=4)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(None, {name: tensor.numpy() for name, tensor in other.items()})
    with torch.no_grad():
        close(torch.from_numpy(logits), model(**other).logits, 1e-4)


class TestCompile:
    @pytest.fixture(autouse=True)
    def _fresh(self):
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    @pytest.mark.parametrize(
        "changes", [{}, SEVERAL, *(pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES.values() if shape)]
    )
    def test_forward_is_one_graph_for_all_shapes(self, changes):
        model, graphs = one_layer_model(**changes), []
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counting_backend(graphs))
        with torch.no_grad():
            for given in BATCHES:
                close(compiled(**given, use_cache=False).logits, model(**given, use_cache=False).logits)
        assert len(graphs) == 1

    def test_arguments_that_change_nothing_break_no_graph(self):
        """Their values are not read."""
        model, graphs = one_layer_model().requires_grad_(False), []
        given = {**BATCHES[0], "use_cache": False}
        neutral = {"position_ids": torch.arange(5)[None], "head_mask": [1.0]}
        compiled = torch.compile(model, backend=counting_backend(graphs), fullgraph=True)
        exported = torch.export.export(model, (), given | neutral).module()
        for graph in (compiled, exported):
            close(graph(**given, **neutral).logits, model(**given).logits)
        assert len(graphs) == 1

    @pytest.mark.parametrize(
        "options",
        [{}, pytest.param({"smoothing": 0.1}, marks=pytest.mark.slow), {"smoothing": 0.1, "skip_logits": True}],
    )
    def test_training_step(self, options):
        model = one_layer_model(dropout=0.1).train()
        model.config.dropout = 0.0
        self.compare(model, "aot_eager", **options)

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles with g++, which is not here")
    def test_inductor(self):
        self.compare(one_layer_model(), "inductor")

    def compare(self, model, backend, **options):
        loss, expected = loss_and_gradients(model, LABELLED, **options)
        compiled = torch.compile(model, fullgraph="skip_logits" not in options, backend=backend)
        found = compiled(**LABELLED, **options).loss
        found.backward()
        close(found, loss)
        close_gradients(gradients(model), expected)

    def test_dropout_is_compiled_too(self):
        compiled = torch.compile(one_layer_model(dropout=0.5).train(), fullgraph=True, backend="aot_eager")
        first, second = (compiled(**BATCHES[0], use_cache=False).logits for _ in range(2))
        assert not torch.equal(first, second)
