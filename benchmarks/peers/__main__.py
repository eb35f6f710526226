"""Other engines beside ours: the same model, prompts and machine, two at a time in alternating blocks.

    make peers                                                      # once: an environment for each peer
    python -m benchmarks.peers run humaneval.jsonl --target DIR --gguf FILE --assistant DIR --draft DIR --output X.jsonl
    python -m benchmarks.peers run … --engine 'llama.cpp-*'         # some of them; results are appended to the output
    python -m benchmarks.peers table X.jsonl                        # the tables, in Markdown
    python -m benchmarks.peers engines                              # the names of all

An engine that cannot run is named with the reason. docs/peers.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.engines import ENGINES, choose
from benchmarks.peers.measure import Plan, measure
from benchmarks.peers.peer import Settings
from benchmarks.peers.results import Result
from benchmarks.peers.table import tables
from clover.errors import UserError
from clover.validation import read_lines

_MADE = Path(__file__).parents[2] / "build/peers"


def main(arguments: list[str] | None = None) -> None:
    """Run one of the commands."""
    options = _parser().parse_args(arguments)
    if options.command == "engines":
        print("\n".join(ENGINES))
    elif options.command == "table":
        found = [result for file in options.results for result in read_lines(file, Result)]
        if not found:
            raise UserError(f"{options.results[0]} holds no results")
        print(tables(found))
    else:
        _run(options)


def _run(options: argparse.Namespace) -> None:
    options.batch_size = sorted(options.batch_size or [1])
    engines, results = choose(options.engine), list[Result]()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the workers must not outlive this process
    with open(options.output, "a", encoding="utf-8") as file:
        for result in measure(engines, make_plan(options)):
            results.append(result)
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            print(f"{result.engine}, batch {result.batch_size}: {_said(result)}", file=sys.stderr, flush=True)
    print(tables(results))


def _said(result: Result) -> str:
    if result.left_out is not None:
        return f"left out: {result.left_out}"
    return f"{result.tokens_per_second:.1f} tokens/s, {result.of_anchor.text()} times our plain decoding in bfloat16"


def make_plan(options: argparse.Namespace) -> Plan:
    """Return what is decoded, as token ids; UserError if files cannot be used."""
    import torch

    from clover import assets
    from clover.data.tasks import choose_fitting, read_tasks
    from clover.measure.report.provenance import machine, revision
    from clover.target import loading, support
    from clover.target.source import find_source

    tasks, source = read_tasks(options.prompts), find_source(options.target)
    config = loading.load_config(source, False)
    tokenizer = loading.load_tokenizer(source, False)
    if tokenizer is None or source.directory is None:
        raise UserError(f"{options.target} must be a directory of transformers, with its tokenizer")
    limit, _ = support.longest_run(config.get_text_config(), inside_windows=True)
    chosen = choose_fitting(tasks, tokenizer, limit, options.max_new_tokens, options.max_prompts)
    prompts = [list(one.tokens) for one in chosen.prompts]
    text = "\n".join(json.loads(assets.HELD_OUT_PROMPTS.read_text(encoding="utf-8"))["prompts"])
    settings = Settings(
        target=options.target,
        gguf=options.gguf,
        assistant=options.assistant,
        draft=options.draft,
        weights="",
        method="",
        eos=tuple(_eos(source.directory, config)),
        threads=options.threads,
        max_length=max(map(len, prompts)) + options.max_new_tokens + 64,
        max_batch=max(options.batch_size),
        made=str(options.made.resolve()),
    )
    options.made.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    blank: dict[str, Any] = {
        "prompts": ", ".join(Path(file).stem for file in options.prompts),
        "digest": hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16],
        "machine": machine(torch.device("cpu")),
        "threads": options.threads,
        "revision": revision() or "unknown",
        "command": shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]]),
    }
    tokens = tokenizer(text)["input_ids"][: options.perplexity_tokens]
    return Plan(prompts, options.batch_size, options.max_new_tokens, tokens, settings, blank)


def _eos(directory: Path, config: Any) -> list[int]:
    from transformers import GenerationConfig

    from clover.target import support

    given = directory / "generation_config.json"
    found = support.eos_tokens(GenerationConfig.from_pretrained(directory)) if given.is_file() else []
    found += support.eos_tokens(config)
    if not found:
        raise UserError(
            f"{directory} does not say which token ends a text; set eos_token_id in its config.json"
        )
    return list(dict.fromkeys(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("engines", help="name all engines")
    table = commands.add_parser("table", help="print the tables of results")
    table.add_argument("results", nargs="+", type=Path)
    run = commands.add_parser("run", help="measure")
    run.add_argument("prompts", nargs="+", help="files of prompts, as `clover bench --prompts` takes them")
    run.add_argument("--target", required=True, help="directory of transformers with the weights")
    run.add_argument("--gguf", default="", help="the same weights as a GGUF file, for llama.cpp")
    run.add_argument("--assistant", default="", help="directory of a small model with the same vocabulary")
    run.add_argument("--draft", default="", help="directory of a draft of ours for the target")
    run.add_argument(
        "--engine", action="append", help="name or pattern; may be given several times. Default: all"
    )
    run.add_argument("--batch-size", action="append", type=int, help="may be given several times. Default: 1")
    run.add_argument("--max-prompts", type=int, default=8)
    run.add_argument("--max-new-tokens", type=int, default=128)
    run.add_argument("--perplexity-tokens", type=int, default=512, help="of the text for the perplexity")
    run.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    run.add_argument("--made", type=Path, default=_MADE, help="folder of converted models")
    run.add_argument(
        "--output", type=Path, required=True, help="file of results, one JSON line each; appended to"
    )
    return parser


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print("clover: error:", error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("clover: error: interrupted", file=sys.stderr)
        sys.exit(130)
