"""Shared by all commands: option parser, common options, one-line errors and interruptible imports."""

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn, get_args, get_type_hints

from ..errors import SECRET_OPTION, did_you_mean, one_line, redacted, without_secrets
from ..extras import install_command
from ..files import check_output_file
from ..options import POSITIVE, Range, check_range, ranges
from ..text.facts import RULES

USAGE_ERROR = 2
# Shell convention: 128 + signal number.
INTERRUPTED = 130
TERMINATED = 143

HELP = "--help"
HELP_ALL = "--help-all"

_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")

# `name` or `name=value` in a library message, except fields of the model's configuration.
_ARGUMENT = re.compile(r"(?<!the model's )`(\w+)(?:=([^`]+))?`")


def boolean(text: str) -> bool:
    """Parse the value of a switch such as `--bf16 false`."""
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"{text} is neither true nor false")
    return text.lower() in _TRUE


# For a switch: `add_argument("--bf16", **SWITCH, help=...)`.
SWITCH: dict[str, Any] = {"type": boolean, "nargs": "?", "const": True, "default": False, "metavar": "true|false"}


class Number:
    """Type of an option whose value must be in a range: `add_argument("--last", type=Number(int))`."""

    def __init__(self, kind: type, wanted: Range = POSITIVE) -> None:
        self.kind, self.wanted, self.__name__ = kind, wanted, kind.__name__

    def __call__(self, text: str) -> Any:
        return self.kind(text)


def help_option(words: Sequence[str]) -> str | None:
    """Return the first --help or --help-all before "--", in any spelling, or None."""
    for word in words:
        spelling = f"{word[:2]}{word[2:].replace('_', '-')}"
        if word == "--":
            break
        if word == "-h" or (HELP.startswith(spelling) and len(spelling) > 3):
            return HELP
        if spelling.startswith(HELP) and HELP_ALL.startswith(spelling):
            return HELP_ALL
    return None


# Room for long option names before their help.
_FORMATTER = partial(argparse.RawDescriptionHelpFormatter, max_help_position=34)


