"""Argument files and command lines are parsed, or refused with status 2 and one line, never with a stack trace."""

import json
import string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import JSON_VALUES, texts
from hf_vanilla_transformer.cli import main as cli
from hf_vanilla_transformer.cli import options

# Cached, since the imports of some commands take a second.
PARSERS = {}


def parser_of(command):
    if command not in PARSERS:
        module = cli._module(command)
        parser = options.OneLineParser(f"vanilla-transformer {command}", module.__doc__)
        module.add_arguments(parser)
        PARSERS[command] = parser
    return PARSERS[command]


def parsed_or_error(capfd, command, words):
    """Parse a command line like the program; on an error, check status and message and return None."""
    module, parser = cli._module(command), parser_of(command)
    try:
        with options.one_line_errors(parser):
            return vars(module.parse(parser, words) if hasattr(module, "parse") else parser.parse_args(words))
    except SystemExit as end:
        error = capfd.readouterr().err
        assert end.code == 2 and error.count("\n") == 1 and "error: " in error, (words, end.code, error)
        return None


VALUES = st.one_of(
    texts(max_size=4),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(
        ["", "-", "--", "-1", "null", "true", "1e400", "nan", "{", "{}", "[]", "=", "a=b", "\udc80", "9" * 5000]
    ),
)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_command_lines(command, capfd, fuzz):
    known = [option for option in parser_of(command)._option_string_actions if "help" not in option and option != "-h"]
    option = st.one_of(
        st.sampled_from(known),
        st.tuples(st.sampled_from(known), st.sampled_from(["_", "x", "-", "="])).map("".join),
        st.text(string.ascii_lowercase, min_size=3, max_size=8).map("--x{}".format),
    )
    word = st.one_of(option, VALUES, st.tuples(option, VALUES).map("=".join))

    @fuzz("command lines of random options and values", 15, 600)
    @given(st.lists(word, max_size=6))
    def check(words):
        if options.help_option(words):
            return
        # `train` would read these as argument files, which the next test covers.
        parsed_or_error(capfd, command, [word for word in words if not word.endswith((".yaml", ".yml", ".json"))])


NAMES = "preset config_overrides seed learning_rate bf16_if_fast label_names output_dir optim_args".split()
ENTRIES = st.dictionaries(st.one_of(st.sampled_from(NAMES), texts(max_size=3)), JSON_VALUES, max_size=4)


@pytest.mark.slow
def test_argument_files(tmp_path, capfd, fuzz):
    @fuzz("argument files of any YAML or JSON values", 40, 3000)
    @given(ENTRIES, st.booleans())
    def check(entries, as_json):
        path = tmp_path / ("x.json" if as_json else "x.yaml")
        dump = json.dumps if as_json else yaml.safe_dump
        path.write_text(dump(entries), encoding="utf-8", newline="")
        values = parsed_or_error(capfd, "train", [str(path)])
        if values is not None:
            for name, value in entries.items():
                if isinstance(value, str) and name in ("preset", "output_dir") and value not in ("", "null", "~"):
                    assert values[name] == value


def test_damaged_argument_files(tmp_path, capfd, fuzz):
    pieces = st.sampled_from([
        "preset", "seed", ": ", ":", "\n", "- ", "[", "]", "{", "}", "&a ", "*a", "!!int ", "|", ">", "'", '"', "\t",
        "#", "%", "@", "---\n", "? ", "1", "\0", "\ufeff", "\\", ",", "<<", "~", "  ", "x" * 200,
        "!!python/object/apply:os.abort []",
    ])  # fmt: skip  # a piece a line would fill the screen

    @fuzz("argument files of random pieces of YAML and of bytes", 60, 4000)
    @given(st.one_of(st.lists(pieces, max_size=12).map("".join).map(str.encode), st.binary(max_size=30)))
    def check(content):
        (tmp_path / "x.yaml").write_bytes(content)
        parsed_or_error(capfd, "train", [str(tmp_path / "x.yaml")])


def test_values_given_twice_or_nested_without_end(tmp_path, capfd, tried):
    aliases = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghij", "bcdefghijk", strict=True)
    )
    deep = "preset: " + "[" * 20_000
    for text in ("preset: tiny\npreset: big\n", '{"seed": 1, "seed": 2}', aliases, deep, "preset: &a [*a]\n"):
        (tmp_path / "x.yaml").write_text(text)
        assert parsed_or_error(capfd, "train", [str(tmp_path / "x.yaml")]) is None
    tried("argument files that name an option twice, or nest without end", 5)
