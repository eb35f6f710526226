"""Let any server with OpenAI's interface, such as vLLM on several GPUs, answer the prompts of a training.

vllm serve TARGET --tensor-parallel-size 4 &
python examples/answers.py http://127.0.0.1:8000 chats.jsonl answers.jsonl
clover train --target TARGET --data answers.jsonl --output my-draft
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI, OpenAIError

address, prompts, output = sys.argv[1:4]
client = OpenAI(base_url=f"{address}/v1", api_key="none")
model = client.models.list().data[0].id


def answered(number: int, line: str) -> str | None:
    """Return the record up to its first answer, which the server writes anew; None if it does not fit."""
    record, messages = json.loads(line), []
    for message in record["messages"]:
        if message["role"] == "assistant":
            break
        messages.append(message)
    try:  # half of the answers are greedy, half are sampled
        found = client.chat.completions.create(
            model=model, messages=messages, max_tokens=512, temperature=number % 2
        )
    except OpenAIError as error:
        print(f"line {number + 1} is left out: {error}", file=sys.stderr)
        return None
    messages.append({"role": "assistant", "content": found.choices[0].message.content})
    return json.dumps(record | {"messages": messages}, ensure_ascii=False) + "\n"


with open(prompts, encoding="utf-8") as lines, open(output, "w", encoding="utf-8") as written:
    for record in ThreadPoolExecutor(64).map(answered, *zip(*enumerate(lines), strict=True)):
        written.write(record or "")
