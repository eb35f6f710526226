"""The Python interface: `clover.load(...)`, then `.generate`, `.stream` and `.chat`.

>>> import clover
>>> model = clover.load()                                        # doctest: +SKIP
>>> model.generate("def area(self):", max_new_tokens=32).text    # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch

from clover import assets, packaged
from clover.chat import ChatFormat, Delta, ReplyParser, find_format, find_tool_format, warn_of_marks
from clover.drafting import AutoTree, PlainTree, Tree, parse_tree
from clover.drafting.tuning import FILE_NAME, Tuning, read_tuning
from clover.drafts import DraftModel, load_draft
from clover.engine import Engine, Generation, PrefixStore, Request, StepEvent
from clover.engine.compiled.runner import check_compiled
from clover.errors import GenerationError, UserError, names_replacements
from clover.grammar import Grammars, GrammarSpec
from clover.sampling import SamplingParams
from clover.target import TargetModel, TargetWeights
from clover.templates import encode_rendered, encode_text, render

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]


@names_replacements
def load(
    target: str | os.PathLike[str] | TargetWeights | None = None,
    draft: str | os.PathLike[str] | None = None,
    *,
    tree: str | Tree = "auto",
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
    compile: bool | str = False,
    weights: str | None = None,
    weight_cache: bool = True,
    exact: bool = False,
) -> Clover:
    """Load a target and its draft.

    Args:
        target: directory, hub name, or a loaded target; by default the embedded one.
        draft: directory, hub name, or name of a packaged draft; by default that of the embedded target, or of an
            installed package for this target. "plain" does not load it; other trees without a draft refuse it.
        tree: a name that `clover.drafting.parse_tree` reads, or an object of `clover.drafting`. "auto" chooses among
            trees and plain decoding while it runs; "plain" decodes without drafting, "lookup" copies from the text
            without a draft, "own" is the draft's own tree; "clover2", "chain:5", … are fixed. In float32 the text is
            the same for all.
        dtype: "float32", "bfloat16", …; by default float32 on a CPU and bfloat16 on a GPU. A loaded target keeps its
            dtype and device.
        device: "cpu", "cuda", …; by default a GPU if there is one.
        trust_remote_code: run model code from the hub.
        compile: compile the decoding steps with `torch.compile`, or with the named backend. The first steps then take
            a minute or more.
        weights: "int8" rounds weights and inputs of the target's linear layers, on a CPU; the dtype is then bfloat16.
        weight_cache: store converted weights in the user's cache, and map them at the next start.
        exact: make texts equal to the last bit for every way of decoding, on a CPU (docs/lossless.md).

    Raises UserError if a model cannot be loaded, or if the arguments contradict each other.
    """
    check_compiled(compile, weights, exact)
    tree, embedded, name = parse_tree(tree), target is None, ""
    if target is None or isinstance(target, (str, os.PathLike)):
        name = os.fspath(target or assets.TARGET)
        if tree.needs_draft and draft is None and not embedded:
            packaged.check_has_draft(name)  # before loading, which may take long
        target = TargetModel.load(name, dtype, device, trust_remote_code, weights, weight_cache, exact)
    elif exact or any(given is not None for given in (dtype, device, weights)):
        raise UserError("the target is loaded; leave dtype, device, weights and exact out")
    if tree.needs_draft:
        draft = packaged.draft_place(draft, None if embedded else target, name)
    elif draft is not None and not isinstance(tree, PlainTree):
        raise UserError(f"the tree {tree.name} needs no draft; leave the draft out, or name another tree")
    return Clover(make_engine(target, draft, tree, compile))


def make_engine(
    target: TargetWeights,
    draft: str | os.PathLike[str] | DraftModel | None,
    tree: Tree | str,
    compile: bool | str = False,
    place: str | os.PathLike[str] | None = None,
) -> Engine:
    """Make an engine. The draft is a directory, a hub name, or bound to the target; None for a tree without a draft.

    `place` is the source of a bound draft, which may have its tuning. Raises UserError if the draft cannot be loaded,
    its tuning is damaged, or the tree is deeper than the draft allows.
    """
    tree = parse_tree(tree)
    if not isinstance(draft, DraftModel):
        place = draft if tree.needs_draft else None
        draft = None if place is None else load_draft(place, target)
    tuning = find_tuning(place, target) if place is not None and isinstance(tree, AutoTree) else None
    return Engine(target, draft, tree, compile=compile, tuning=tuning)


def find_tuning(draft: str | os.PathLike[str], target: TargetWeights) -> Tuning | None:
    """Return a draft's tuning for a target that runs in this way; None without one, UserError if it is damaged."""
    file = Path(draft) / FILE_NAME
    shipped = Path(draft) in assets.DRAFTS.values()
    return read_tuning(file).find(target, shipped) if file.is_file() else None