class OneLineParser(argparse.ArgumentParser):
    """Parser that reports errors on one line and suggests the option closest to an unknown one.

    `--max_tokens` can also be spelled `--max-tokens` or abbreviated if unambiguous. Line breaks in the description are
    kept. Without `shows_all`, the help omits advanced options.
    """

    def __init__(self, prog: str | None = None, description: str | None = None, *, shows_all: bool = True):
        super().__init__(prog=prog, description=description, formatter_class=_FORMATTER, add_help=False)
        self.shows_all = shows_all
        # Text below the description in the long help; a function, as it may be slow to build.
        self.more_description: Callable[[], str] | None = None
        # Values of options such as --hub_token, which no message may quote.
        self._secrets: list[str] = []

    def advanced(self, text: str) -> str:
        """Return the help text of an option that only --help-all shows."""
        return text if self.shows_all else argparse.SUPPRESS

    def add_help_options(self) -> None:
        """Add --help and --help-all; call after adding all other options."""
        group = self.add_argument_group("help")
        group.add_argument("-h", HELP, action="help", help="Show the main options.")
        group.add_argument(HELP_ALL, action="help", help="Show all options.")

    def format_help(self) -> str:
        if not self.usage:
            required = [
                f"{action.option_strings[0]} {action.metavar or action.dest.upper()}"
                if action.option_strings
                else str(action.metavar or action.dest)
                for action in self._actions
                if action.required
            ]
            self.usage = " ".join(["%(prog)s", *required, "[options]"])
        if self.shows_all and self.more_description:
            self.description = f"{self.description}{self.more_description()}"
            self.more_description = None
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, rejecting arguments that belong to no option: ignoring one would change the result."""
        words = sys.argv[1:] if args is None else list(args)
        # Expand before argparse, which quotes values and reports a misspelled required option as missing.
        end = words.index("--") if "--" in words else len(words)
        words[:end] = map(self._in_full, words[:end])
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            word = without_secrets(words)[words.index(unknown[0])]
            self.error(f"{re.split('[= ]' if word.startswith('-') else '=', word)[0]} belongs to no option")
        for action in self._actions:
            if isinstance(action.type, Number):
                check_range(action.type.wanted, **{action.dest: getattr(parsed, action.dest)})
        options = {f"--{name}": value for name, value in vars(parsed).items() if value is not None}
        self._secrets = [str(value) for name, value in options.items() if SECRET_OPTION.fullmatch(name)]
        return parsed, unknown

    def _in_full(self, word: str) -> str:
        """Expand the option name in a word, or exit if it is unknown or ambiguous.

        No message quotes a value: it may belong to a misspelled `--hub_token`.
        """
        name, equals, value = word.partition("=")
        known = self._option_string_actions
        # Negative numbers, a single "-" and text with spaces are values.
        if name in known or not re.match(r"-[^\d.]", name) or " " in name:
            return word
        spellings = {_with_underscores(option): option for option in known}
        start = _with_underscores(name)
        if start in spellings:
            return f"{spellings[start]}{equals}{value}"
        # Group by action: an option may have several spellings.
        meant = {known[o]: o for spelling, o in reversed(spellings.items()) if spelling.startswith(start)}
        if len(meant) == 1:
            return f"{meant.popitem()[1]}{equals}{value}"
        if meant:
            self.error(f"ambiguous option: {name} could match {', '.join(reversed(meant.values()))}")
        # A value may follow the name without "=" or space.
        glued = (option for option in known if name.startswith(option) and SECRET_OPTION.fullmatch(option))
        name = next(glued, re.split(r"[^\w-]", name)[0])
        self.error(f"unknown option {name}{did_you_mean(name, known)}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit with secrets removed from the message: an error from a server may echo them."""
        super().exit(status, message and redacted(message, *self._secrets))

    def error(self, message: str) -> NoReturn:
        """Exit with one line instead of the full usage."""
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}; --help lists the options\n")


def _with_underscores(option: str) -> str:
    return f"--{option[2:].replace('-', '_')}" if option.startswith("--") else option


def add_trust_option(parser: OneLineParser, group: Any) -> None:
    trust_remote_code = "Run Python code shipped with the model; only from sources you trust."
    group.add_argument("--trust_remote_code", **SWITCH, help=parser.advanced(trust_remote_code))


def add_model_options(parser: OneLineParser, several: bool = False) -> None:
    """Add the options for a model, or `several`, its languages, device and precision."""
    group = parser.add_argument_group("model")
    number: dict[str, Any] = {"nargs": "+"} if several else {}
    ensemble = "; several translate as an ensemble" if several else ""
    model = f"Model and tokenizer: a folder or a name on the Hub{ensemble}."
    group.add_argument("--model", required=True, **number, help=model)
    add_language_options(group)
    add_compute_options(parser, group)


def add_language_options(group: Any) -> None:
    """Add the options read by `choose_languages`."""
    group.add_argument("--source_lang", metavar="CODE", help="Source language of a multilingual model.")
    group.add_argument("--target_lang", metavar="CODE", help="Target language of a multilingual model.")


def add_compute_options(parser: OneLineParser, group: Any, default: str = "a GPU, if any") -> None:
    """Add the options for device, precision and remote code."""
    group.add_argument("--device", help=f"cpu, cuda, cuda:1, mps, ... Default: {default}.")
    group.add_argument("--bf16", **SWITCH, help="Compute in bfloat16: faster on hardware that supports it.")
    add_trust_option(parser, group)


def add_text_options(group: Any) -> None:
    protect = "Regular expressions, one per line, for more text to copy unchanged, besides links, emoji, ..."
    group.add_argument("--protect", metavar="FILE", help=protect)
    rules = f"Rules for text that act, instead of those that training found to help: all, or {', '.join(RULES)}."
    group.add_argument("--rules", nargs="+", metavar="RULE", help=rules)


