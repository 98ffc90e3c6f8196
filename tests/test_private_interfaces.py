"""Private interfaces of other libraries that the package depends on.

A new release that drops or changes one fails here by name, rather than somewhere deep inside.
"""

import ast
import importlib
import inspect
import pkgutil
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig, Seq2SeqTrainer

import hf_vanilla_transformer
from hf_vanilla_transformer.model.compat_vanilla_transformer import CACHE
from hf_vanilla_transformer.training import VanillaTransformerTrainer
from tables import looped

PACKAGE = "hf_vanilla_transformer"
LIBRARIES = ("torch", "transformers", "accelerate", "huggingface_hub", "datasets", "tokenizers")

# Methods of `Trainer` that are overridden or called: the parameters passed, and why no public hook does.
TRAINER = {
    "_determine_best_metric": (
        "metrics trial",
        "a callback sees an evaluation before `Trainer` judges it, but cannot make a non-finite score lose",
    ),
    "_finalize_training": (
        "trial num_train_samples start_time",
        "loss and time of all sessions are logged and returned here, before `on_train_end`",
    ),
    "_get_collator_with_removed_columns": (
        "data_collator description",
        "a loader of our own drops the same columns of a stream as `Trainer`'s",
    ),
    "_get_grad_norm": (
        "model grad_norm",
        "`on_pre_optimizer_step` comes at the same time, but without the norm, which is costly to compute twice",
    ),
    "_get_output_dir": (
        "trial",
        "checkpoints are written elsewhere first; `args.output_dir` itself is saved in them",
    ),
    "_issue_warnings_after_load": ("load_result", "`Trainer` warns of tied weights, which are stored once"),
    "_load_from_checkpoint": (
        "resume_from_checkpoint model",
        "weights beside their average; errors name the checkpoint",
    ),
    "_load_optimizer_and_scheduler": (
        "checkpoint",
        "after changes, settings and schedule come from the arguments, and another optimizer's state cannot be loaded",
    ),
    "_load_rng_state": (
        "checkpoint",
        "with another seed, the saved state must not be restored",
    ),
    "_maybe_log_save_evaluate": (
        "tr_loss grad_norm model trial",
        "no callback follows the evaluation, which may decide whether a step is saved before a signal takes effect",
    ),
    "_push_from_checkpoint": (
        "checkpoint_folder",
        "`on_save` comes after the push, which must wait until the checkpoint is complete",
    ),
    "_remove_unused_columns": (
        "dataset description",
        "a loader of our own drops the same columns of a dataset as `Trainer`'s",
    ),
    "_run_epoch": (
        "model epoch train_dataloader",
        "in a complete run that is resumed, `Trainer` reads `should_training_stop` only after another step",
    ),
    "_save_checkpoint": ("model trial", "checkpoints are published atomically; `on_save` comes too late"),
    "_set_signature_columns_if_needed": (
        "",
        "`alignments` are for the loss, not for the model's `forward`, and `label_names` would make them labels",
    ),
}

