"""A local Hub server with the routes that `huggingface_hub` uses to push and load models."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub
import pytest
import transformers
import yaml

TOKEN = "hf_the_token_of_the_tests"
LFS_ENDINGS = (".safetensors", ".png")


@dataclass
class Repository:
    """Files by commit, commits by branch."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        """Commit files as the new head of a branch, and return the commit's id."""
        hashes = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items())
        sha = hashlib.sha1(repr((len(self.commits), hashes)).encode()).hexdigest()
        self.commits[sha] = files
        self.branches[branch] = sha
        return sha

    def find(self, revision: str) -> str | None:
        """Return the commit of a branch name or commit id."""
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class Hub(ThreadingHTTPServer):
    """Repositories in memory; `requests` lists all requests, `unknown` those without a route.

    `refuse_with` is a status that refuses every commit, `refuse_objects_with` one that refuses large files.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.unknown: list[str] = []
        self.refuse_with: int | None = None
        self.refuse_objects_with: int | None = None

    @property
    def url(self) -> str:
        """The address, as HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Dispatch the request to its route."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = b"".join(self.chunks())
        path = unquote(urlsplit(self.path).path)
        method = "GET" if self.command == "HEAD" else self.command
        self.server.requests.append(f"{self.command} {path}")
        if self.server.refuse_with and "/commit/" in path:
            return self.reply(self.server.refuse_with, {"error": f"refused to {self.headers.get('Authorization')}"})
        for wanted, pattern, route in ROUTES:
            if method == wanted and (found := re.fullmatch(pattern, path)):
                return route(self, **found.groupdict())
        self.server.unknown.append(f"{self.command} {path}")
        self.reply(404, {"error": "Not found"})

    do_HEAD = do_POST = do_PUT = do_GET

    def chunks(self) -> Iterator[bytes]:
        """Yield the chunks of a body without Content-Length."""
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def reply(self, status: int, content: Any = b"", **headers: str) -> None:
        """Send bytes as they are, anything else as JSON."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        # HEAD returns the length of GET's body.
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def logged_in(self) -> bool:
        """Whether the request has the right token."""
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def repository(self, repo: str) -> Repository | None:
        """Return a repository that the request may access, or reply that it does not exist."""
        found = self.server.repositories.get(repo)
        if found is None or (found.private and not self.logged_in):
            self.reply(401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        return found

    def create(self) -> None:
        if not self.logged_in:
            return self.reply(401, {"error": "Invalid credentials"})
        wanted = json.loads(self.body)
        name = f"{wanted.get('organization') or 'tester'}/{wanted['name']}"
        if name in self.server.repositories:
            error = "You already created this model repo"
            return self.reply(409, {"error": error, "url": f"{self.server.url}/{name}"})
        private = wanted.get("private") is True or wanted.get("visibility") == "private"
        self.server.repositories[name] = Repository(private)
        self.server.repositories[name].commit("main", {".gitattributes": b""})
        self.reply(200, {"url": f"{self.server.url}/{name}", "name": name, "id": name})

    def branch(self, repo: str, branch: str) -> None:
        if repository := self.repository(repo):
            repository.branches.setdefault(branch, repository.branches["main"])
            self.reply(200, {})

    def preupload(self, repo: str, revision: str) -> None:
        if self.repository(repo):
            files = json.loads(self.body)["files"]
            for file in files:
                file["uploadMode"] = "lfs" if file["path"].endswith(LFS_ENDINGS) else "regular"
                file["shouldIgnore"] = False
            self.reply(200, {"files": files})

    def lfs_batch(self, repo: str) -> None:
        if self.repository(repo):
            objects = json.loads(self.body)["objects"]
            for one in objects:
                if one["oid"] not in self.server.objects:
                    one["actions"] = {"upload": {"href": f"{self.server.url}/objects/{one['oid']}"}}
            self.reply(200, {"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")

    def store(self, oid: str) -> None:
        if self.server.refuse_objects_with:
            return self.reply(self.server.refuse_objects_with, {"error": "refused"})
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.reply(400, {"error": "The content does not match its id"})
        self.server.objects[oid] = self.body
        self.reply(200)

    def commit(self, repo: str, revision: str) -> None:
        if not self.logged_in:
            return self.reply(401, {"error": "Invalid credentials"})
        if not (repository := self.repository(repo)):
            return None
        files = dict(repository.commits[repository.branches[revision]])
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif item["key"] == "deletedFile":
                files.pop(value["path"])
        sha = repository.commit(revision, files)
        self.reply(200, {"commitUrl": f"{self.server.url}/{repo}/commit/{sha}", "commitOid": sha, "success": True})

    def info(self, repo: str, revision: str | None = None) -> None:
        if repository := self.repository(repo):
            if not (sha := repository.find(revision or "main")):
                return self.reply(404, {"error": "No such revision"}, X_Error_Code="RevisionNotFound")
            siblings = [{"rfilename": name} for name in sorted(repository.commits[sha])]
            self.reply(
                200, {"id": repo, "modelId": repo, "sha": sha, "private": repository.private, "tags": [],
                      "siblings": siblings, "pipeline_tag": "translation", "downloads": 0, "likes": 0},
            )  # fmt: skip  # one answer
        return None

    def tree(self, repo: str, revision: str, path: str | None = None) -> None:
        if repository := self.repository(repo):
            sha = repository.find(revision)
            files = repository.commits[sha] if sha else {}
            inside = {name: data for name, data in files.items() if not path or name.startswith(f"{path}/")}
            if not sha or (path and not inside):
                return self.reply(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in inside.items()
            ]
            self.reply(200, entries)
        return None

    def resolve(self, repo: str, revision: str, path: str) -> None:
        if not (repository := self.repository(repo)):
            return None
        if not (sha := repository.find(revision)):
            return self.reply(404, {"error": "No such revision"}, X_Error_Code="RevisionNotFound")
        if (data := repository.commits[sha].get(path)) is None:
            return self.reply(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
        lfs = path.endswith(LFS_ENDINGS)
        etag = f'"{(hashlib.sha256 if lfs else hashlib.sha1)(data).hexdigest()}"'
        linked = {"X_Linked_Size": str(len(data)), "X_Linked_Etag": etag} if lfs else {}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted:
            first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
            linked["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
            data = data[first : last + 1]
        self.reply(206 if wanted else 200, data, ETag=etag, X_Repo_Commit=sha, **linked)
        return None

    def agents(self) -> None:
        """No list of harnesses, which the library requests once a day."""
        self.reply(404, {"error": "Not found"})

    def whoami(self) -> None:
        self.reply(200 if self.logged_in else 401, {"name": "tester", "type": "user", "orgs": [], "auth": {}})

    def validate(self) -> None:
        assert parse_qs(urlsplit(self.path).query) == {}
        front_matter = re.match(r"---\n(.*?)\n---\n", json.loads(self.body)["content"], re.S)
        problem = card_problem(yaml.safe_load(front_matter[1]) if front_matter else {})
        self.reply(400 if problem else 200, problem.encode() if problem else {"errors": [], "warnings": []})


# The front matter of model cards, as the Hub specifies it:
# https://github.com/huggingface/hub-docs/blob/main/modelcard.md
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z]+)?|multilingual|code")
DATASET = re.compile(r"([\w.-]+/)?[\w.-]+")


def card_problem(metadata: dict[str, Any]) -> str | None:
    """Return how a card's front matter violates the specification, or None."""
    lists = {name: metadata.get(name, []) for name in ("language", "tags", "datasets")}
    for name, values in lists.items():
        if not all(isinstance(value, str) for value in values):
            return f'"{name}" must be an array of strings'
    if wrong := [code for code in lists["language"] if not LANGUAGE.fullmatch(code)]:
        return f'"language" {wrong[0]!r} must be an ISO 639-1, 639-2 or 639-3 code'
    if wrong := [name for name in lists["datasets"] if not DATASET.fullmatch(name)]:
        return f'"datasets" {wrong[0]!r} must be the id of a dataset'
    for model in metadata.get("model-index", []):
        if not isinstance(model.get("name"), str) or not isinstance(model.get("results"), list):
            return '"model-index" needs a name and results'
        for result in model["results"]:
            dataset = result.get("dataset", {})
            if not result.get("task", {}).get("type"):
                return '"model-index" a task needs a type'
            if not dataset.get("name") or not DATASET.fullmatch(str(dataset.get("type", ""))):
                return '"model-index" a dataset needs a name and the type of an id'
            for metric in result.get("metrics", []):
                if not metric.get("type") or not isinstance(metric.get("value"), int | float):
                    return '"model-index" a metric needs a type and a value'
    return None


REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("POST", "/api/repos/create", Handler.create),
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("GET", "/api/agent-harnesses", Handler.agents),
    ("POST", "/api/validate-yaml", Handler.validate),
    ("POST", f"/api/(?:models|spaces)/{REPO}/branch/(?P<branch>[^/]+)", Handler.branch),
    ("POST", f"/api/(?:models|spaces)/{REPO}/preupload/(?P<revision>[^/]+)", Handler.preupload),
    ("POST", f"(?:/spaces)?/{REPO}.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", "/objects/(?P<oid>[0-9a-f]+)", Handler.store),
    ("POST", f"/api/(?:models|spaces)/{REPO}/commit/(?P<revision>[^/]+)", Handler.commit),
    ("GET", f"/api/(?:models|spaces)/{REPO}", Handler.info),
    ("GET", f"/api/(?:models|spaces)/{REPO}/revision/(?P<revision>[^/]+)", Handler.info),
    ("GET", f"/api/(?:models|spaces)/{REPO}/tree/(?P<revision>[^/]+)(/(?P<path>.+))?", Handler.tree),
    ("GET", f"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
]


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serve a Hub within the context."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def environment(hub: Hub, home: Any, **more: str) -> dict[str, str]:
    """Return environment variables for a process that uses only this Hub and a cache of its own."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # This Hub does not support the Xet protocol for large files.
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "*",
        "OMP_NUM_THREADS": "1",
        **more,
    }


@contextmanager
def hub_of_this_process(monkeypatch: pytest.MonkeyPatch, home: Any) -> Iterator[Hub]:
    """Make this process use a new Hub, logged in."""
    with running_hub() as hub:
        for name, value in {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        for name, value in environment(hub, home, HF_TOKEN=TOKEN).items():
            monkeypatch.setenv(name, value)
        # transformers caches the client of the first Hub.
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
        yield hub
    huggingface_hub.utils.close_session()
