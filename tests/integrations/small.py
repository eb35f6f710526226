"""A small draft, prompts and tokenizer for the tests of `model.generate`."""

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerFast
from transformers.generation.streamers import BaseStreamer

from clover.drafts import Clover2Draft
from clover.target import TargetModel
from tests.families import VOCAB

PAD = 0
PROMPTS = ((5, 9, 33, 12), (7,), (21, 4, 4, 17, 30, 11, 8), (3, 40))


def draft_for(model: PreTrainedModel) -> Clover2Draft:
    torch.manual_seed(1)
    draft = Clover2Draft.from_target(TargetModel(model), num_augmenting_layers=1, num_heads=5)
    return draft.to(model.dtype).eval()


def batch(prompts=PROMPTS) -> dict[str, torch.Tensor]:
    width = max(map(len, prompts))
    ids = [[PAD] * (width - len(p)) + list(p) for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "pad_token_id": PAD}


def tokenizer() -> PreTrainedTokenizerFast:
    vocab = {chr(ord("A") + i): i for i in range(VOCAB)}
    letters = Tokenizer(models.BPE(vocab, merges=[]))
    letters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=letters)


class Columns(BaseStreamer):
    def __init__(self):
        self.put_values, self.ended = [], False

    def put(self, value):
        self.put_values.append(value.tolist())

    def end(self):
        self.ended = True


class Spread(LogitsProcessor):
    """Takes from tokens what the last two of the text say: a function of a text and its scores."""

    def __call__(self, input_ids, scores):
        return scores - (torch.arange(VOCAB) + input_ids[:, -1:]) % 7 * (1 + input_ids[:, -2:-1] % 2)
