"""Load the tokenizer of a GGUF file, so that it splits text as the model's own does.

A file names its rule for splitting text into pieces before they become tokens (`tokenizer.ggml.pre`). The rules here
are those of the models' own tokenizers. transformers knows only some of the names; for others it uses GPT-2's rule.
"""

import json
import warnings
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from clover.target.gguf.file import GgufFile

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_SLASH = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
_START = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TITLE, _CAPITALS = rf"{_START}{_UPPER}*{_LOWER}+", rf"{_START}{_UPPER}+{_LOWER}*"
_DIGIT, _CJK = r"\p{N}", "[一-龥\u0800-一가-\ud7ff]+"

_GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
_DIGITS = (_DIGIT, *_GPT2)
_LLAMA3 = (rf"{_ENDINGS}|{_START}\p{{L}}+|\p{{N}}{{1,3}}{_REST}",)
_QWEN2 = (rf"{_ENDINGS}|{_START}\p{{L}}+|\p{{N}}{_REST}",)
_TEKKEN = (rf"{_TITLE}|{_CAPITALS}|\p{{N}}{_REST_SLASH}",)
_GPT4O = (rf"{_TITLE}{_ENDINGS}?|{_CAPITALS}{_ENDINGS}?|\p{{N}}{{1,3}}{_REST_SLASH}",)
_FALCON = (r"[\p{P}$+<=>^~|`]+", *_GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_DEEPSEEK_LLM = (
    "[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CJK,
    _DIGIT,
)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT)

# Rules by llama.cpp's names. A rule is a list of expressions; each splits the pieces of the one before.
_RULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": _TEKKEN,
    "falcon": _FALCON,
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
}
_COMPOSED = ("qwen2", "command-r", "olmo")  # these rules compose characters (NFC) first
# With these a piece that is a token is taken whole, and a text begins with BOS unless the file says otherwise.
_WHOLE = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")
_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens that are found in a text before it is split
# The rules of architectures, for old files that do not name one.
_BEFORE_NAMES = {"gpt2": "gpt-2", "starcoder2": "starcoder", "falcon": "falcon"}
_BEFORE_NAMES |= dict.fromkeys(("qwen2", "qwen2moe", "qwen3", "qwen3moe"), "qwen2")

# Further chat templates that a file may have; transformers knows these names.
_TEMPLATES = ("tool_use", "rag")


def load_tokenizer(file: GgufFile) -> PreTrainedTokenizerBase:
    """Return the tokenizer that a file describes; UserError if its rule for splitting text is not known."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(file.path.parent, gguf_file=file.path.name)
    named = {name: file.fields.get(f"tokenizer.chat_template.{name}") for name in _TEMPLATES}
    if tokenizer.chat_template and any(named.values()):
        given = {name: text for name, text in named.items() if text}
        tokenizer.chat_template = {"default": tokenizer.chat_template, **given}
    if file.fields.get("tokenizer.ggml.model") == "gpt2":
        name = file.fields.get("tokenizer.ggml.pre") or _BEFORE_NAMES.get(file.architecture)
        if name is None:
            warnings.warn(
                f"{file.path} is an old file that does not name its rule for splitting text (tokenizer.ggml.pre); "
                "GPT-2's rule is used, so some tokens may differ from the model's own; convert the model again",
                stacklevel=2,
            )
        elif name not in _RULES:
            raise file.refusal(
                f"its rule for splitting text, {name}, is not supported ({', '.join(_RULES)} are)"
            )
        _keep_marks(tokenizer, file)
        backend: Any = tokenizer.backend_tokenizer
        backend.pre_tokenizer = _splitter(_RULES[name or "gpt-2"])
        if name in _WHOLE:
            backend.model.ignore_merges = True
            tokenizer.add_bos_token = file.fields.get("tokenizer.ggml.add_bos_token", True)
        if name in _COMPOSED:
            backend.normalizer = normalizers.NFC()
    elif file.fields.get("tokenizer.ggml.add_space_prefix") is False:
        _leave_start(tokenizer.backend_tokenizer)
    return tokenizer


def _splitter(expressions: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(one), behavior="isolated") for one in expressions]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _keep_marks(tokenizer: Any, file: GgufFile) -> None:
    """Let marks such as `<｜User｜>` or two spaces be found in a text.

    transformers spells what is not in the alphabet of bytes by its bytes; then it does not find it, or gives it another
    number.
    """
    tokens, kinds = (file.fields.get(f"tokenizer.ggml.{name}") or () for name in ("tokens", "token_type"))
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    foreign = [number for number, token in enumerate(tokens) if not set(token) <= alphabet]
    marks = [one for one in foreign if one < len(kinds) and kinds[one] in (_CONTROL, _USER_DEFINED)]
    if not marks:
        return
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    spelled = {number: token for token, number in state["model"]["vocab"].items()}
    names = {number: spelled[number] for number in foreign if number in spelled}
    names |= {number: tokens[number] for number in marks}
    state["model"]["vocab"] = {names.get(number, token): number for number, token in enumerate(tokens)}
    found = {tokens[number]: {"id": number, "special": kinds[number] == _CONTROL} for number in marks}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    state["added_tokens"] = sorted(
        [one for one in state["added_tokens"] if one["content"] not in found]
        + [{"content": token} | own | plain for token, own in found.items()],
        key=lambda one: one["id"],
    )
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.update_post_processor()  # with the number that BOS has now


def _leave_start(backend: Any) -> None:
    """Keep a SentencePiece tokenizer from adding a space before a text, and from removing one."""
    if backend.pre_tokenizer is None:  # Phi-3's, whose normalizer puts it there
        backend.normalizer = normalizers.Replace(" ", "▁")
    elif isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace):
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    else:
        return
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
