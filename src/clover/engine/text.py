"""Decode a growing token sequence piece by piece, and find stop strings."""

from typing import Any

HALF_CHARACTER = "\ufffd"
_CONTEXT = 4
_MOST_HELD = 16  # the most tokens without text in the window, so that decoding it stays fast


class Detokenizer:
    """Turns tokens into text as they arrive. Text that it has returned never changes.

    A window of the last tokens is decoded after every token: the text of broken UTF-8 depends on the ends of the
    window, and must not depend on the number of tokens per step. Text is held back while it may still change: half a
    character, or the beginning of a stop string. `tokenizers`' DecodeStream is not enough: it drops half a character at
    the end, fails on some texts of byte tokens, and supports only fast tokenizers.

    Args:
        tokenizer: a transformers tokenizer, or None (then all text is "").
        stop: the text ends before any of these strings.
        prompt: the tokens before the text; some tokenizers write a token's first space only after other tokens.
        hidden: special tokens that are left out of the text; None for all of them.
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
        self.piece = ""  # the text of the last token, with any stop string
        self.stopped = False
        self._tokens = list(prompt[-_CONTEXT:])
        self._window = 0  # the window's first token
        self._known = len(self._tokens)  # tokens whose text is known: the prompt's, or those in self.text
        self._released = 0  # characters that were returned

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
        """Return the rest of the text, after the last token."""
        if self.tokenizer is not None and not self.stopped:
            before = self._decode(self._window, self._known)
            self._append(self._decode(self._window, len(self._tokens))[len(before) :])
        return self._release(len(self.text))

    def _hold_fewer(self, before: str, after: str) -> None:
        """Drop all but the last tokens without text; only these can be the bytes of half a character."""
        certain = len(self._tokens) - _CONTEXT
        text = self._decode(self._window, certain)
        if after == before:  # These tokens have no text.
            del self._tokens[self._known : certain]
        elif after.startswith(text):  # These bytes are broken UTF-8; otherwise a character spans the border.
            self._append(text[len(before) :])
            self._window, self._known = self._known, certain

    def _decode(self, start: int, end: int) -> str:
        assert self.tokenizer is not None
        tokens = self._tokens[start:end]
        if self._hidden is not None:
            tokens = [token for token in tokens if token not in self._hidden]
        # "Clean-up" removes spaces between tokens, even from text that was already returned.
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
        """Return the length of the longest suffix of the text that is a prefix of a stop string."""
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
    """Return the stop strings that contain a special token of a transformers tokenizer; texts omit those tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {}) if stop else {}
    names = [str(token) for token in added.values() if token.special]
    return tuple(one for one in stop if any(name in one for name in names))


def token_name(tokenizer: Any, token: int) -> str:
    """Return the text of one token within a text, by a transformers tokenizer; half a character is "\ufffd".

    The token is decoded after another one, because some tokenizers (such as Llama-2's) omit the space before the first.
    """
    alone = tokenizer.decode([token])
    return tokenizer.decode([token, token])[len(alone) :]
