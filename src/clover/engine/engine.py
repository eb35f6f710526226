"""The decoding engine: requests in, a stream of step events out."""

from collections.abc import Generator, Sequence

from clover.drafting import PLAIN_DRAFTER, Drafter, DrawnDrafter, FixedPolicy, Policy, make_drafter
from clover.drafts import DraftModel
from clover.engine.batch import PrefixCache
from clover.engine.captured import CapturedSteps
from clover.engine.decoding import Decoding
from clover.engine.prefixes import PrefixStore
from clover.engine.requests import Request, StepEvent
from clover.engine.timing import PhaseClock
from clover.errors import UserError
from clover.target import TargetModel
from clover.tree import Tree


class Engine:
    """Decodes batches with a target and, if there is one, a draft; UserError if the tree is deeper than the draft goes.

    Args:
        draft: proposes tokens; None, or one that is not `usable`, for plain decoding.
        tree: what the draft grows, a static tree or a rule; when left out the tree that its configuration names.
        prefill_chunk: prompt tokens that are run at once per sequence, at most.
        policy: decides before each step what drafts, in the place of `tree`.
        compile: let `torch.compile`, or another of its backends, have the steps, in fixed shapes
            (docs/development/compile.md).

    Attributes:
        hidden_state: kind of the hidden states that the draft reads.
        captured: the compiled parts of steps; None without compilation.
    """

    def __init__(
        self,
        target: TargetModel,
        draft: DraftModel | None = None,
        tree: Tree | None = None,
        prefill_chunk: int = 512,
        policy: Policy | None = None,
        compile: bool | str = False,
    ):
        if draft is not None and not draft.usable:
            draft, policy = None, FixedPolicy(PLAIN_DRAFTER)
        self.target, self.draft = target, draft
        self.policy: Policy = policy or FixedPolicy(
            PLAIN_DRAFTER if draft is None else make_drafter(draft, tree)
        )
        self.hidden_state = "post_norm" if draft is None else draft.config.hidden_state
        self.prefill_chunk = prefill_chunk
        if draft is not None:
            # The text of drawn trees depends on the draft's probabilities, and is to be the same in every batch.
            draft = draft.for_inference(exact=bool(compile) or isinstance(self.drafter, DrawnDrafter))
            self.draft = draft
        self.captured = None
        if compile:
            backend = compile if isinstance(compile, str) else "inductor"
            self.captured = CapturedSteps(
                target, draft, self.hidden_state, self.policy.max_depth, self.policy.max_nodes, backend
            )

    @property
    def drafter(self) -> Drafter | None:
        """What always drafts; None where a policy decides."""
        return self.policy.drafter if isinstance(self.policy, FixedPolicy) else None

    def open(
        self,
        max_sequences: int,
        clock: PhaseClock | None = None,
        prefix: PrefixCache | None = None,
        store: PrefixStore | None = None,
    ) -> Decoding:
        """Open a batch that requests can join at any time, of which so many run at once; for the rest see `run`.

        `store` keeps the texts of requests that say so, and spares others their prefill.
        """
        if max_sequences < 1:
            raise UserError(f"max_sequences is {max_sequences}; it must be at least 1")
        return Decoding(self, max_sequences, clock or PhaseClock(), prefix, store)

    def run(
        self,
        requests: Sequence[Request],
        clock: PhaseClock | None = None,
        prefix: PrefixCache | None = None,
        max_sequences: int | None = None,
    ) -> Generator[StepEvent, None, None]:
        """Decode `requests`; yields each request's share of every step. UserError as `check`, before anything is
        generated.

        Args:
            prefix: a single request's earlier turns, brought up to date at the end, also when the consumer stops early.
            max_sequences: requests that run at once; the others take the places of those that finish. All if None.
        """
        if not requests:
            return
        assert prefix is None or len(requests) == 1, "a prefix belongs to one request"
        decoding = self.open(min(max_sequences or len(requests), len(requests)), clock, prefix)
        for request in requests:
            decoding.add(request)
        try:
            while not decoding.idle:
                yield from decoding.step()
        finally:
            decoding.close()

    def check(self, request: Request) -> None:
        """UserError if the prompt leaves no room for a new token, or the request asks for what the target lacks."""
        target, length, most = self.target, len(request.prompt), self.target.longest_run
        if length >= most:
            raise UserError(
                f"the prompt has {length} tokens but the target's {target.run_limit} is {most}; shorten it"
            )
        if not all(0 <= token < target.vocab_size for token in request.prompt):
            raise UserError(f"the prompt holds a token outside the vocabulary of {target.vocab_size}")
        if request.stop:
            target.require_tokenizer()
        request.params.check_vocabulary(target.vocab_size)
