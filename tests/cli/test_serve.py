"""``clover serve``: as a process that is started, asked and stopped, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from tests.conftest import Finished
from tests.serve.live import wait_for
from tests.tiny import save_tiny_pair


@contextmanager
def served(
    place: Path, models: list[str], port: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str, openai.OpenAI]]:
    """`clover serve` in a process of its own, its port, and a client; the process is killed at the end."""
    command = [sys.executable, "-m", "clover", "serve", *models, "--name", "small", "--port", port]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=place, env=variables) as process:
        try:
            assert process.stderr is not None
            said = next(line for line in process.stderr if "loading" not in line)
            found = re.search(r"small is served at (http://127\.0\.0\.1:(\d+)/v1)", said)
            assert found
            key = environment.get("CLOVER_API_KEY", "none")
            yield process, found[2], openai.OpenAI(base_url=found[1], api_key=key, max_retries=0)
        finally:
            process.kill()


@pytest.mark.long
def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with served(tmp_path, [], "0", CLOVER_API_KEY="key") as (process, _, client):
        [model] = client.models.list().data
        assert (model.id, model.to_dict()["draft"]) == ("small", "recall")
        chunks = client.completions.create(model="small", prompt="def f(", max_tokens=40, stream=True)
        assert next(chunks).choices[0].text
        process.send_signal(signal.SIGTERM)
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
        assert process.wait(30) == 0
        assert process.stderr is not None and process.stderr.read() == ""


@pytest.mark.long
def test_kill_9_in_the_middle_of_work_damages_nothing(tmp_path: Path) -> None:
    target, draft = save_tiny_pair(tmp_path, context=4096)
    models = ["--target", str(target), "--draft", str(draft)]
    before, port, texts = contents(tmp_path), "0", []
    for last in (False, True):
        # The new server takes the address of the killed one.
        with served(tmp_path, models, port) as (process, port, client):
            asked = {"model": "small", "prompt": "abc", "temperature": 0, "max_tokens": 90}
            texts.append(client.completions.create(**asked).choices[0].text)  # type: ignore[call-overload]
            if not last:  # far more than can be written before the signal comes; no circles to look up
                asked |= {"max_tokens": 4000, "temperature": 1.5, "extra_body": {"ignore_eos": True}}
            streams = [client.completions.create(**asked, stream=True) for _ in range(4)]  # type: ignore[call-overload]
            next(streams[0])
            process.send_signal(signal.SIGTERM if last else signal.SIGKILL)
            if last:
                assert "".join(chunk.choices[0].text for chunk in streams[1]) == texts[0]
            else:
                with pytest.raises((openai.APIError, httpx.TransportError)):
                    [list(stream) for stream in streams]
            assert process.wait(30) == (0 if last else -signal.SIGKILL)
    assert texts[0] == texts[1] != "" and contents(tmp_path) == before


def closed(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def contents(place: Path) -> dict[Path, bytes]:
    """All files below."""
    return {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_what_runs(tmp_path: Path, number: signal.Signals) -> None:
    target, draft = save_tiny_pair(tmp_path, context=4096)
    models = ["--target", str(target), "--draft", str(draft)]
    with served(tmp_path, models, "0") as (process, port, client):
        asked = {"model": "small", "prompt": "abc", "max_tokens": 4000, "temperature": 1.5}
        stream = client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
        next(stream)
        process.send_signal(number)
        wait_for(lambda: closed(int(port)))  # signals that come at once are one
        process.send_signal(number)
        with pytest.raises(openai.APIError, match="the server is stopping"):
            list(stream)
        assert process.stderr is not None and process.wait(30) == 0 and process.stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "70000"], "--port"),
        (["--host", "not a host"], "cannot listen at not a host"),
        (["--host", "a..b"], "cannot listen at a..b"),
        (["--api-key", ""], "API key is empty"),
        (["--max-sequences", "0"], "--max-sequences"),
    ],
)
def test_options_that_cannot_be_are_refused(
    run_clover: Callable[..., Finished], options: list[str], said: str
) -> None:
    code, _, err = run_clover("serve", *options)
    assert code == 2 and said in err


def test_an_empty_variable_is_no_wish_for_a_server_without_a_key(
    run_clover: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOVER_API_KEY", "")
    code, _, err = run_clover("serve", "--host", "not a host")  # refused, too, but later
    assert code == 2 and "API key is empty" in err
    code, _, err = run_clover("serve", "--host", "not a host", "--api-key", "given")
    assert code == 2 and "cannot listen" in err


@pytest.mark.parametrize(("said", "place"), [(".", "mine"), ("..", "mine/inner"), ("mine", ".")])
def test_a_directory_has_a_name_however_it_is_said(
    run_clover: Callable[..., Finished],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    place: str,
) -> None:
    import clover.serve.run

    names: list[str] = []
    monkeypatch.setattr(clover.serve.run, "serve", lambda model, name, *_: names.append(name))
    target, _ = save_tiny_pair(tmp_path)
    target.rename(tmp_path / "mine")
    (tmp_path / "mine" / "inner").mkdir()
    monkeypatch.chdir(tmp_path / place)
    code, _, err = run_clover("serve", "--port", 0, "--target", said, "--tree", "lookup")
    assert (code, names) == (0, ["mine"]), err


def test_a_port_that_is_taken_is_an_error(run_clover: Callable[..., Finished]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = run_clover("serve", "--port", taken.getsockname()[1])
    assert code == 2 and "cannot listen" in err


def test_what_is_missing_is_named(
    run_clover: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("clover.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    code, _, err = run_clover("serve", "--port", 0)
    assert code == 2 and "pip install fastapi prometheus_client uvicorn" in err
