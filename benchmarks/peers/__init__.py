"""Other engines beside ours on the same model, prompts and machine; see docs/peers.md."""
