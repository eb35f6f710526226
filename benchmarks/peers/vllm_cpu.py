"""vLLM on a CPU: plain, or with a draft of ours that `clover export` has written."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.peers.peer import Peer, Settings, perplexity_of, serve

_DRAFTED = 2  # tokens, as docs/vllm.md advises without measuring
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
}


class VLLM(Peer):
    """`LLM` at its defaults, which compile the model, in this process and without its memory of earlier prompts."""

    batches = True

    def __init__(self, settings: Settings) -> None:
        os.environ.update(_ENVIRONMENT | {"OMP_NUM_THREADS": str(settings.threads)})
        import vllm

        installed = ("vllm-cpu", "vllm")
        self.packages = ("torch", next(name for name in installed if _is_installed(name)))
        options = {}
        if settings.method == "draft":
            drafted = {"method": "eagle", "model": str(_draft(settings)), "num_speculative_tokens": _DRAFTED}
            options["speculative_config"] = drafted
        self._params, self._stop = vllm.SamplingParams, list(settings.eos)
        self._model = vllm.LLM(
            settings.target,
            dtype="bfloat16",
            max_model_len=settings.max_length,
            max_num_seqs=settings.max_batch,
            kv_cache_memory_bytes=1 << 30,
            enable_prefix_caching=False,
            **options,
        )

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        params = self._params(
            temperature=0, max_tokens=max_new_tokens, stop_token_ids=self._stop, detokenize=False
        )
        return [list(one.outputs[0].token_ids) for one in self._run(prompts, params)]

    def perplexity(self, tokens: list[int]) -> float:
        (found,) = self._run([tokens], self._params(temperature=0, max_tokens=1, prompt_logprobs=0))
        rows = zip(found.prompt_logprobs[1:], tokens[1:], strict=True)
        return perplexity_of([row[token].logprob for row, token in rows])

    def _run(self, prompts: list[list[int]], params: object) -> list:
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        return self._model.generate(given, params, use_tqdm=False)


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _draft(settings: Settings) -> Path:
    return Path(settings.made) / f"{Path(settings.draft).name}-vllm"


def prepare(settings: Settings) -> None:
    """Write the draft for vLLM, from what the directory has now."""
    if settings.method == "draft":
        from clover.integrations.export import export

        export("vllm", settings.draft, _draft(settings), overwrite=True)


if __name__ == "__main__":
    serve(VLLM, prepare)
