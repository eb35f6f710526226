"""Text of a growing token sequence, piece by piece, and stop strings."""

from typing import Any

HALF_CHARACTER = "\ufffd"
_CONTEXT = 4
_MOST_HELD = 16  # The most tokens without text that are kept; a window that grew with them would become slow.


class Detokenizer:
    """Turns tokens into text as they come; what it has returned never changes afterwards.

    Only a window of the last tokens is decoded, for each token by itself: the text of broken UTF-8 depends on where
    windows begin and end, and must not depend on how many tokens a step gave. Text is held back while it may still
    change: half a character, or the beginning of a stop string. `tokenizers`' DecodeStream does not serve: it keeps
    half a character at the end for itself, fails on some texts of byte tokens, and knows fast tokenizers alone.

    Args:
        tokenizer: a transformers tokenizer, or None (then all text is "").
        stop: strings before which the text ends.
        prompt: the tokens before the text; some tokenizers write a token's first space only after other tokens.
        hidden: special tokens that have no text; None for all of them.
    """

    def __init__(
        self,
        tokenizer: Any | None,
        stop: tuple[str, ...] = (),
        prompt: tuple[int, ...] = (),
        hidden: frozenset[int] | None = None,
    ):
        self.tokenizer = tokenizer
        self._hidden = hidden
        self.stop = stop
        self.text = ""  # all text decoded so far, up to the stop string if there was one
        self.piece = ""  # The text of the last token, before a stop string was cut off.
        self.stopped = False
        self._tokens = list(prompt[-_CONTEXT:])
        self._window = 0  # The window that is decoded begins here.
        self._known = len(self._tokens)  # Their text is known: the prompt's, or in self.text.
        self._released = 0  # The number of characters that were returned.

    def push(self, token: int) -> str:
        """Append a token; return the text that became certain."""
        self.piece = ""
        if self.tokenizer is None:
            return ""
        self._tokens.append(token)
        before = self._decode(self._window, self._known)
        after = self._decode(self._window, len(self._tokens))
        if len(after) > len(before) and not after.endswith(HALF_CHARACTER):
            self._append(after[len(before) :])
            self._window, self._known = self._known, len(self._tokens)
        elif len(self._tokens) - self._known > _MOST_HELD:
            self._hold_fewer(before, after)
        return self._release(len(self.text) if self.stopped else len(self.text) - self._held_back())

    def finish(self) -> str:
        """Return the rest of the text, once no more tokens come."""
        if self.tokenizer is not None and not self.stopped:
            before = self._decode(self._window, self._known)
            self._append(self._decode(self._window, len(self._tokens))[len(before) :])
        return self._release(len(self.text))

    def _hold_fewer(self, before: str, after: str) -> None:
        """Let go of all but the last tokens, which may be the bytes of half a character: none has more."""
        certain = len(self._tokens) - _CONTEXT
        text = self._decode(self._window, certain)
        if after == before:  # These tokens have no text.
            del self._tokens[self._known : certain]
        elif after.startswith(text):  # These bytes are no text; otherwise a character lies across the border.
            self._append(text[len(before) :])
            self._window, self._known = self._known, certain

    def _decode(self, start: int, end: int) -> str:
        assert self.tokenizer is not None
        tokens = self._tokens[start:end]
        if self._hidden is not None:
            tokens = [token for token in tokens if token not in self._hidden]
        # "Clean-up" takes spaces away across tokens, also from text that was returned before.
        return self.tokenizer.decode(
            tokens, skip_special_tokens=self._hidden is None, clean_up_tokenization_spaces=False
        )

    def _append(self, piece: str) -> None:
        self.text += piece
        self.piece += piece
        found = [at for at in (self.text.find(s, self._released) for s in self.stop) if at >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True

    def _held_back(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        longest = max((len(s) for s in self.stop), default=1) - 1
        for size in range(min(longest, len(self.text) - self._released), 0, -1):
            if any(s.startswith(self.text[-size:]) for s in self.stop):
                return size
        return 0

    def _release(self, end: int) -> str:
        piece = self.text[self._released : end]
        self._released = max(self._released, end)
        return piece


def with_special_tokens(tokenizer: Any, stop: tuple[str, ...]) -> tuple[str, ...]:
    """Return the stop strings that name a special token, by a transformers tokenizer; texts do not contain these."""
    added = getattr(tokenizer, "added_tokens_decoder", {}) if stop else {}
    names = [str(token) for token in added.values() if token.special]
    return tuple(one for one in stop if any(name in one for name in names))


def token_name(tokenizer: Any, token: int) -> str:
    """Return the text of one token amid others, by a transformers tokenizer; half a character is "\ufffd".

    Some tokenizers (Llama-2's, for one) leave out the space before a token that stands first.
    """
    alone = tokenizer.decode([token])
    return tokenizer.decode([token, token])[len(alone) :]
