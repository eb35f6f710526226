"""Names and versions that the plugin, the export and the timing of vLLM share; importing this imports no vLLM."""

MADE_FOR = ((0, 29), (0, 34))  # supported releases of vLLM, without the second one
TESTED = "0.32"
ARCHITECTURES = {  # vLLM's name of each draft system; the driver requires that it begins with Eagle
    "clover1": "EagleClover1ForCausalLM",
    "clover2": "EagleClover2ForCausalLM",
    "recall": "EagleCloverRecallForCausalLM",
}
