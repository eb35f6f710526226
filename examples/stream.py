"""Show a text while it is written.

python examples/stream.py ['def area(self):']
"""

import sys

import clover

prompt = sys.argv[1] if len(sys.argv) > 1 else "def area(self):"
print(prompt, end="", flush=True)
for piece in clover.load().stream(prompt, max_new_tokens=48):
    print(piece, end="", flush=True)
print()