def add_pair_files(parser: OneLineParser) -> Any:
    """Add the options for a file of sentences and one of translations, and return their group."""
    files = parser.add_argument_group("input and output")
    files.add_argument("--source", required=True, metavar="FILE", help="Source sentences, one per line; -: stdin.")
    files.add_argument("--target", required=True, metavar="FILE", help="Their translations, one per line; -: stdin.")
    files.add_argument("--output", default="-", metavar="FILE", help="Output file; - (default): stdout.")
    return files


def add_options(parser: OneLineParser, group: Any, kind: Any, *names: str, **changes: Mapping[str, Any]) -> None:
    """Add dataclass fields to a group; `changes` maps field names to overrides of `add_argument` arguments."""
    hints, wanted, declared = get_type_hints(kind), ranges(kind), {field.name: field for field in fields(kind)}
    for name in names:
        field = declared[name]
        # int for both int and int | None
        base = next(iter(get_args(hints[name])), hints[name])
        settings = SWITCH if base is bool else {"type": Number(base, wanted[name]) if name in wanted else base}
        text = field.metadata.get("description") or field.metadata["help"]
        settings = {**settings, "default": field.default, "help": text, **changes.get(name, {})}
        if settings["default"] not in (None, "", False) and "efault" not in settings["help"]:
            settings["help"] = f"{settings['help'].removesuffix('.')} (default: {settings['default']})."
        if field.metadata.get("advanced"):
            settings["help"] = parser.advanced(settings["help"])
        group.add_argument(f"--{name}", **settings)


def check_pair_files(arguments: argparse.Namespace) -> None:
    """Raise a ValueError if the files given by `add_pair_files` conflict with one another."""
    if arguments.source == arguments.target == "-":
        raise ValueError("--source and --target are both standard input; use a file for one of them")
    check_output_file(arguments.output, [arguments.source, arguments.target, arguments.model], "output")


def add_fields(parser: OneLineParser, kind: Any, titles: Mapping[str, Iterable[str]], rest: str) -> None:
    """Add the fields of a dataclass as options, as defined by `transformers.HfArgumentParser`.

    `titles` maps titles of help groups to field names; all other fields go into the group `rest`.
    """
    from transformers import HfArgumentParser

    title_of = {name: title for title, names in titles.items() for name in names}
    groups = {title: parser.add_argument_group(title) for title in (*titles, rest)}
    for action in HfArgumentParser(kind, add_help=False)._actions:
        # OneLineParser itself accepts the spelling with dashes.
        action.option_strings = [option for option in action.option_strings if "-" not in option.removeprefix("--")]
        groups[title_of.get(action.dest, rest)]._add_action(action)