class Clover:
    """A target and its draft, ready to decode."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.target = engine.target
        self._formats: dict[bool, ChatFormat | None] = {}  # for answers with and without calls
        self._grammars: Grammars | None = None  # made for the first grammar

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
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        batch_size: int = 8,
        **sampling: Any,
    ) -> Generation | list[Generation]:
        """Continue one prompt, or a list of prompts.

        Args:
            prompts: a string, a list of token ids or a conversation (a list of messages); or a list of these.
            max_new_tokens: most tokens to generate per prompt.
            stop: one string or several; a text ends before the first of them.
            ignore_eos: continue after end-of-sequence tokens.
            batch_size: prompts that run together; the next one starts when another has finished.
            sampling: fields of `clover.SamplingParams`, which describes them: temperature (by default 0, greedy),
                top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, logit_bias, banned_tokens,
                process and seed. Prompt number i is sampled with `seed + i`. Also `grammar`, which each text follows
                (see `request`), and `chat_template_kwargs` (see `encode`).

        Returns:
            One Generation for one prompt; for a list of prompts a list in their order.

        Raises:
            UserError: before anything is generated, if a prompt or an option cannot be used.
            GenerationError: after all prompts have run, if a text ended early because its next token cannot be chosen;
                its `results` are all texts.
        """
        several = isinstance(prompts, Sequence) and not isinstance(prompts, str)
        single = not several or (len(prompts) > 0 and isinstance(prompts[0], int | Mapping))
        listed: Sequence[Any] = [prompts] if single else prompts
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UserError(f"batch_size is {batch_size!r}; it must be a whole number from 1 on")
        common = {"max_new_tokens": max_new_tokens, "stop": stop, "ignore_eos": ignore_eos}
        requests = [self.request(p, sequence=i, **common, **sampling) for i, p in enumerate(listed)]
        decoding, finished = self.engine.open(batch_size), dict[int, Generation]()
        for request in requests:
            decoding.add(request)
        while not decoding.idle:
            finished |= {event.index: event.generation for event in decoding.step() if event.generation}
        results = [self._parted(p, requests[i], finished[i]) for i, p in enumerate(listed)]
        broken = [(place, result.error) for place, result in enumerate(results, 1) if result.error]
        for place, error in broken:
            others = f" (and {len(broken) - 1} more of {len(results)})" if len(broken) > 1 else ""
            raise GenerationError(error if single else f"prompt {place}{others}: {error}", results)
        return results[0] if single else results

    def _parted(self, prompt: Prompt, request: Request, generation: Generation) -> Generation:
        """Return a generation with reasoning and words separated if it answers a conversation."""
        self._warn(prompt, request, generation)
        reply = self.new_reply(prompt, request.prompt)
        if reply is None:
            return generation
        deltas = (reply.feed(generation.text), reply.finish())
        content, reasoning = (
            "".join(parts) for parts in zip(*((d.content, d.reasoning) for d in deltas), strict=True)
        )
        return replace(generation, text=content, reasoning=reasoning)

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """Continue one prompt and yield its text as it becomes certain.

        Args:
            prompt: a string, a list of token ids or a list of messages; the reasoning of an answer is left out.
            options: those of `generate` except `batch_size`: max_new_tokens, stop, ignore_eos, sampling parameters.
        """
        request = self.request(prompt, **options)
        reply = self.new_reply(prompt, request.prompt)
        for event in self.engine.run([request]):
            text = _read(reply, event).content
            if event.generation is not None:
                self._warn(prompt, request, event.generation)
            if text:
                yield text

    def _warn(self, prompt: Prompt, request: Request, generation: Generation) -> None:
        """Warn of special tokens within the answer to a conversation."""
        if request.eos != () and _is_list_of(Mapping, prompt):
            warn_of_marks(self.target.tokenizer, request.hidden, generation.tokens)

    def chat(self, tools: Sequence[Mapping[str, Any]] = (), **options: Any) -> Conversation:
        """Begin a conversation, which keeps its cache between turns.

        Args:
            tools: functions that the model may call, in the form of OpenAI's interface.
            options: those of `generate` except `batch_size`: max_new_tokens, stop, ignore_eos, sampling parameters.
                Turn number i is sampled with `seed + i`.
        """
        return Conversation(self, tools, options)

    def request(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        sequence: int = 0,
        tools: Sequence[Mapping[str, Any]] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        grammar: GrammarSpec | None = None,
        **sampling: Any,
    ) -> Request:
        """Return an engine request for a prompt; options as for `generate`, `sequence` is added to the seed.

        `tools` and `chat_template_kwargs` belong to a conversation, see `encode`. `grammar` is a JSON schema, or a text
        that `clover.grammar.read_grammar` reads; the text follows it and ends with an end-of-sequence token.
        """
        params = SamplingParams(**sampling)
        params = replace(params, seed=params.seed + sequence)
        eos = () if ignore_eos else None
        ends = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)
        tokens = tuple(self.encode(prompt, tools, chat_template_kwargs))
        format = self.find_format(prompt, tools)
        if grammar is not None:
            if ignore_eos:
                raise UserError("ignore_eos cannot be combined with a grammar, whose texts end")
            check_grammar_fits(self.new_reply(prompt, tokens, tools), bool(tools))
            params = self.follow(grammar, params)
        return Request(
            tokens, max_new_tokens, params, ends, eos, hidden=None if format is None else format.hidden
        )

    def follow(self, grammar: GrammarSpec, params: SamplingParams) -> SamplingParams:
        """Return the parameters of a text that follows a grammar.

        Raises UserError if the grammar cannot be used, or not together with the other parameters.
        """
        if params.process is not None or params.banned_tokens:
            raise UserError(
                "a grammar cannot be combined with excluded tokens: they may be the only ones that it allows"
            )
        if self._grammars is None:
            self._grammars = Grammars(self.target)
        return replace(params, grammar=self._grammars.start(grammar))

    def find_format(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> ChatFormat | None:
        """Return the format of the answer to a prompt; None if the answer is only words.

        Raises UserError if the target cannot chat, or if tools are offered and it cannot call tools.
        """
        tokenizer: Any = self.target.tokenizer
        words = isinstance(prompt, str) or _is_list_of(int, prompt)
        if words or not getattr(tokenizer, "chat_template", None):
            return None
        if bool(tools) not in self._formats:
            ends = self.target.eos_token_ids
            self._formats[bool(tools)] = (find_tool_format if tools else find_format)(tokenizer, ends)
        return self._formats[bool(tools)]

    def new_reply(
        self, prompt: Prompt, tokens: Sequence[int], tools: Sequence[Mapping[str, Any]] = ()
    ) -> ReplyParser | None:
        """Return a parser for the answer to a prompt, encoded as `tokens`; None if the answer is only words."""
        format = self.find_format(prompt, tools)
        if format is None:
            return None
        return ReplyParser(format, self.target.require_tokenizer().decode(tokens), tools)

    def encode(
        self,
        prompt: Prompt,
        tools: Sequence[Mapping[str, Any]] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a prompt: a string, token ids (returned unchanged), or a list of messages.

        Messages have the form of OpenAI's interface: with calls, results of tools, `reasoning_content`. `tools` are
        offered to the model, in the form of that interface. `chat_template_kwargs` are further variables of the
        template, such as `enable_thinking`; a name that the template does not use is an error.
        """
        if chat_template_kwargs and not _is_list_of(Mapping, prompt):
            raise UserError("chat_template_kwargs belong to a list of messages")
        if _is_list_of(int, prompt):
            return list(prompt)  # type: ignore[arg-type]
        if not isinstance(prompt, str) and not _is_list_of(Mapping, prompt):
            raise UserError("the prompt must be a string, a list of token ids or a list of messages")
        tokenizer: Any = self.target.require_tokenizer()
        if isinstance(prompt, str):
            return encode_text(tokenizer, prompt)
        messages: Any = prompt
        return encode_rendered(
            tokenizer, render(tokenizer, messages, tools, answer=True, options=chat_template_kwargs)
        )


