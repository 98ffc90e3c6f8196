"""Examples from cards, ours and others; cards of models made from others."""

from types import SimpleNamespace

from huggingface_hub import ModelCard

from hf_vanilla_transformer.pretrained.cards import MAX_EXAMPLES, USE, Example, card_examples, write_derived_card
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


def derived(folder, *sources, **options):
    write_derived_card(folder, "new", "Made from $sources", sources, USE, **options)
    return ModelCard.load(folder / "README.md")


class TestOfModelsMadeFromOthers:
    def test_from_the_hub(self, tmp_path):
        card = derived(tmp_path, "me/one", relation="quantized")
        data = card.data.to_dict()
        assert data["base_model"] == "me/one" and data["base_model_relation"] == "quantized"
        assert "Made from [me/one](https://huggingface.co/me/one)." in card.text and 'model="new"' in card.text

    def test_a_folder_stands_for_what_its_card_names(self, tmp_path):
        folders = [tmp_path / "a", tmp_path / "b"]
        for folder, licensed in zip(folders, ("mit", "apache-2.0"), strict=True):
            folder.mkdir()
            metadata = f"license: {licensed}\nlanguage: [en, gn]\nbase_model: me/{folder.name}\n"
            (folder / "README.md").write_text(f"---\n{metadata}---\n", encoding="utf-8")
        one = derived(tmp_path, folders[0])
        assert one.data.license == "mit" and one.data.language == ["en", "gn"] and one.data.base_model == "me/a"
        # No path of this machine.
        assert "Made from `a`." in one.text and str(tmp_path) not in str(one)
        both = derived(tmp_path, *folders)
        assert both.data.license is None and both.data.base_model == ["me/a", "me/b"]
        assert both.data.language == ["en", "gn"]

    @looped("card", ["no front matter", "---\n: [\n---\n", "---\nbase_model: {a: 1}\nlicense: [1]\n---\n"])
    def test_a_malformed_card(self, tmp_path, card):
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / "README.md").write_text(card, encoding="utf-8")
        assert "Made from `old`." in derived(tmp_path, tmp_path / "old", relation="quantized").text

    def test_nothing_to_name(self, tmp_path):
        data = derived(tmp_path, relation="quantized").data.to_dict()
        assert data == {"library_name": "hf_vanilla_transformer"}
