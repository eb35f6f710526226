"""The commands that measure: ``clover bench``, ``demo``, ``evaluate``, ``tune`` and ``cost``."""

from dataclasses import replace

import typer

from clover.errors import UserError
from clover.measure.options import BenchOptions, CostOptions, DemoOptions, EvaluateOptions, TuneOptions
from clover.options import takes_options


@takes_options
def bench(options: BenchOptions) -> None:
    """Measure the speed of plain decoding, the draft, and transformers, in turn on the same prompts."""
    from clover.measure.bench import run_bench

    if options.model is not None:
        if options.target is not None:
            raise UserError("the target is named twice, as an argument and by --target; leave one out")
        options = replace(options, target=options.model, model=None)
    run_bench(options)


@takes_options
def demo(options: DemoOptions) -> None:
    """Compare drafts with plain decoding live, then in a table and a plot. It takes two minutes.

    Exits with 1 if a text differs from that of plain decoding and rounding does not explain it.
    """
    from clover.measure.demo import run_demo

    _, defect = run_demo(options)
    if defect:
        raise typer.Exit(1)


@takes_options
def evaluate(options: EvaluateOptions) -> None:
    """Measure the quality of a draft: the accuracy of its heads, the acceptance in any tree, and its weak points."""
    from clover.measure.evaluate import run_evaluate

    run_evaluate(options)


@takes_options
def tune(options: TuneOptions) -> None:
    """Find the fastest tree for each batch size on this machine, or plain decoding; save it with the draft.

    With --for vllm, find the best number of draft tokens on vLLM.
    """
    from clover.measure.tune import run_tune
    from clover.measure.tune_vllm import run_tune_vllm

    (run_tune if options.for_ == "clover" else run_tune_vllm)(options)


@takes_options
def cost(options: CostOptions) -> None:
    """Measure the cost of drafting on this machine before training, and show the τ that 1.0×, 1.5× and 2× require.

    With --minutes or a trained --draft, also show after how many tokens the training pays for itself.
    """
    from clover.measure.cost import run_cost

    run_cost(options)
