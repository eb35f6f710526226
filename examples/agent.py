"""Let a model call a function until it knows the answer, with OpenAI's client and a running `clover serve`.

clover serve --target Qwen/Qwen2.5-1.5B-Instruct --tree lookup &
python examples/agent.py [http://127.0.0.1:8000] ["How much is 12.5 times 64?"]
"""

import json
import sys
from typing import Any

from openai import OpenAI

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
question = sys.argv[2] if len(sys.argv) > 2 else "How much is 12.5 times 64?"
numbers = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
function = {"name": "multiply", "description": "Multiply two numbers.", "parameters": numbers}
tools: Any = [{"type": "function", "function": function}]

client = OpenAI(base_url=f"{address}/v1", api_key="none")
model = client.models.list().data[0].id
messages: list[Any] = [{"role": "user", "content": question}]
for _ in range(5):
    answer = client.chat.completions.create(model=model, messages=messages, tools=tools, temperature=0)
    said = answer.choices[0].message
    messages.append(said.model_dump(exclude_none=True))
    for call in said.tool_calls or []:
        given = json.loads(call.function.arguments)
        product = given["a"] * given["b"]
        print(f"multiply({given['a']}, {given['b']}) = {product}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(product)})
    if not said.tool_calls:
        print(said.content)
        break
