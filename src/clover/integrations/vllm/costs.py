"""Time vLLM's decoding steps per batch size and number of drafted tokens; `clover tune --for vllm` reads the file.

Run it on the machine that will serve, with the same settings:

    python -m clover.integrations.vllm.costs TARGET EXPORTED_DRAFT costs.json --settings '{"tensor_parallel_size": 2}'

The time of a step does not depend on what it accepts, so the texts do not matter. Each number of drafted tokens runs in
its own process, so that its memory is freed.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clover.errors import UserError
from clover.files import check_output_file, write_json
from clover.integrations.vllm.names import ARCHITECTURES
from clover.options import USER_ERROR
from clover.validation import read_json

DRAFTED = (0, 1, 3, 5, 8)
_NAME = "clover.integrations.vllm.costs"  # __name__ is "__main__" where this runs as a command
_WARM_UP, _TIMED, _PROMPT = 4, 24, 64  # steps, and tokens of a prompt


def numbers_to_time(most: int) -> list[int]:
    """Return the numbers of drafted tokens to time, for a draft that drafts at most `most` tokens."""
    return sorted({min(count, most) for count in DRAFTED})


def measure_costs(
    target: str,
    draft: str,
    batch_sizes: Sequence[int],
    drafted: Sequence[int] = DRAFTED,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Time steps, each number of drafted tokens in its own process.

    Args:
        target: directory or name of the target.
        draft: a directory that `clover export --to vllm` wrote.
        batch_sizes: requests that run together.
        drafted: numbers of drafted tokens; 0 is vLLM without a draft.
        settings: arguments of `vllm.LLM`.

    Returns:
        {"vllm": version, "steps": [{"batch_size", "drafted", "seconds"}, …]}.

    Raises:
        UserError: vLLM could not run them.
    """
    found: dict[str, Any] = {"steps": []}
    for count in drafted:
        task = json.dumps([target, draft, list(batch_sizes), count, dict(settings or {})])
        command = [sys.executable, "-m", _NAME, "--one", task]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise UserError(f"vLLM did not run with {count} drafted tokens; see its own message above")
        one = json.loads(done.stdout.splitlines()[-1])
        found["vllm"] = one["vllm"]
        found["steps"] += one["steps"]
    return found


def _measure_one(
    target: str, draft: str, batch_sizes: Sequence[int], drafted: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Measure one number of drafted tokens, in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm

    speculative = {"method": "eagle", "model": draft, "num_speculative_tokens": drafted} if drafted else None
    room = {
        "max_num_seqs": max(batch_sizes),
        "max_model_len": _PROMPT + (_WARM_UP + _TIMED + 2) * (drafted + 1),
    }
    llm = vllm.LLM(target, speculative_config=speculative, **room | dict(settings))
    steps = [
        {"batch_size": size, "drafted": drafted, "seconds": _step_seconds(llm, size)} for size in batch_sizes
    ]
    return {"vllm": vllm.__version__, "steps": steps}


def _step_seconds(llm: Any, batch_size: int) -> float:
    """Return the median seconds of a decoding step with `batch_size` requests."""
    from vllm import SamplingParams

    engine, seconds = llm.llm_engine, []
    waiting = {f"{batch_size}-{number}" for number in range(batch_size)}
    params = SamplingParams(temperature=0, max_tokens=10**6, ignore_eos=True)
    for number, name in enumerate(sorted(waiting)):
        engine.add_request(name, {"prompt_token_ids": [10 + number] * _PROMPT}, params)
    names = sorted(waiting)
    while waiting:  # until every prompt has been read
        waiting -= {output.request_id for output in engine.step() if output.outputs[0].token_ids}
    for number in range(_WARM_UP + _TIMED):
        start = time.perf_counter()
        engine.step()
        if number >= _WARM_UP:
            seconds.append(time.perf_counter() - start)
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return statistics.median(seconds)


def _drafted(draft: str, asked: Sequence[int] | None) -> list[int]:
    """Return the numbers of drafted tokens to time: those asked for, or the usual ones that the draft supports.

    UserError for a directory that is not an exported draft, and for more tokens than a Clover-1 draft has heads.
    """
    config = read_json(Path(draft) / "config.json")
    fields = config.get("clover")
    if not isinstance(fields, dict):
        raise UserError(f"{draft} was not written by clover export --to vllm")
    most = max([*DRAFTED, *(asked or ())])
    if config.get("architectures") == [ARCHITECTURES["clover1"]]:
        most = fields.get("num_heads", most)
    if asked and max(asked) > most:
        raise UserError(f"this Clover-1 draft has {most} heads: it cannot draft {max(asked)} tokens")
    return list(asked or numbers_to_time(most))


def _main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("target")
    parser.add_argument("draft", help="a directory that `clover export --to vllm` wrote")
    parser.add_argument("output", type=Path)
    parser.add_argument("--batch-size", type=int, action="append", help="may be given several times")
    parser.add_argument("--drafted", type=int, action="append", help="may be given several times")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON: arguments of vllm.LLM")
    given = parser.parse_args()
    try:
        if not isinstance(given.settings, dict):
            raise UserError("--settings is not a JSON object of vllm.LLM's arguments")
        check_output_file(given.output)
        drafted = _drafted(given.draft, given.drafted)
        sizes = given.batch_size or [1, 4, 16, 64]
        write_json(given.output, measure_costs(given.target, given.draft, sizes, drafted, given.settings))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(_measure_one(*json.loads(sys.argv[2]))))
    else:
        sys.exit(_main())
