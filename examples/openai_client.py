"""Ask a running `clover serve` with OpenAI's client, and see how its tokens came.

clover serve --port 8000 &
python examples/openai_client.py [http://127.0.0.1:8000]
"""

import sys

from openai import OpenAI

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{address}/v1", api_key="none")
model = client.models.list().data[0].id

for event in client.completions.create(model=model, prompt="def area(self):", max_tokens=32, stream=True):
    print(event.choices[0].text if event.choices else "", end="", flush=True)
answer = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "def close(self):"}], max_tokens=32, temperature=0
)
print("\n---\n" + (answer.choices[0].message.content or ""))
print((answer.model_extra or {}).get("speculative_decoding"))
