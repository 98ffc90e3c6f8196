"""Export a trained model to CTranslate2, ONNX, transformers.js, a web page or Marian.

One example per format:

    vanilla-transformer export --model my-model --to ctranslate2 --quantization int8 --output_dir my-model-ct2
    vanilla-transformer translate --backend ctranslate2 --model my-model-ct2 --input test.en --output test.hyp

    vanilla-transformer export --model my-model --to onnx --quantization int8 --output_dir my-model-onnx
    python scripts/onnx_translate.py --model my-model-onnx --input test.en --output test.hyp

    vanilla-transformer export --model my-model --to transformers.js --output_dir my-model-js

    npm install --ignore-scripts @huggingface/transformers
    vanilla-transformer export --model my-model --to page --output_dir my-page
    python -m http.server --directory my-page

    vanilla-transformer export --model my-model --to marian --output_dir my-model-marian
    vanilla-transformer translate --model my-model-marian --input test.en --output test.hyp

The folder also holds the tokenizer and the generation settings. If the format cannot express a property of the model,
an error names it and nothing is written.
"""

from argparse import Namespace
from pathlib import Path

from .options import Number, OneLineParser, add_trust_option, importing, quiet_unless_terminal


def add_arguments(parser: OneLineParser) -> None:
    files = parser.add_argument_group("input and output")
    files.add_argument("--model", required=True, help="Model and tokenizer: a folder or a name on the Hub.")
    files.add_argument(
        "--to",
        required=True,
        choices=("ctranslate2", "onnx", "transformers.js", "page", "marian"),
        help="Format to export to.",
    )
    files.add_argument("--output_dir", required=True, metavar="FOLDER", help="Output folder; new or empty.")
    add_trust_option(parser, files)
    options = parser.add_argument_group("format options")
    options.add_argument(
        "--quantization",
        help="Weight type, float32 or int8; ctranslate2 also float16 and int8_float16. Default: float32, page: int8.",
    )
    options.add_argument(
        "--max_positions",
        type=Number(int),
        help="Longest source or output, in tokens, for a model with sinusoidal positions. Default: "
        "max_position_embeddings. Not for marian.",
    )
    options.add_argument(
        "--node_modules",
        metavar="FOLDER",
        help="page: where npm installed @huggingface/transformers. Default: node_modules.",
    )


def run(arguments: Namespace) -> None:
    with importing():
        from ..export.formats import export_model
    quiet_unless_terminal()
    options = {name: getattr(arguments, name) for name in ("quantization", "max_positions", "node_modules")}
    folder = export_model(
        arguments.model, arguments.to, arguments.output_dir, trust_remote_code=arguments.trust_remote_code, **options
    )
    size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB")
