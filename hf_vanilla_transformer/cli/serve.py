"""Serve models over HTTP, with the LibreTranslate API and a native one.

    vanilla-transformer serve --model my-model
    vanilla-transformer serve --model en-de=my-model de-en=another-model --port 8080
    vanilla-transformer serve --model my-model --quantization int8

    curl http://127.0.0.1:8000/translate -d q="A dog runs." -d source=en -d target=de
    curl http://127.0.0.1:8000/v1/translations --json '{"text": "A dog runs.", "num_hypotheses": 3, "scores": true}'

A model is a folder or a name on the Hub: a model of this package, any other encoder-decoder translation model of
transformers, or a CTranslate2 export. /docs describes the routes. SIGTERM or Ctrl-C stops the server once all accepted
requests are answered, a second one immediately.
"""

import os
from argparse import Namespace
from typing import Any

from ..serving.limits import Limits, ModelLimits
from .main import limit_routines
from .options import (
    SWITCH,
    OneLineParser,
    add_compute_options,
    add_options,
    add_text_options,
    importing,
    out_of_memory,
    quiet_unless_terminal,
)

# Keeps the key out of process listings.
KEY_VARIABLE = "VANILLA_TRANSFORMER_API_KEY"

LIMITS = ("max_text_length", "max_body", "max_beams", "max_hypotheses")

# Language pairs to print per model.
MAX_SHOWN = 4


def add_arguments(parser: OneLineParser) -> None:
    models = parser.add_argument_group("models")
    model = "Folders or names on the Hub. A NAME such as en-de also sets the languages."
    models.add_argument("--model", nargs="+", required=True, metavar="[NAME=]MODEL", help=model)
    add_compute_options(parser, models, default="a GPU, if any; the CPU for CTranslate2")
    models.add_argument(
        "--quantization",
        help="Export models of this package to CTranslate2 with this weight type, such as int8, which is fast on a "
        "CPU. Exports are cached in HF_HOME.",
    )
    backend = "Default: inferred from the model's files."
    models.add_argument("--backend", choices=("transformers", "ctranslate2"), help=parser.advanced(backend))
    source_prefix = 'Prefix of every sentence, such as "translate English to German: " for T5.'
    models.add_argument("--source_prefix", default="", help=parser.advanced(source_prefix))
    add_text_options(models)
    network = parser.add_argument_group("network")
    network.add_argument(
        "--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0: all (default: 127.0.0.1, this machine)."
    )
    network.add_argument("--port", type=int, default=8000, help="Port; 0: any free one (default: 8000).")
    network.add_argument("--api_key", help=f"Key required of clients. Default: environment variable {KEY_VARIABLE}.")
    cors_origin = "Websites whose pages may call the API, such as https://example.org; *: all. Default: none."
    network.add_argument("--cors_origin", nargs="+", default=[], metavar="ORIGIN", help=cors_origin)
    network.add_argument("--page", **SWITCH, help="Serve a translation page at /.")
    limits = parser.add_argument_group("limits")
    add_options(parser, limits, ModelLimits, "max_tokens", "max_queue")
    add_options(parser, limits, Limits, *LIMITS)


def run(arguments: Namespace) -> None:
    with importing("serve"):
        from ..serving.server import listen, serve
    # Bind the port first: loading models takes a while.
    with listen(arguments.host, arguments.port) as listening:
        application, engine = load_application(arguments)
        for model in engine.models.values():
            print(f"{model.name}: {_languages(model)}")
        serve(application, engine, listening)


def load_application(arguments: Namespace) -> tuple[Any, Any]:
    """Load the models and return the application and its engine."""
    with importing("serve"):
        import torch

        from ..serving.application import create_application
        from ..serving.models import Loading, load_engine
        from ..text.protection import read_patterns
    if arguments.page:
        with importing("demo"):
            from ..serving.page import mount_page
    quiet_unless_terminal()
    limit_routines()
    loading = Loading(
        backend=arguments.backend,
        device=arguments.device,
        dtype=torch.bfloat16 if arguments.bf16 else None,
        quantization=arguments.quantization,
        trust_remote_code=arguments.trust_remote_code,
    )
    with out_of_memory("serve fewer models, or use --bf16 or --quantization int8"):
        settings = {name: getattr(arguments, name) for name in ("max_tokens", "max_queue", "source_prefix", "rules")}
        protect = read_patterns(arguments.protect) if arguments.protect else []
        engine = load_engine(arguments.model, loading, protect=protect, **settings)
    limits = Limits(**{name: getattr(arguments, name) for name in LIMITS})
    key = arguments.api_key or os.environ.get(KEY_VARIABLE) or None
    application = create_application(engine, limits=limits, api_key=key, cors_origins=arguments.cors_origin)
    if arguments.page:
        mount_page(application, engine, limits=limits, api_key=key)
    return application, engine


def _languages(model: Any) -> str:
    pairs = ["-".join(pair) for pair in model.pairs]
    return ", ".join([*pairs[:MAX_SHOWN], *["..."] * (len(pairs) > MAX_SHOWN)]) or "any languages"
