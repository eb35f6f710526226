"""Options and prompt files, checked before any time is spent."""

import json
from pathlib import Path

import pytest

from clover import assets
from clover.demo import DemoOptions
from clover.errors import UserError


def test_command_repeats_what_differs_from_the_defaults() -> None:
    options = DemoOptions(target="a b", max_new_tokens=4, json=Path("x.json"), trust_remote_code=True)
    assert (
        options.command == "clover demo --target 'a b' --trust-remote-code --max-new-tokens 4 --json x.json"
    )
    assert DemoOptions().command == "clover demo"


def test_prompts_from_json_and_text(tmp_path: Path) -> None:
    code = tmp_path / "code.json"
    code.write_text(json.dumps({"prompts": ["def f():\n", "x = 1"], "source": "here"}))
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n\n two \n")
    assert DemoOptions(prompts=code).read_prompts() == ["def f():\n", "x = 1"]
    assert DemoOptions(prompts=lines).read_prompts() == ["one", " two "]


def test_embedded_prompts_are_the_default_and_a_dozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = tmp_path / "held_out.json"
    monkeypatch.setattr(assets, "HELD_OUT_PROMPTS", held_out)
    with pytest.raises(UserError, match="embedded prompts are missing; give --prompts FILE"):
        DemoOptions().read_prompts()
    held_out.write_text(json.dumps({"prompts": [f"x{i}" for i in range(20)]}))
    assert DemoOptions().read_prompts() == [f"x{i}" for i in range(12)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"prompts": []}', "holds no prompts"),
        ("a.json", '{"prompts": ["x", ""]}', "a list of texts that are not empty"),
        ("a.json", '{"prompts": "x"}', "a list of texts that are not empty"),
        ("a.json", "{}", "a list of texts that are not empty"),
        ("a.json", "[1]", "JSON object"),
        ("a.json", "{", "not valid JSON"),
        ("a.txt", "\n \n", "holds no prompts"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.txt", None, "cannot read"),
    ],
)
def test_bad_prompt_files(tmp_path: Path, name: str, content: str | bytes | None, message: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        DemoOptions(prompts=file).read_prompts()


def test_outputs_are_checked_first(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"must end in \.png, \.pdf, \.svg"):
        DemoOptions(picture=tmp_path / "demo.gif").check_outputs()
    with pytest.raises(UserError, match="is a directory"):
        DemoOptions(picture=tmp_path / "folder.png").check_outputs()
    with pytest.raises(UserError, match="cannot write"):
        DemoOptions(picture=tmp_path / "a.png", json=tmp_path / "file" / "a.json").check_outputs()
    DemoOptions(picture=tmp_path / "new" / "a.png").check_outputs()
    assert (tmp_path / "new").is_dir()