def check_grammar_fits(reply: ReplyParser | None, tools: bool) -> None:
    """Raise UserError if an answer, parsed by `reply`, cannot follow a grammar from its first token on."""
    if tools:
        raise UserError("a grammar cannot be combined with tools, because it would exclude their calls")
    if reply is not None and (reply.feed("{}") + reply.finish()).content != "{}":
        raise UserError("a grammar cannot be used with this model, because its answers begin with reasoning")


def _is_list_of(kind: type, values: Any) -> bool:
    """Return True for a sequence of such values; texts and bytes are none."""
    listed = isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray | memoryview)
    return listed and all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _read(reply: ReplyParser | None, event: StepEvent) -> Delta:
    """Return the parts that the text of an event adds to an answer."""
    if reply is None:
        return Delta(event.text)
    delta = reply.feed(event.text)
    return delta if event.generation is None else delta + reply.finish()


class Conversation:
    """Turns of one chat; a turn reuses the cache of earlier turns.

    Attributes:
        messages: all messages so far, in the form of OpenAI's interface.
        last: the last answer as the engine wrote it.
    """

    def __init__(self, model: Clover, tools: Sequence[Mapping[str, Any]], options: dict[str, Any]):
        self.model, self.tools, self.options = model, tools, options
        self.messages: list[Message] = []
        self.last: Generation | None = None
        self._asked: Request | None = None
        self._store = PrefixStore(most_texts=1, fewest=1)

    def say(self, text: str) -> Iterator[str]:
        """Add a user message and yield the words of the answer as they become certain.

        If the consumer stops early, the text so far is the answer; a question that cannot be answered is not kept.
        """
        for delta in self.reply({"role": "user", "content": text}):
            yield delta.content

    def reply(self, *said: Message) -> Iterator[Delta]:
        """Add messages (a question or the results of calls), and yield the parts of the answer, as `say` does."""
        messages, turn = [*self.messages, *said], sum(one["role"] == "assistant" for one in self.messages)
        request = self.model.request(messages, sequence=turn, tools=self.tools, **self.options)
        self._asked = request = replace(request, keep=True)
        reply = self.model.new_reply(messages, request.prompt, self.tools)
        answer: Delta | None = None
        try:
            for event in self.model.engine.run([request], store=self._store):
                delta = _read(reply, event)
                answer = delta if answer is None else answer + delta
                if event.generation is not None:
                    self.last = event.generation
                    self.model._warn(messages, request, event.generation)
                yield delta
        finally:
            if answer is not None:
                self.messages = [*messages, answer.message(len(messages))]

    def again_plainly(self) -> Generation:
        """Write the last answer again without drafting, to measure the time; the result is not kept."""
        assert self._asked is not None, "there is no answer"
        plain = replace(self._asked, plain=True, keep=False)
        *_, end = self.model.engine.run([plain], store=self._store)
        assert end.generation is not None
        return end.generation
