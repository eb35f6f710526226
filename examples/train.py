"""Train a draft and use it, as `clover train` does; a minute shows that it works, an hour gives a good one.

python examples/train.py TEXTS.jsonl my-draft [MINUTES] [TARGET]
"""

import sys

import clover
from clover.assets import TARGET
from clover.data import FileTexts
from clover.drafts import RecallDraft
from clover.target import TargetModel
from clover.train import TrainConfig, train

texts, output, minutes, name, *_ = [*sys.argv[1:], *["1", str(TARGET)][len(sys.argv) - 3 :]]
target = TargetModel.load(name)
assert target.tokenizer is not None
data = FileTexts([texts], target.tokenizer, target.eos_token_ids)
draft = RecallDraft.from_target(target)
config = TrainConfig(output=output, max_minutes=float(minutes), loss=draft.default_loss)
train(config, target, data, draft)

model = clover.load(target, output)
print(model.generate("def area(self):", max_new_tokens=32).text)
