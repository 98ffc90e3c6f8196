"""Waiting requests, disconnected clients and a full queue, while the model's thread is blocked."""

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

from fastapi.testclient import TestClient

from hf_vanilla_transformer.inference.preparation import encode
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.engine import Engine, ServedModel
from servers import ask
from translators import ENGLISH, build

BODY = {"text": "a red house", "source": "en", "target": "es"}


@contextmanager
def held_up(model):
    """Block the thread of a model."""
    release = threading.Event()
    model.call(release.wait)
    try:
        yield
    finally:
        release.set()


def wait_until(condition):
    while not condition():
        time.sleep(0.005)


def test_a_client_that_goes_away_frees_its_place(engine, url):
    model = engine.models["en-es"]
    with held_up(model):
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        connection.request("POST", "/v1/translations", json.dumps(BODY), {"Content-Type": "application/json"})
        wait_until(lambda: model.num_waiting == 1)
        connection.close()
        wait_until(lambda: model.num_waiting == 0)
        wait_until(lambda: engine.num_running == 0)
    assert ask(f"{url}/v1/translations", BODY)[0] == 200


def test_requests_of_many_clients_are_decoded_together_as_offline(engine, url):
    model = engine.models["en-es"]
    batches = []
    model.observers.append(lambda num_sentences, _: batches.append(num_sentences))
    try:
        with ThreadPoolExecutor(len(ENGLISH)) as clients:
            with held_up(model):
                answers = [clients.submit(ask, f"{url}/v1/translations", BODY | {"text": text}) for text in ENGLISH]
                wait_until(lambda: model.num_waiting == len(ENGLISH))
            texts = [answer.result()[1]["translations"][0]["text"] for answer in answers]
    finally:
        model.observers.pop()
    assert texts == [row[0].text for row in translate(model.model, model.tokenizer, ENGLISH)]
    assert batches == [len(ENGLISH)]


def test_a_full_queue_answers_503_and_when_to_ask_again():
    model = ServedModel("a", *build("shared"), max_queue=1)
    with TestClient(create_application(Engine([model]))) as client, ThreadPoolExecutor(1) as thread:
        with held_up(model):
            first = thread.submit(client.post, "/translate", json={"q": "no", "source": "en", "target": "es"})
            wait_until(lambda: model.num_waiting == 1)
            refused = client.post("/v1/translations", json={"text": "a cat"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert refused.json() == {"error": "the queue is full: 1 sentences are waiting; try again later"}
        assert first.result().status_code == 200


def test_a_model_that_computes_nan_answers_500_and_the_server_lives_on():
    model, tokenizer = build("shared")
    with TestClient(create_application(Engine([ServedModel("a", model, tokenizer)]))) as client:
        bias = model.lm_head.bias.data.clone()
        model.lm_head.bias.data[:] = float("nan")
        answer = client.post("/v1/translations", json={"text": ["a cat", "no"]})
        assert answer.status_code == 500
        assert answer.json()["error"].startswith("the model failed: a score is NaN: ")
        model.lm_head.bias.data[:] = bias
        assert client.post("/v1/translations", json={"text": "a cat"}).status_code == 200


def test_a_sentence_longer_than_the_model_is_cut():
    model, tokenizer = build("learned", max_position_embeddings=16)
    served = ServedModel("a", model, tokenizer)
    text = "the small cat sleeps, " * 20 + "no"
    body = {"text": text, "max_new_tokens": 4}
    with TestClient(create_application(Engine([served]))) as client:
        (translated,) = client.post("/v1/translations", json=body).json()["translations"]
    sources = [sentence["source"] for sentence in translated["sentences"]]
    assert " ".join(sources) == text
    ids = encode(tokenizer, sources)
    assert max(map(len, ids)) <= 16 and 5 < len(sources) < 20
    expected = translate(model, tokenizer, sources, max_new_tokens=4)
    assert [each["hypotheses"][0]["text"] for each in translated["sentences"]] == [row[0].text for row in expected]
