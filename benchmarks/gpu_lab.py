"""Time and profile decoding steps of 1B, 8B and 70B-class models with random weights, on a GPU.

    shapes   plain and speculative steps, against the ceilings of the device
    profile  top operators and gaps between kernels of such steps, as text
    all      one after another

Every call works for --minutes at most, ends with exit code 3 where there is more to do, and continues when it is
given again. Results, each with date, device, command and revision, are in WORK/results.

    python -m benchmarks.gpu_lab all --work runs/gpu --minutes 9

On a CPU, all shrunk:

    python -m benchmarks.gpu_lab all --work runs/small --small

Trainings and comparisons on a GPU are those of `experiments/`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.lab.profiling import profile_steps
from benchmarks.lab.shapes import time_shapes
from benchmarks.lab.sizes import FULL, SMALL
from benchmarks.lab.workplace import OutOfTime, Workplace
from clover.errors import UserError

STAGES: dict[str, Callable[[Workplace], None]] = {"shapes": time_shapes, "profile": profile_steps}
USER_ERROR, MORE_TO_DO = 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage, or all; returns the exit code."""
    chosen = _parse(arguments)
    try:
        place = _workplace(chosen)
        for stage in STAGES if chosen.stage == "all" else (chosen.stage,):
            place.say(stage)
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
    sizes = SMALL if chosen.small else FULL
    if chosen.small:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    if chosen.shape:
        known = {shape.name: shape for shape in sizes.shapes}
        if unknown := [name for name in chosen.shape if name not in known]:
            raise UserError(f"there is no shape {unknown[0]!r}; known are {', '.join(known)}")
        sizes = replace(sizes, shapes=tuple(known[name] for name in chosen.shape))
    return Workplace(
        folder=chosen.work,
        sizes=sizes,
        device=device,
        dtype=torch.float32 if chosen.small else torch.bfloat16,
        deadline=time.monotonic() + 60 * chosen.minutes,
        compiled=device.type == "cuda" if chosen.compile is None else chosen.compile,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("stage", choices=[*STAGES, "all"])
    parser.add_argument("--work", type=Path, default=Path("runs/gpu"), help="directory of the results")
    parser.add_argument("--minutes", type=float, default=9.0, help="maximum time of this call")
    parser.add_argument("--small", action="store_true", help="small sizes, on a CPU")
    parser.add_argument("--device", help="cuda, cuda:1 or cpu. Default: a GPU if there is one")
    parser.add_argument("--shape", action="append", help="time only this shape; may be given several times")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="also time the shapes with torch.compile. Default: only on a GPU",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
