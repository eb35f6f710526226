"""Continue a prompt, and see what drafting was worth.

python examples/generate.py ['def area(self):']
"""

import sys

import clover

prompt = sys.argv[1] if len(sys.argv) > 1 else "def area(self):"
model = clover.load()  # the embedded pair; your own: clover.load("my-model", "my-draft")
result = model.generate(prompt, max_new_tokens=48, temperature=0.7, seed=1)

print(prompt + result.text)
print(f"{len(result.tokens) / result.seconds:.0f} tokens/s, τ {result.acceptance.tau:.2f}")
print("accepted at each depth:", [f"{share:.0%}" for share in result.acceptance.acceptance_per_depth])
