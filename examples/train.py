"""Train a draft and use it, as `clover train` does; a minute shows that it works, an hour gives a good one.

python examples/train.py TEXTS.jsonl my-draft [MINUTES] [TARGET]
"""

import sys

import clover
from clover.assets import TARGET
from clover.data import FileTexts
from clover.drafts import RecallDraft
from clover.target import TargetModel
from clover.train import TrainConfig, prepare, train

texts, output, *more = sys.argv[1:]
target = TargetModel.load(more[1] if len(more) > 1 else TARGET, dtype="fastest")
assert target.tokenizer is not None
data = FileTexts([texts], target.tokenizer, target.eos_token_ids)
config = TrainConfig(
    output=output, max_minutes=float(more[0] if more else 1), loss=RecallDraft.training_defaults.loss
)
config, draft = prepare(config, target)
train(config, target, data, draft)

model = clover.load(target, output)
print(model.generate("def area(self):", max_new_tokens=32).text)
