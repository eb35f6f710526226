"""Continue many prompts, four at a time: one that has finished makes room for the next.

python examples/batch.py [PROMPT ...]
"""

import sys

import clover

prompts = sys.argv[1:] or [f"def {name}(self):" for name in ("area", "close", "read", "sort", "write")]
model = clover.load()
results = model.generate(prompts, batch_size=4, max_new_tokens=24, stop=["\n\n"])
for prompt, result in zip(prompts, results, strict=True):
    print(f"{prompt}{result.text}\n--- {result.finish_reason}, τ {result.acceptance.tau:.2f}")
