"""Decode with vLLM and a draft of ours; needs an environment with vLLM and this package (docs/vllm.md).

clover export --to vllm my-draft my-draft-vllm
python examples/vllm_offline.py my-draft-vllm [TARGET]
"""

import sys

from vllm import LLM, SamplingParams

from clover.assets import TARGET

draft, target, *_ = [*sys.argv[1:], str(TARGET)]
llm = LLM(
    target,
    dtype="float32",  # on a CPU; leave it out on a GPU
    max_model_len=512,
    speculative_config={"method": "eagle", "model": draft, "num_speculative_tokens": 4},
)
for output in llm.generate(["def area(self):", "class Shape:"], SamplingParams(temperature=0, max_tokens=32)):
    print(output.prompt + output.outputs[0].text)
