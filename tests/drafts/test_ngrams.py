"""Where a text's end stood before."""

from random import Random
from time import process_time

from clover.drafts.ngrams import RepeatingText


def test_what_followed_the_last_place_like_the_end_is_proposed() -> None:
    rng = Random(0)
    for vocabulary in (2, 3, 8):
        tokens, text = list[int](), RepeatingText([])
        for _ in range(200):
            following = text.following(1)
            tokens.append(rng.randrange(vocabulary))
            text.extend(tokens[-1:])
            if following != tokens[-1:]:  # else the place is followed on, though there may be a later one
                ends = [at for at in range(3, len(tokens)) if tokens[at - 3 : at] == tokens[-3:]]
                assert text.following(1) == [tokens[at] for at in ends[-1:]]


def test_a_token_costs_the_same_however_many_have_followed_such_an_end() -> None:
    started = process_time()
    RepeatingText(token for row in range(15_000) for token in (1, 2, 3, 10 + row))
    assert process_time() - started < 5.0
