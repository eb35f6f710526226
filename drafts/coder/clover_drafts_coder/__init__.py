"""Drafts for Qwen2.5-Coder, as data: each folder has safetensors, a config.json and a card."""
