"""The Python front door: `clover.load(...)`, then `.generate`, `.stream` and `.chat`.

>>> import clover
>>> model = clover.load()                                        # doctest: +SKIP
>>> model.generate("def area(self):", max_new_tokens=32).text    # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch

from clover import assets
from clover.drafting import PLAIN_DRAFTER, FixedPolicy, LookupDrafter, Policy, make_drafter, make_policy
from clover.drafting.prompt_lookup import LOOKUP, LOOKUP_LENGTH
from clover.drafting.tuning import FILE_NAME, PLAIN, Tuning, read_tuning, target_fingerprint
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine, Generation, PrefixCache, Request
from clover.errors import UserError
from clover.sampling import SamplingParams
from clover.target import TargetModel
from clover.tree import Tree, parse_tree

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
METHODS = ("auto", "draft", "plain")
_SAMPLING = SamplingParams.__dataclass_fields__.keys()


def load(
    target: str | os.PathLike[str] | TargetModel | None = None,
    draft: str | os.PathLike[str] | None = None,
    *,
    method: str = "auto",
    tree: str | Tree | None = None,
    plain: bool = False,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
    compile: bool | str = False,
) -> Clover:
    """Load a target and its draft.

    Args:
        target: directory, hub name, or a loaded TargetModel; the embedded one when left out.
        draft: directory or hub name, or "lookup" (n-grams, no training); the embedded one when both are left out.
        method: "auto" chooses between trees, and none, while it runs, by what pays at the present batch size and text:
            between those that `clover tune` found best, or a few others. "draft" always grows the same tree, "plain"
            decodes without a draft. The text is the same.
        tree: "auto" or "plain", as method; "lookup" (prompt lookup, no draft needed); or always this one: "clover2" (25
            nodes), "medusa" (63 nodes), "chain:5", "chain:12:0.06" (ends where the draft is unsure), a JSON file with
            rank paths, "budget:4" (Clover-1's dynamic tree), "eagle2:60" (expand and re-rank) or "drawn:clover2"
            (children drawn from the draft); or an object of `clover.tree`. See `clover.tree.parse_tree`. When left out
            `method` decides; "draft" takes the draft's own tree.
        plain: short for method="plain".
        dtype: "float32", "bfloat16", …; float32 on a CPU and bfloat16 on a GPU when left out.
        device: "cpu", "cuda", …; a GPU when there is one.
        compile: let `torch.compile` have the decoding steps, on a GPU with CUDA graphs, or name another of its
            backends. The first steps then take a minute or more, on a CPU many.

    Raises:
        UserError: something cannot be loaded or does not fit together; says what.
    """
    kind, tree = _wanted(PLAIN if plain else method, tree)
    if draft is None and target is not None and kind not in (PLAIN, LOOKUP):
        raise UserError(
            "a target was given but no draft; give its draft, or ask for plain decoding (plain=True, --plain)"
        )
    if not isinstance(target, TargetModel):
        name = os.fspath(target or assets.TARGET)
        target = TargetModel.load(name, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    if kind in (PLAIN, LOOKUP):
        drafter = PLAIN_DRAFTER if kind == PLAIN else LookupDrafter(LOOKUP_LENGTH)
        return Clover(Engine(target, policy=FixedPolicy(drafter), compile=compile))
    return Clover(_drafting_engine(target, assets.draft_place(draft), tree, kind == "draft", compile))


def _wanted(method: str, tree: str | Tree | None) -> tuple[str, Tree | None]:
    """What `load` is asked for: one of METHODS or "lookup", and the tree, if one is named."""
    if method not in METHODS:
        raise UserError(f"there is no method {method!r}; give {', '.join(METHODS)}")
    if isinstance(tree, str) and tree in (PLAIN, LOOKUP, "auto"):
        return (PLAIN if method == PLAIN else tree), None
    tree = parse_tree(tree) if isinstance(tree, str) else tree
    return (method, None) if method == PLAIN or tree is None else ("draft", tree)


def _drafting_engine(
    target: TargetModel,
    draft: str | os.PathLike[str],
    tree: Tree | None,
    fixed: bool,
    compile: bool | str,
) -> Engine:
    model = load_draft(draft, target)
    policy = policy_of(model, draft, tree, fixed=fixed or tree is not None, compiled=bool(compile))
    return Engine(target, model, policy=policy, compile=compile)


def policy_of(
    draft: DraftModel,
    place: str | os.PathLike[str] | None,
    tree: Tree | None,
    *,
    fixed: bool,
    compiled: bool = False,
) -> Policy:
    """What decides before each step: nothing but `tree`, or what pays at present by what was tuned.

    Args:
        place: the draft's directory, where its tuning is, if that matters; None if it has none.
        tree: the draft's own if None.
        fixed: grow the tree at every step.
        compiled: leave out what does not suit compiled steps.

    Raises:
        UserError: the tuning is damaged, or a tree is deeper than the draft goes.
    """
    if fixed:
        return FixedPolicy(make_drafter(draft, tree))
    return make_policy(draft, None if place is None else find_tuning(place, draft.target), compiled)


def find_tuning(draft: str | os.PathLike[str], target: TargetModel) -> Tuning | None:
    """What `clover tune` saved in a draft's directory for this target, its device and dtype; None if nothing.

    Raises:
        UserError: the file there is damaged.
    """
    file = Path(draft) / FILE_NAME
    if not file.is_file():
        return None
    dtype = str(target.dtype).removeprefix("torch.")
    return read_tuning(file).find(target.device.type, dtype, target_fingerprint(target.config))


class Clover:
    """A target and its draft, ready to decode."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.target = engine.target

    @overload
    def generate(  # pyright: ignore[reportOverlappingOverload]  # a string is a sequence of strings, too
        self, prompts: Prompt, **options: Any
    ) -> Generation: ...
    @overload
    def generate(self, prompts: Sequence[Prompt], **options: Any) -> list[Generation]: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 256,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        batch_size: int = 8,
        **sampling: Any,
    ) -> Generation | list[Generation]:
        """Continue one prompt, or a list of prompts.

        Args:
            prompts: a string, a list of token ids or a conversation (a list of messages); or a list of these.
            stop: strings before which a text ends.
            ignore_eos: go on after end-of-sequence tokens.
            batch_size: prompts that run together; one that has finished makes room for the next.
            sampling: fields of SamplingParams: temperature, top_k, top_p, min_p, repetition_penalty, logit_bias,
                banned_tokens, seed. Prompt number i is sampled with `seed + i`.

        Returns:
            one Generation for one prompt, else a list in the order of the prompts.
        """
        single = _is_one(prompts)
        listed: Sequence[Any] = [prompts] if single else prompts
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1")
        common = {"max_new_tokens": max_new_tokens, "stop": tuple(stop), "ignore_eos": ignore_eos}
        requests = [self.request(p, sequence=i, **common, **sampling) for i, p in enumerate(listed)]
        finished = {
            e.index: e.generation for e in self.engine.run(requests, max_rows=batch_size) if e.generation
        }
        results = [finished[i] for i in range(len(requests))]
        return results[0] if single else results

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """Continue one prompt, yielding text as it becomes certain. Takes the options of `generate`."""
        for event in self.engine.run([self.request(prompt, **options)]):
            if event.text:
                yield event.text

    def chat(self, **options: Any) -> Conversation:
        """A conversation that keeps its cache between turns. Takes the options of `generate`."""
        return Conversation(self, options)

    def request(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        sequence: int = 0,
        **sampling: Any,
    ) -> Request:
        """Make an engine request of a prompt; `sequence` is added to the seed."""
        unknown = sorted(set(sampling) - set(_SAMPLING))
        if unknown:
            raise UserError(f"unknown option {unknown[0]!r}; known are {', '.join(sorted(_SAMPLING))}")
        sampling["seed"] = sampling.get("seed", 0) + sequence
        params = SamplingParams(**sampling)
        return Request(
            tuple(self.encode(prompt)), max_new_tokens, params, tuple(stop), () if ignore_eos else None
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: a string, token ids (returned as they are), or a list of messages."""
        if not isinstance(prompt, str) and all(isinstance(token, int) for token in prompt):
            return list(prompt)  # type: ignore[arg-type]
        if not isinstance(prompt, str) and not all(isinstance(message, Mapping) for message in prompt):
            raise UserError("a prompt is a string, a list of token ids or a list of messages; this is none")
        tokenizer: Any = self.target.tokenizer
        if tokenizer is None:
            raise UserError("the target has no tokenizer; give token ids as prompts")
        if isinstance(prompt, str):
            return list(tokenizer(prompt)["input_ids"])
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "the target's tokenizer has no chat template; give plain text instead of messages"
            )
        return list(
            tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=False)
        )


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int | Mapping))


class Conversation:
    """Turns of one chat; what earlier turns left in the cache is not run again."""

    def __init__(self, model: Clover, options: dict[str, Any]):
        self.model, self.options = model, options
        self.messages: list[dict[str, str]] = []
        self.last: Generation | None = None
        self._prefix = PrefixCache()

    def say(self, text: str) -> Iterator[str]:
        """Add a user message and yield the answer as it becomes certain.

        When the consumer stops early, what it was given is kept as the answer; a question that cannot be answered
        (too long for the context, say) is not kept.
        """
        question = {"role": "user", "content": text}
        request = self.model.request([*self.messages, question], **self.options)
        answer: list[str] = []
        try:
            for event in self.model.engine.run([request], prefix=self._prefix):
                answer.append(event.text)
                if event.generation is not None:
                    self.last = event.generation
                yield event.text
        finally:
            if answer:
                self.messages += [question, {"role": "assistant", "content": "".join(answer)}]