def dataclass_parser(kinds: Iterable[Any], description: str | None) -> OneLineParser:
    """Return a parser for the fields of several dataclasses, with one help group each."""
    parser = OneLineParser(description=description)
    for kind in kinds:
        # LabelledTextArguments: "labelled text arguments".
        add_fields(parser, kind, {}, re.sub("(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower())
    parser.add_argument("-h", "--help", action="help", help="Show this help.")
    return parser


def parse_dataclasses(kinds: Sequence[Any], arguments: argparse.Namespace) -> tuple[Any, ...]:
    """Build one object of each dataclass from parsed arguments."""
    values = vars(arguments)
    return tuple(kind(**{field.name: values[field.name] for field in fields(kind) if field.init}) for kind in kinds)


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM; a KeyboardInterrupt, so code that handles Ctrl-C handles both."""


@contextmanager
def one_line_errors(parser: OneLineParser, advice: str | None = None) -> Iterator[None]:
    """Exit with status 2 and one line on standard error if input or arguments are invalid.

    Python arguments that a library message names in backticks become options where the parser has them. Ctrl-C and
    SIGTERM exit with status 130 and 143 and how to continue: the text of the `KeyboardInterrupt`, or else `advice`.
    """
    try:
        with _sigterm_raises():
            yield
    except KeyboardInterrupt as interrupt:
        is_terminated = isinstance(interrupt, Terminated)
        word, status = ("terminated", TERMINATED) if is_terminated else ("interrupted", INTERRUPTED)
        advice = str(interrupt) or advice
        parser.exit(status, f"{word}; {advice}\n" if advice else f"{word}\n")
    except BrokenPipeError:
        # Not a user error; the caller handles it.
        raise
    except (ValueError, OSError, ImportError) as error:
        parser.exit(USAGE_ERROR, f"{parser.prog}: error: {_with_options(one_line(error), parser)}\n")


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM in this process, unless the signal already has a handler."""
    process = os.getpid()

    def terminate(number: int, frame: Any) -> None:
        if os.getpid() != process:
            # In a forked worker, which its parent manages, use the default action.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Terminated

    with _handling(signal.SIGTERM, signal.SIG_DFL, terminate):
        yield


@contextmanager
def _handling(number: signal.Signals, old: Any, new: Callable[[int, Any], None]) -> Iterator[None]:
    """Replace the handler of a signal if it is `old` and this is the main thread, which alone may."""
    replaced = threading.current_thread() is threading.main_thread() and signal.getsignal(number) == old
    if replaced:
        signal.signal(number, new)
    try:
        yield
    finally:
        if replaced:
            signal.signal(number, old)


def _with_options(message: str, parser: OneLineParser) -> str:
    """Replace each `name` with --name and each `name=value` with --name value, where it is an option."""

    def option(match: re.Match[str]) -> str:
        name, value = match.groups()
        if f"--{name}" not in parser._option_string_actions:
            return match[0]
        return f"--{name}" if value in (None, "True") else f"--{name} {value}"

    return _ARGUMENT.sub(option, message)


@contextmanager
def importing(extra: str = "train") -> Iterator[None]:
    """Guard imports, which may take seconds: signals exit quietly, and a missing package raises a helpful ImportError.

    Its message says to install the `extra` of this package that includes the missing one.
    """

    # Not an exception, which could be lost if raised in a callback of the import system.
    def leave(number: int, frame: Any) -> None:
        os._exit(128 + number)

    sigterm = signal.getsignal(signal.SIGTERM)
    try:
        with _handling(signal.SIGINT, signal.default_int_handler, leave), _handling(signal.SIGTERM, sigterm, leave):
            yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{sys.executable} has no package {error.name}; activate the environment where this package is installed, "
            f"or install it here: {install_command(extra)}"
        ) from error


@contextmanager
def out_of_memory(advice: str) -> Iterator[None]:
    """Turn PyTorch's out-of-memory error into a ValueError that ends in `advice`."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError:
        raise ValueError(f"out of memory; {advice}") from None


def quiet_unless_terminal() -> None:
    """Hide transformers' progress bars unless standard error is a terminal."""
    from transformers.utils.logging import disable_progress_bar

    if not sys.stderr.isatty():
        disable_progress_bar()


def load_model_and_tokenizer(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return the model, or the ensemble of several, that --model names, and its tokenizer."""
    names = arguments.model
    is_one = isinstance(names, list) and len(names) == 1
    return load_by_name(names[0] if is_one else names, arguments)


def load_by_name(name: str | list[str], arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return the model of this name, on the requested device and in the requested precision, and its tokenizer."""
    with importing():
        import torch

        from ..inference.translation import load
    dtype = torch.bfloat16 if arguments.bf16 else None
    return load(name, dtype, arguments.device, arguments.trust_remote_code)


def choose_languages(arguments: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    """Return the language arguments of `translate_lines` and `score` from --source_lang and --target_lang."""
    with importing():
        from ..pretrained.languages import choose_pair
    source, target = choose_pair(tokenizer, arguments.source_lang, arguments.target_lang)
    return {"src_lang": source, "tgt_lang": target}
