"""How long chunks are: against every length there could be."""

from __future__ import annotations

from random import Random

from clover.engine.prefill import padded_size


def test_a_chunk_is_as_long_as_its_padding_allows() -> None:
    rng = Random(5)
    for _ in range(300):
        left = [rng.choice((0, rng.randrange(1, 40), 25)) for _ in range(rng.randrange(1, 9))]
        left[0] = left[0] or 7
        most, padding = rng.randrange(1, 50), rng.randrange(60)
        size = padded_size(left, most, padding)
        running = [count for count in left if count]

        def given_up(size: int, counts: list[int] = running) -> int:
            return sum(max(size - count, 0) for count in counts)

        assert 1 <= size <= min(most, max(left)) and given_up(size) <= padding
        ends = {most, *running}
        assert size in ends, "some row ends with it, or it is as long as it may be"
        assert not [end for end in ends if size < end <= min(most, max(left)) and given_up(end) <= padding]
