"""Names and versions that the plugin, the export and the timing of vLLM share; importing this imports no vLLM."""

MADE_FOR = ((0, 29), (0, 34))  # releases of vLLM, from the first to before the second
TESTED = "0.32"
ARCHITECTURES = {  # per draft system, the name that vLLM knows it by; the driver wants it to begin with Eagle
    "clover1": "EagleClover1ForCausalLM",
    "clover2": "EagleClover2ForCausalLM",
    "recall": "EagleCloverRecallForCausalLM",
}
