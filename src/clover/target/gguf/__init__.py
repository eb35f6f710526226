"""Read targets from a GGUF file of llama.cpp. Every fact and tensor of it is used, or refused by its name."""

from clover.target.gguf.config import read_config as read_config
from clover.target.gguf.file import MAGIC as MAGIC
from clover.target.gguf.file import GgufFile as GgufFile
from clover.target.gguf.tokenizer import load_tokenizer as load_tokenizer
from clover.target.gguf.weights import load_weights as load_weights