# Functions and methods called or overridden, with the parameters passed by position or name.
CALLABLES = {
    **{f"transformers.Trainer.{name}": passed for name, (passed, _) in TRAINER.items()},
    # The model
    "torch._C._autograd._saved_tensors_hooks_is_enabled": "",
    "torch._C._autograd._top_saved_tensors_default_hooks": "",
    "torch._C._are_functorch_transforms_active": "",
    "torch._C._get_mkldnn_enabled": "",
    "torch._C._get_tracing_state": "",
    "torch._C._len_torch_dispatch_stack": "",
    "torch._foreach_copy_": "self src",
    "torch._safe_softmax": "self dim dtype",
    "torch.nn.modules.module._has_any_global_hook": "",
    "torch.utils._python_dispatch.is_in_torch_dispatch_mode": "",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported": "",
    "torch.ops.mkldnn._linear_pointwise": "X W B attr scalars algorithm",
    "torch.ops.mkldnn._reorder_linear_weight": "self batch_size",
    "torch.nn.attention.varlen.varlen_attn": ("query key value cu_seq_q cu_seq_k max_q max_k scale window_size"),
    "transformers.PreTrainedModel._get_resized_lm_head": "old_lm_head new_num_tokens",
    "transformers.PreTrainedModel._init_weights": "module",
    "transformers.PreTrainedModel._resize_token_embeddings": "new_num_tokens pad_to_multiple_of mean_resizing",
    "transformers.masking_utils.create_bidirectional_mask": (
        "config inputs_embeds attention_mask encoder_hidden_states and_mask_function allow_is_bidirectional_skip"
    ),
    "transformers.masking_utils.create_causal_mask": (
        f"config inputs_embeds attention_mask {CACHE} and_mask_function allow_is_causal_skip"
    ),
    "transformers.masking_utils.create_masks_for_generate": f"config inputs_embeds attention_mask {CACHE}",
    "transformers.modeling_flash_attention_utils._flash_attention_forward": (
        "cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k"
    ),
    "transformers.utils.generic.is_flash_attention_requested": "config",
    "transformers.utils.generic.merge_with_config_defaults": "func",
    "transformers.utils.output_capturing.OutputRecorder": "target_class index layer_name",
    "transformers.utils.output_capturing.capture_outputs": "func",
    # Decoding, overridden or called by fast/ only: `generate()` has no public hook between its steps
    "transformers.GenerationMixin._beam_search": (
        "input_ids logits_processor stopping_criteria generation_config synced_gpus"
    ),
    "transformers.GenerationMixin._expand_inputs_for_generation": "expand_size is_encoder_decoder input_ids",
    "transformers.GenerationMixin._prepare_cache_for_generation": (
        "generation_config model_kwargs generation_mode batch_size max_cache_length"
    ),
    "transformers.GenerationMixin._sample": (
        "input_ids logits_processor stopping_criteria generation_config synced_gpus streamer"
    ),
    "transformers.GenerationMixin._valid_auto_compile_criteria": "model_kwargs generation_config",
    "transformers.PreTrainedModel.get_compiled_call": "compile_config",
    # The tokenizer
    "transformers.PreTrainedTokenizerFast._add_tokens": "new_tokens special_tokens",
    "transformers.PreTrainedTokenizerFast._decode": "token_ids",
    "transformers.PreTrainedTokenizerFast._encode_plus": "text text_pair is_split_into_words return_tensors",
    "transformers.PreTrainedTokenizerFast._from_pretrained": "resolved_vocab_files",
    "transformers.PreTrainedTokenizerFast._save_pretrained": "save_directory file_names legacy_format filename_prefix",
    "transformers.NllbTokenizer._build_translation_inputs": "raw_inputs return_tensors src_lang tgt_lang",
    # The Hub
    "transformers.PreTrainedModel._upload_modified_files": "working_dir",
    "transformers.PreTrainedConfig._upload_modified_files": "working_dir",
    "transformers.PreTrainedTokenizerFast._upload_modified_files": "working_dir",
    # The pipeline
    "transformers.Pipeline._forward": "input_tensors",
    "transformers.Pipeline._sanitize_parameters": "",
    # Caches of datasets
    "datasets.fingerprint.Hasher.hash": "value",
    # Export
    "transformers.exporters.OnnxConfig": "dynamic",
    "transformers.exporters.OnnxExporter": "",
}

