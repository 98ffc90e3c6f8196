"""Examples from cards, ours and others."""

from types import SimpleNamespace

from hf_vanilla_transformer.pretrained.card_examples import MAX_EXAMPLES, Example, card_examples
from tables import looped

SAMPLES = """
```text
source:      Our sister needed seven blue dresses.
reference:   Nuestra hermana necesitaba siete vestidos azules.
translation: Nuestra hermana necesitaba siete vestidos azules.

direction:   en to es
source:      What a cheap ball!
```
"""


def examples(folder, card):
    (folder / "README.md").write_text(card, encoding="utf-8")
    return card_examples(SimpleNamespace(name_or_path=str(folder)))


def test_those_of_the_widget_come_first(tmp_path):
    widget = "widget:\n- text: A dog <b>runs</b>.\n- text: A dog <b>runs</b>.\n- example_title: none\n- text: Two\n"
    expected = [Example("A dog <b>runs</b>."), Example("Two")]
    assert examples(tmp_path, f"---\n{widget}---\n{SAMPLES}") == expected


def test_else_those_of_the_sample_pairs(tmp_path):
    expected = [Example("Our sister needed seven blue dresses."), Example("What a cheap ball!", "en", "es")]
    assert examples(tmp_path, f"---\nlicense: mit\n---\n{SAMPLES}") == expected
    many = "\n".join(f"source: {i}" for i in range(99))
    assert len(examples(tmp_path, f"---\nlicense: mit\n---\n{many}")) == MAX_EXAMPLES


@looped(
    "card",
    [
        "",
        "no front matter",
        "---\n: [\n---\n",
        "---\nwidget: 3\n---\n",
        "---\nwidget:\n- 1\n- {text: [2]}\n---\n",
        "---\n- 1\n---\n",
    ],
)
def test_a_card_without_any(tmp_path, card):
    assert examples(tmp_path, card) == []


def test_no_card(tmp_path):
    assert card_examples(SimpleNamespace(name_or_path=str(tmp_path))) == []
    assert card_examples(SimpleNamespace(folder=tmp_path, name_or_path="")) == []
    assert card_examples(SimpleNamespace(name_or_path="nobody/nothing")) == []
    assert card_examples(SimpleNamespace(name_or_path="no / name")) == []
    assert card_examples(SimpleNamespace()) == []
