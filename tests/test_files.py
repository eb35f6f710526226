import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clover.errors import UserError
from clover.files import (
    LOCK,
    append_to_name,
    check_output_directory,
    check_output_file,
    locked_directory,
    locked_file,
    output_directory,
    output_file,
    read_text,
    write_text,
)

needs_permissions = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere"
)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_output_appears_whole_under_its_name(tmp_path: Path) -> None:
    final = tmp_path / "runs" / "draft"
    with output_directory(final) as temporary:
        (temporary / "config.json").write_text("{}")
        assert not final.exists()
        assert temporary.parent == final.parent
    assert names(final) == ["config.json"]
    assert names(final.parent) == ["draft"]


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_outputs_are_as_readable_as_any_new_file_or_directory(tmp_path: Path) -> None:
    with output_directory(tmp_path / "draft") as folder:
        (folder / "model.safetensors").touch(mode=0o600)
    with output_file(tmp_path / "one") as temporary:
        temporary.touch(mode=0o600)
    (tmp_path / "usual").mkdir()
    (tmp_path / "usual" / "file").touch()
    for made, usual in (("draft", "usual"), ("draft/model.safetensors", "usual/file"), ("one", "usual/file")):
        assert (tmp_path / made).stat().st_mode == (tmp_path / usual).stat().st_mode


@pytest.mark.parametrize("link", [False, True])
def test_what_a_killed_process_of_the_same_number_left_does_not_matter(tmp_path: Path, link: bool) -> None:
    left = tmp_path / f".one.{os.getpid()}.partial"
    left.symlink_to(tmp_path / "other") if link else left.touch(mode=0o600)
    write_text(tmp_path / "one", "new")
    (tmp_path / "usual").touch()
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert (tmp_path / "one").read_text() == "new" and names(tmp_path) == ["one", "usual"]


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), output_directory(tmp_path / "draft") as temporary:
        (temporary / "half").write_text("half")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    with output_directory(tmp_path / "draft") as temporary:
        (temporary / "new").touch()
    assert names(tmp_path / "draft") == ["new"]
    assert names(tmp_path) == ["draft"]


@pytest.mark.parametrize(
    ("place", "message"),
    [("full", "not empty"), ("file", "not a directory"), ("file/draft", "draft"), (".", "current directory")],
)
def test_what_is_in_the_way_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    for name in ("full/old", "file"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=message), output_directory(place, overwrite=place != "full"):
        pytest.fail("the block must not run")
    assert names(tmp_path) == ["file", "full"] and names(tmp_path / "full") == ["old"]


def test_what_a_killed_process_leaves_does_not_fill_a_directory(tmp_path: Path) -> None:
    for name in (LOCK, ".index.json.99999.partial"):
        (tmp_path / name).touch()
        check_output_directory(tmp_path)
    (tmp_path / ".hidden").touch()
    with pytest.raises(UserError, match="not empty"):
        check_output_directory(tmp_path)


def test_directory_filled_during_the_work_is_kept(tmp_path: Path) -> None:
    final = tmp_path / "draft"
    with pytest.raises(UserError, match="not empty"), output_directory(final):
        final.mkdir()
        (final / "other").touch()
    assert names(final) == ["other"]
    assert names(tmp_path) == ["draft"]


def test_overwrite_replaces_everything_or_nothing(tmp_path: Path) -> None:
    final = tmp_path / "draft"
    final.mkdir()
    (final / "old").touch()
    with pytest.raises(ZeroDivisionError), output_directory(final, overwrite=True):
        raise ZeroDivisionError
    assert names(final) == ["old"]
    with output_directory(final, overwrite=True) as temporary:
        assert names(final) == ["old"]
        (temporary / "new").touch()
    assert names(final) == ["new"]
    assert names(tmp_path) == ["draft"]


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), (UserError, "disk is full")),
        (KeyboardInterrupt(), (KeyboardInterrupt, None)),
    ],
)
def test_old_files_come_back_when_the_last_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, told: tuple[type, str | None]
) -> None:
    final = tmp_path / "draft"
    final.mkdir()
    (final / "old").touch()
    rename = Path.rename

    def fail_for_the_new(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise failure
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with pytest.raises(told[0], match=told[1]), output_directory(final, overwrite=True):
        pass
    assert names(final) == ["old"]
    assert names(tmp_path) == ["draft"]


@pytest.mark.parametrize(("during", "left"), [(".old", "old"), ("draft", "new")])
def test_an_interruption_of_the_last_step_leaves_one_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: str, left: str
) -> None:
    """Python raises KeyboardInterrupt once the system has renamed."""
    final = tmp_path / "draft"
    final.mkdir()
    (final / "old").touch()
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> None:
        rename(self, target)
        if target.name.endswith(during):
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), output_directory(final, overwrite=True) as temporary:
        (temporary / "new").touch()
    assert names(final) == [left]
    assert names(tmp_path) == ["draft"]