# Everything else: classes, constants, attributes of classes and of modules.
VALUES = (
    "datasets.exceptions.DatasetGenerationError",
    "datasets.exceptions.DatasetsError",
    "huggingface_hub.errors.HFValidationError",
    "huggingface_hub.errors.HTTPError",
    "huggingface_hub.errors.HfHubHTTPError",
    "huggingface_hub.errors.LocalEntryNotFoundError",
    "huggingface_hub.errors.StrictDataclassFieldValidationError",
    "torch.autograd.forward_ad._current_level",
    "transformers.PreTrainedModel._can_compile_fullgraph",
    "transformers.PreTrainedModel._can_record_outputs",
    "transformers.PreTrainedModel._fsdp_plan",
    "transformers.PreTrainedModel._keys_to_ignore_on_load_unexpected",
    "transformers.PreTrainedModel._no_split_modules",
    "transformers.PreTrainedModel._skip_keys_device_placement",
    "transformers.PreTrainedModel._supports_flash_attn",
    "transformers.PreTrainedModel._supports_flex_attn",
    "transformers.PreTrainedModel._supports_sdpa",
    "transformers.PreTrainedModel._tied_weights_keys",
    "transformers.PreTrainedModel._tp_plan",
    "transformers.activations.ACT2FN",
    "transformers.generation.GenerationMode",
    "transformers.generation.GenerateBeamEncoderDecoderOutput",
    "transformers.generation.utils.GenerateBeamEncoderDecoderOutput",
    "transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface",
    "transformers.pipelines.PIPELINE_REGISTRY.task_aliases",
    "transformers.models.nllb.tokenization_nllb.FAIRSEQ_LANGUAGE_CODES",
    "transformers.models.whisper.tokenization_whisper.LANGUAGES",
    "transformers.models.whisper.tokenization_whisper.TO_LANGUAGE_CODE",
    "transformers.Pipeline._load_feature_extractor",
    "transformers.Pipeline._load_image_processor",
    "transformers.Pipeline._load_processor",
    "transformers.Pipeline._load_tokenizer",
    "transformers.Pipeline._load_video_processor",
    "transformers.pipelines.PIPELINE_REGISTRY.register_pipeline",
    "transformers.pipelines.base.ChunkPipeline",
    "transformers.trainer.TRAINER_STATE_NAME",
    "transformers.trainer_callback.ExportableState",
    "transformers.utils.GENERATION_CONFIG_NAME",
)


