"""What a run tells of itself, and how it is asked to stop."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clover.drafts import LossConfig
from clover.train.log import TrainingLog, describe_entry, stop_requests


def at_step(step: int) -> Any:
    return SimpleNamespace(step=step, tokens=0, seconds=0.0)


def test_an_entry_is_described_in_one_line() -> None:
    entry = {"step": 30, "loss": 2.5, "accuracy": [0.5, 0.25], "seconds": 61.0, "tokens_per_second": 1234.0}
    assert describe_entry(entry) == "step 30  loss 2.500  accuracy 0.50 0.25  1,234 tokens/s"


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_works_as_ever() -> None:
    with stop_requests() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_fresh_log_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n')
    TrainingLog(path, LossConfig(), at_step(0)).write({"step": 2})
    assert path.read_text() == '{"step": 2}\n'


def test_a_log_that_goes_on_keeps_what_its_checkpoint_has_seen(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 2, "validation": {"loss": 1.0}}\n{"step": 3}\n{"ste')
    TrainingLog(path, LossConfig(), at_step(2))
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
