import pytest
from matplotlib.image import imread
from torch import nn

from hf_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.data.arguments import DataArguments
from tiny import tiny_model
from tutorials import phrases
from tutorials.common import TutorialArguments
from tutorials.phrases import PHRASES, STATQUEST, draw_statquest, train_phrases, wrong_phrases


@pytest.fixture
def untrained(monkeypatch):
    monkeypatch.setattr(phrases, "train", lambda *args, **kwargs: None)


def test_the_model_of_phrases_has_the_tutorials_size(untrained, tmp_path):
    model, tokenizer = train_phrases(PHRASES, 0, TutorialArguments(output_dir=str(tmp_path)))
    config = model.config
    assert (config.d_model, config.encoder_layers, config.decoder_layers) == (6, 1, 1)
    assert config.encoder_attention_heads == config.decoder_attention_heads == 1
    # The notebook's 9 and 13 words, plus four special tokens.
    assert (len(tokenizer), tokenizer.target_vocab_size) == (9 + 4, 13 + 4)
    assert len(PHRASES.pairs) == 8
    assert PHRASES.training["num_train_epochs"] <= 60 and PHRASES.training["learning_rate"] == 0.1


def test_the_model_of_statquest_has_the_tutorials_size(untrained, tmp_path):
    model, _ = train_phrases(STATQUEST, 0, TutorialArguments(output_dir=str(tmp_path)))
    assert model.config.d_model == 2
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    assert not any("fc1" in name for name, _ in model.named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["phrases", "statquest"])
def test_all_phrases_are_exact_in_nine_of_ten_seeds(run, name, tmp_path, capsys):
    result = run(name, tmp_path)
    assert result["figures"]["seeds"] == 10 and result["figures"]["perfect_seeds"] >= 9 and result["reproduced"]
    assert f"| {name} |" in capsys.readouterr().out


def test_wrong_phrases_are_counted(untrained, tmp_path):
    args = TutorialArguments(output_dir=str(tmp_path), seeds=3)
    wrong = [wrong_phrases(PHRASES, *train_phrases(PHRASES, seed, args)) for seed in range(3)]
    assert all(wrong) and wrong[0] != wrong[1]
    result = phrases.reproduce_phrases(args, DataArguments())
    assert result.figures["exact"] == [8 - len(each) for each in wrong] and not result.reproduced


@pytest.mark.slow
def test_statquest_learns_and_draws(run, tmp_path):
    assert run("statquest", tmp_path, "--seeds", "1")["reproduced"]
    for name in ("position_encoding", "encoder_attention", "decoder_attention", "cross_attention"):
        assert imread(tmp_path / "statquest" / f"{name}.png").std() > 0.02


def test_decoder_rows_are_the_words_they_predict(tmp_path, monkeypatch):
    drawn = {}

    def draw(weights, columns, rows, path, title, keys, queries):
        assert weights.shape[-2:] == (len(rows), len(columns))
        drawn[path.stem] = (keys, columns, queries, rows)

    monkeypatch.setattr(phrases, "plot_attention", draw)
    source, target = STATQUEST.pairs[0]
    tokenizer = VanillaTransformerTokenizer.from_pair(
        train_tokenizer([source], algorithm="word"), train_tokenizer([target], algorithm="word")
    )
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
    untied = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    model = tiny_model(**sizes, **untied, position_embedding_type="learned")
    draw_statquest(model, tokenizer, tmp_path)
    words, predicted = [*source.split(), "</s>"], [*target.split(), "</s>"]
    assert drawn == {
        "encoder_attention": ("source", words, "source", words),
        "decoder_attention": ("target so far", ["<s>", *predicted[:-1]], "target", predicted),
        "cross_attention": ("source", words, "target", predicted),
    }
