"""The recipe of the embedded default: corpus, tokenizer, target, text the target writes, drafts, model card."""