@needs_permissions
def test_read_only_parent_is_explained(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="permission denied"), output_directory(tmp_path / "draft"):
        pytest.fail("the block must not run")


@needs_permissions
def test_what_cannot_be_replaced_behind_a_link_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "closed" / "draft").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "closed" / "draft")
    (tmp_path / "closed").chmod(0o500)
    with pytest.raises(UserError, match="cannot write .*closed/draft: permission denied"):
        check_output_directory(tmp_path / "link")


@pytest.mark.parametrize("below", ["draft", "new/draft"])
def test_a_place_that_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"cannot write .*{below}: .*file is not a directory"):
        check_output_directory(tmp_path / "file" / below)
    check_output_directory(tmp_path / below)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # as for all but the superuser
    with pytest.raises(UserError, match=f"cannot write .*{below}: permission denied"):
        check_output_directory(tmp_path / below)
    assert names(tmp_path) == ["file"]


class SafetensorError(Exception):
    """As safetensors raises it."""


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_full_disk_is_explained(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(UserError, match=r"cannot write .*draft: the disk .* free some space"):
        with output_directory(tmp_path / "draft"):
            raise error
    assert names(tmp_path) == []


def test_safetensors_still_numbers_its_errors(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"\(os error 2\)"):
        save_file({"a": torch.zeros(1)}, tmp_path / "missing" / "a.safetensors")


def test_other_errors_of_the_work_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), output_directory(tmp_path / "draft"):
        (tmp_path / "input.jsonl").read_text()


def test_text_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*log"):
        write_text(tmp_path / "log", "text")
    assert names(tmp_path) == ["log"]


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("first", "second"):
        write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == text


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for write in (check_output_file, lambda path: write_text(path, "x")):
        with pytest.raises(UserError, match="is a device or a pipe"):
            write(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_one_process_at_a_time_works_in_a_directory_which_goes_away_if_nothing_is_left(
    tmp_path: Path,
) -> None:
    work = tmp_path / "deep" / "work"
    with locked_directory(work):
        with pytest.raises(UserError, match="another process works in"), locked_directory(work):
            raise AssertionError("both have it")
    assert not work.exists()
    with locked_directory(work):
        (work / "kept").touch()
    assert names(work) == ["kept"]


def test_one_process_at_a_time_writes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "texts.jsonl"
    with locked_file(file):
        with pytest.raises(UserError, match="another process writes .*texts.jsonl"), locked_file(file):
            raise AssertionError("both have it")
        with locked_file(file.with_name("other.jsonl")):
            file.touch()
    with locked_file(file):
        pass
    assert names(file.parent) == ["texts.jsonl"]


KILLED = """
import os, sys
from clover.files import output_directory, output_file
with output_file(sys.argv[1] + "/checkpoint") as file, output_directory(sys.argv[1] + "/draft") as folder:
    file.touch()
    (folder / "half").touch()
    os._exit(9)
"""


def test_what_a_killed_process_left_is_removed_when_the_next_one_begins(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with locked_directory(work):
        (work / "whole").touch()
    assert subprocess.run([sys.executable, "-c", KILLED, str(work)]).returncode == 9
    left = set(names(work)) - {".lock", "whole"}
    assert len(left) == 2 and all(name.endswith(".partial") for name in left)
    with locked_directory(work):
        assert names(work) == [".lock", "whole"]


def test_a_name_beside_another_also_where_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert append_to_name(Path("out"), ".work") == Path("out.work")
    assert append_to_name(Path(), ".work") == tmp_path.with_name(f"{tmp_path.name}.work")
    assert append_to_name(Path("a/.."), ".work") == tmp_path.with_name(f"{tmp_path.name}.work")


def test_a_named_pipe_is_not_waited_for_and_one_of_a_shell_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(UserError, match=f"cannot read .*{name}: it is a named pipe; put a file"):
            read_text(tmp_path / name)
    reading, writing = os.pipe()
    os.write(writing, b"some text")
    os.close(writing)
    assert read_text(f"/dev/fd/{reading}") == "some text"
    os.close(reading)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    large, binary, loop = tmp_path / "large", tmp_path / "binary", tmp_path / "loop"
    large.write_bytes(b" " * 101)
    binary.write_bytes(b"{\xff}")
    loop.symlink_to(loop)
    assert read_text(large, max_bytes=101) == " " * 101
    for path, message in (
        (large, "large is larger than"),
        (binary, r"binary is not valid UTF-8 text \(byte 1"),
        (loop, "cannot read .*loop: too many levels"),
        (tmp_path, "is a directory"),
        (tmp_path / "missing", "cannot read .*missing: no such file"),
        ("a\0b", "cannot read 'a.*b'"),
        ("/dev/zero", "/dev/zero is larger than"),
    ):
        with pytest.raises(UserError, match=message):
            read_text(path, max_bytes=100)
