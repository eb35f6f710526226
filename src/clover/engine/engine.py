"""The decoding engine: requests in, a stream of step events out."""

from collections.abc import Generator, Sequence
from dataclasses import replace

from clover.drafting import PLAIN, Drafter, FixedPolicy, Policy, Tree, parse_tree
from clover.drafting.tuning import Tuning
from clover.drafts import DraftModel
from clover.engine.compiled import CompiledRunner
from clover.engine.limits import EngineLimits
from clover.engine.prefixes import PrefixStore
from clover.engine.requests import Request, StepEvent
from clover.engine.runner import Runner
from clover.engine.scheduler import Scheduler
from clover.engine.sequences import check_request
from clover.engine.timing import PhaseClock
from clover.errors import UserError, names_replacements
from clover.target import Target


class Engine:
    """Decodes batches with a target and an optional draft; UserError if the tree is deeper than the draft allows.

    Args:
        draft: proposes tokens. Decoding is plain if it is None or not `usable`.
        tree: the tree or its name (`parse_tree`); by default the draft's own tree, or plain decoding without a draft.
        tuning: measurements of the draft on this machine, for the tree "auto".
        policy: chooses the drafter of each step, instead of `tree`.
        compile: True compiles the steps in fixed shapes with `torch.compile`; a string names another backend
            (docs/development/compile.md).
        limits: the sizes of chunks and caches.

    Attributes:
        hidden_state: kind of the hidden states that the draft reads.
        tree: the tree, whose policy chooses the drafter of each step.
        runner: runs the steps; a `CompiledRunner` with `compile`.
    """

    @names_replacements
    def __init__(
        self,
        target: Target,
        draft: DraftModel | None = None,
        tree: Tree | str | None = None,
        policy: Policy | None = None,
        compile: bool | str = False,
        limits: EngineLimits = EngineLimits(),  # noqa: B008  # frozen
        tuning: Tuning | None = None,
    ):
        if draft is not None and not draft.usable:
            draft, tree, policy = None, PLAIN, None
        tree = parse_tree(tree or ("plain" if draft is None else "own"))
        if tree.needs_draft and draft is None and policy is None:
            raise UserError(f"the tree {tree.name} needs a draft; give one, or the tree lookup")
        if not tree.needs_draft:
            draft = None
        self.target, self.draft, self.tree, self.limits = target, draft, tree, limits
        self.policy: Policy = policy or tree.policy(draft, tuning, bool(compile))
        self.hidden_state = "post_norm" if draft is None else draft.config.hidden_state
        if draft is not None:
            # Under rejection sampling the text depends on the draft's probabilities, so the draft must not be rounded.
            self.draft = draft.for_inference(full_precision=bool(compile) or not tree.exact)
        self.runner = Runner(target, self.hidden_state)
        if compile:
            backend = compile if isinstance(compile, str) else "inductor"
            self.runner = CompiledRunner(
                target, self.hidden_state, self.draft, self.policy.max_depth, backend
            )

    @property
    def drafter(self) -> Drafter | None:
        """Return the drafter of every step; None if a policy chooses step by step."""
        return self.policy.drafter if isinstance(self.policy, FixedPolicy) else None

    def open(
        self,
        max_sequences: int,
        clock: PhaseClock | None = None,
        store: PrefixStore | None = None,
    ) -> Scheduler:
        """Open a batch that requests can join at any time; at most `max_sequences` run at once. See also `run`."""
        if max_sequences < 1:
            raise UserError(f"max_sequences is {max_sequences}; it must be at least 1")
        clock = clock or PhaseClock()
        return Scheduler(self.runner, self.draft, self.policy, self.limits, max_sequences, clock, store)

    @names_replacements
    def run(
        self,
        requests: Sequence[Request],
        clock: PhaseClock | None = None,
        store: PrefixStore | None = None,
        max_sequences: int | None = None,
    ) -> Generator[StepEvent, None, None]:
        """Decode `requests`; yield one event per request and step.

        Raises UserError as `check` does, before anything is generated. If a text ends with an error, UserError is
        raised after all others have ended, and says how many more did; the earlier events of these texts are yielded,
        but no `generation`.

        Args:
            store: keeps the texts of requests with `keep`, and saves later requests their prefill. Texts that still run
                when the consumer stops early are kept, too.
            max_sequences: requests that run at once; the others wait for a free place. All if None.
        """
        if not requests:
            return
        scheduler = self.open(min(max_sequences or len(requests), len(requests)), clock, store)
        for request in requests:
            scheduler.add(request)
        broken: dict[int, str] = {}
        try:
            while not scheduler.idle:
                for event in scheduler.step():
                    if event.generation is not None and event.generation.error:
                        broken[event.index] = event.generation.error
                        event = replace(event, generation=None)
                    if event.tokens or event.text:
                        yield event
        finally:
            scheduler.close()
        if broken:
            (index, error), *others = broken.items()
            more = f" (and {len(others)} more of {len(requests)})" if others else ""
            raise UserError(error if len(requests) == 1 else f"prompt {index + 1}{more}: {error}")

    def check(self, request: Request) -> None:
        """Raise UserError if the prompt leaves no room for a new token, or the target lacks what the request needs."""
        check_request(request, self.target)