def resolve(dotted: str) -> object:
    """Import the longest module in a dotted name and resolve the rest as attributes."""
    names = dotted.split(".")
    for end in range(len(names), 0, -1):
        try:
            module = importlib.import_module(".".join(names[:end]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, names[end:], module)
    raise AssertionError(dotted)


def parameters(function: object) -> list[str]:
    if inspect.isbuiltin(function):
        # PyTorch's builtins have no signature, but an operator schema.
        function = getattr(torch.ops.aten, function.__name__)
    if isinstance(function, torch._ops.OpOverloadPacket):
        # The first overload has all parameters passed.
        return [argument.name for argument in getattr(function, function.overloads()[0])._schema.arguments]
    return list(inspect.signature(function).parameters)


# Importing the exporters of transformers 5.17 calls torch.jit.script.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@looped("name", CALLABLES)
def test_a_function_takes_what_it_is_given(name):
    function = resolve(name)
    wanted = CALLABLES[name].split()
    if wanted:
        assert [each for each in parameters(function) if each in wanted] == wanted, parameters(function)
    else:
        assert callable(function)


@looped("name", VALUES)
def test_a_name_exists(name):
    resolve(name)


def test_attributes_of_instances():
    layer = nn.Linear(1, 1)
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        assert len(getattr(layer, name)) == 0
    assert layer._parameters["weight"] is layer.weight and layer.weight._version >= 0
    assert callable(torch.ops.mkldnn._linear_pointwise.default._op)
    assert isinstance(torch.autograd.Function._backward_cls, type)
    assert PreTrainedConfig()._attn_implementation is None
    assert PreTrainedConfig._auto_class is None
    parser = ArgumentParser(add_help=False)
    action = ArgumentParser()._actions[0]
    parser.add_argument_group("help")._add_action(action)
    assert parser._option_string_actions["--help"] is action


# Listed above, checked on instances, or set by `register_pipeline`.
KNOWN = {name.rpartition(".")[2] for name in (*CALLABLES, *VALUES)} | {
    *("_C", "_autograd", "_registered_impl", "_auto_class", "_attn_implementation"),
    *("_actions", "_add_action", "_option_string_actions"),
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_parameters", "_version", "_op", "_backward_cls"),
    "_signature_columns",
}
# Documented: https://huggingface.co/docs/transformers (main classes, internal helpers) and the docs of the others.
DOCUMENTED_MODULES = (
    "accelerate.utils transformers.cache_utils transformers.exporters transformers.modeling_outputs "
    "transformers.pipelines transformers.trainer_utils transformers.training_args transformers.utils "
    "transformers.utils.logging torch.autograd torch.autograd.function torch.autograd.graph torch.distributed "
    "torch.distributed.fsdp torch.nn torch.nn.utils.rnn torch.optim.lr_scheduler torch.optim.swa_utils "
    "torch.utils.data"
).split()
# Attributes that metaclasses give to every class; methods of named tuples; `os._exit`.
PUBLIC = {"_abc_impl", "_backward_cls", "_replace", "_asdict", "_fields", "_exit"}


def syntax_trees() -> Iterator[ast.Module]:
    for file in Path(hf_vanilla_transformer.__file__).parent.rglob("*.py"):
        yield ast.parse(file.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_no_private_attribute_is_missing_from_the_list():
    ours: set[str] = set()
    used: set[str] = set()
    for node in (node for tree in syntax_trees() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            ours.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            ours.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            (ours if isinstance(node.ctx, ast.Store) else used).add(node.attr)
    assert used - ours - KNOWN - PUBLIC == set()
    assert len(used & KNOWN) > 10


def test_only_fast_leans_on_the_private_methods_of_generation():
    private = {name.rpartition(".")[2] for name in CALLABLES if name.startswith("transformers.GenerationMixin._")}
    package = Path(hf_vanilla_transformer.__file__).parent
    folders = {
        file.relative_to(package).parts[0]
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in private
    }
    assert folders == {"fast"}


def test_no_private_override_is_missing_from_the_list():
    overrides = set()
    for info in pkgutil.walk_packages(hf_vanilla_transformer.__path__, f"{PACKAGE}."):
        if info.name.endswith("__main__"):
            continue
        for cls in vars(importlib.import_module(info.name)).values():
            if inspect.isclass(cls) and cls.__module__ == info.name:
                # Private names of enums and protocols come from the standard library.
                foreign = [base for base in cls.__mro__ if not base.__module__.startswith((PACKAGE, "enum", "typing"))]
                overrides |= {
                    name
                    for name in vars(cls)
                    if name.startswith("_") and not name.startswith("__") and any(name in vars(b) for b in foreign)
                }
    assert overrides - KNOWN - PUBLIC == set()
    assert len(overrides) > 10


def test_the_trainer_overrides_each_method_once_and_uses_what_is_listed():
    stack = [cls for cls in VanillaTransformerTrainer.__mro__ if cls.__module__.startswith(PACKAGE)]
    methods = {name for name, value in inspect.getmembers(Seq2SeqTrainer, inspect.isfunction)}
    overrides = [name for cls in stack for name in vars(cls).keys() & methods]
    assert len(overrides) == len({*overrides}) > 15
    sources = [ast.parse(Path(inspect.getfile(cls)).read_text(encoding="utf-8")) for cls in stack]
    used = {node.attr for tree in sources for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & methods
    assert {name for name in used.union(overrides) if name.startswith("_") and name != "__init__"} == TRAINER.keys()


def test_no_import_from_inside_is_missing_from_the_list():
    deep = {
        f"{node.module}.{alias.name}"
        for tree in syntax_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level and node.module
        for alias in node.names
        if "." in node.module
        and node.module.split(".")[0] in LIBRARIES
        and node.module not in DOCUMENTED_MODULES
        and not hasattr(importlib.import_module(node.module.split(".")[0]), alias.name)
    }
    listed = set(CALLABLES) | set(VALUES)
    assert {name for name in deep if not any(each == name or each.startswith(f"{name}.") for each in listed)} == set()
    assert len(deep) > 10
