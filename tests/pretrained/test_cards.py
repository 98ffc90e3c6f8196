"""Examples from cards, ours and others; cards of models made from others."""

from types import SimpleNamespace

from huggingface_hub import ModelCard

from hf_vanilla_transformer.pretrained.cards import (
    MAX_EXAMPLES,
    Example,
    add_base_models,
    card_examples,
    pipeline_use,
    write_derived_card,
)
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


def derived(folder, *sources, use=None, **options):
    write_derived_card(folder, "new", "Made from $sources", sources, use, **options)
    return ModelCard.load(folder / "README.md")


def card(folder, metadata):
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text(f"---\n{metadata}\n---\n", encoding="utf-8")
    return folder


class TestOfModelsMadeFromOthers:
    def test_from_the_hub(self, tmp_path):
        found = derived(tmp_path, "me/one", relation="quantized", use=pipeline_use('a "b"'))
        data = found.data.to_dict()
        assert data["base_model"] == "me/one" and data["base_model_relation"] == "quantized"
        assert "Made from [me/one](https://huggingface.co/me/one)." in found.text and r'model="a \"b\""' in found.text

    def test_a_folder_stands_for_what_its_card_names(self, tmp_path):
        folders = [
            card(tmp_path / name, f"license: {licensed}\nlanguage: [en, no]\nbase_model: me/{name}")
            for name, licensed in (("a", "mit"), ("b", "apache-2.0"))
        ]
        one = derived(tmp_path, folders[0], relation="quantized")
        # YAML 1.1 takes Norwegian for a Boolean.
        assert one.data.license == "mit" and one.data.language == ["en", "no"] and one.data.base_model == "me/a"
        # No path of this machine, and no relation to a model that was changed since.
        assert "Made from `a`." in one.text and str(tmp_path) not in str(one)
        assert "base_model_relation" not in one.data.to_dict()
        both = derived(tmp_path, *folders)
        assert both.data.license is None and both.data.base_model == ["me/a", "me/b"]
        assert both.data.language == ["en", "no"]

    def test_a_license_is_taken_as_a_whole(self, tmp_path):
        own = "license: other\nlicense_name: {}\nlicense_link: {}"
        one = card(tmp_path / "one", own.format("mine", "LICENSE"))
        data = derived(tmp_path, one).data.to_dict()
        # The file is not beside this card.
        assert data["license_name"] == "mine" and "license_link" not in data
        linked = card(tmp_path / "linked", own.format("mine", "https://example.org"))
        assert derived(tmp_path, linked).data.to_dict()["license_link"] == "https://example.org"
        assert "license" not in derived(tmp_path, one, linked).data.to_dict()

    @looped(
        "metadata",
        ["", ": [", "base_model: {a: 1}\nlicense: [1]", "base_model: 5", "base_model: [[a/b], {c: d}, 7]", "- 1"],
    )
    def test_a_malformed_card(self, tmp_path, metadata):
        found = derived(tmp_path, card(tmp_path / "old", metadata), relation="quantized")
        assert "Made from `old`." in found.text and "base_model" not in found.data.to_dict()

    def test_a_file_has_the_card_beside_it(self, tmp_path):
        file = card(tmp_path / "old", "license: mit") / "model.safetensors"
        file.write_bytes(b"")
        assert derived(tmp_path, file).data.license == "mit"

    def test_nothing_to_name(self, tmp_path, monkeypatch):
        found = derived(tmp_path, relation="quantized")
        assert found.data.to_dict() == {"library_name": "hf_vanilla_transformer"} and "## Use" not in found.text
        monkeypatch.chdir(tmp_path)
        assert f"Made from `{tmp_path.name}`." in derived(tmp_path, ".").text

    @looped(
        "metadata, names",
        [("{}", ["me/a"]), ("base_model: me/x", ["me/x", "me/a"]), ("base_model: [me/a, 3]", ["me/a"])],
    )
    def test_teachers_join_them(self, tmp_path, metadata, names):
        add_base_models(card(tmp_path, metadata) / "README.md", ["me/a", tmp_path])
        assert ModelCard.load(tmp_path / "README.md").data.base_model == names
