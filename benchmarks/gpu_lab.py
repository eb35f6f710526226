"""Everything that needs a GPU, in stages that hand over by files.

    target   train a Llama of 100–300 M parameters on the Python source of the installed packages
    text     let it write the text that the drafts learn from
    drafts   train every draft system on the same tokens
    compare  decode with every system at batch 1 … 64
    shapes   time plain and speculative steps of 1B, 8B and 70B-class models (random weights), against the ceilings
    profile  top operators and gaps between kernels of such steps, as text
    replay   the speed-ups that the measured acceptance would give on those shapes (simulated)
    all      one after another

Every call works for --minutes at most, ends with exit code 3 where there is more to do, and goes on there when it is
given again. `shapes` and `profile` need no other stage. Results, each with date, device, command and revision, are in
WORK/results.

A call of ten minutes, again and again until it ends with 0:

    python -m benchmarks.gpu_lab all --work runs/gpu --minutes 9

On a CPU, all shrunk, in under two minutes:

    python -m benchmarks.gpu_lab all --work runs/small --small
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.lab.drafts import compare_drafts, train_drafts, write_training_text
from benchmarks.lab.profiling import profile_steps
from benchmarks.lab.shapes import replay_acceptance, time_shapes
from benchmarks.lab.sizes import FULL, SMALL, Sizes
from benchmarks.lab.target import train_target
from benchmarks.lab.workplace import OutOfTime, Workplace, interrupted_in_time
from clover.errors import UserError

STAGES: dict[str, Callable[[Workplace], None]] = {
    "target": train_target,
    "text": write_training_text,
    "drafts": train_drafts,
    "compare": compare_drafts,
    "shapes": time_shapes,
    "profile": profile_steps,
    "replay": replay_acceptance,
}
USER_ERROR, MORE_TO_DO = 2, 3
# In the order in which a GPU is best used: the shapes need no training.
ORDER = ("shapes", "profile", "target", "text", "drafts", "compare", "replay")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage, or all; returns the exit code."""
    chosen = _parse(arguments)
    try:
        place = _workplace(chosen)
        for stage in ORDER if chosen.stage == "all" else (chosen.stage,):
            place.say(stage)
            with interrupted_in_time(place):
                STAGES[stage](place)
            place.say(f"{stage}: done")
    except OutOfTime:
        print("the time is up; the same command goes on from here", file=sys.stderr)
        return MORE_TO_DO
    except UserError as error:
        print(f"gpu_lab: error: {error}", file=sys.stderr)
        return USER_ERROR
    return 0


def _workplace(chosen: argparse.Namespace) -> Workplace:
    device = torch.device(chosen.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.small:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    return Workplace(
        folder=chosen.work,
        sizes=_sizes(SMALL if chosen.small else FULL, chosen),
        device=device,
        dtype=torch.float32 if chosen.small else torch.bfloat16,
        deadline=time.monotonic() + 60 * chosen.minutes,
        compiled=device.type == "cuda" if chosen.compile is None else chosen.compile,
    )


def _sizes(sizes: Sizes, chosen: argparse.Namespace) -> Sizes:
    """The sizes with what the command line chooses otherwise."""
    target = {name: value for name in ("hidden", "layers") if (value := getattr(chosen, name)) is not None}
    if "hidden" in target:
        target |= {"inner": 11 * target["hidden"] // 4, "heads": max(1, target["hidden"] // 64)}
        target |= {"kv_heads": max(1, target["heads"] // 2)}
    values: dict[str, object] = {"target": replace(sizes.target, **target)}
    for name in ("pretrain_minutes", "draft_steps", "texts"):
        if (value := getattr(chosen, name)) is not None:
            values[name] = value
    if chosen.shape:
        known = {shape.name: shape for shape in sizes.shapes}
        if unknown := [name for name in chosen.shape if name not in known]:
            raise UserError(f"there is no shape {unknown[0]!r}; known are {', '.join(known)}")
        values["shapes"] = tuple(known[name] for name in chosen.shape)
    return replace(sizes, **values)  # type: ignore[arg-type]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=[*STAGES, "all"])
    parser.add_argument(
        "--work", type=Path, default=Path("runs/gpu"), help="what the stages hand over, and results"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="that this call may take")
    parser.add_argument("--small", action="store_true", help="all shrunk, on a CPU")
    parser.add_argument("--device", help="cuda, cuda:1, cpu; a GPU where there is one")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="time the shapes with torch.compile, too; if left out, on a GPU",
    )
    parser.add_argument("--shape", action="append", help="time this shape only; may be given several times")
    parser.add_argument("--hidden", type=int, help="width of the target that is trained")
    parser.add_argument("--layers", type=int, help="its layers")
    parser.add_argument("--pretrain-minutes", type=float, help="its training, all calls together")
    parser.add_argument("--texts", type=int, help="texts that it writes")
    parser.add_argument("--draft-steps", type=int, help="optimizer steps of every draft")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
