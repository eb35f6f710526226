"""The key-value cache of a batch of texts. Only this package edits KV tensors."""

from clover.cache.kv import KVCache as KVCache
from clover.cache.rows import CachedRows as CachedRows
from clover.cache.rows import KVShape as KVShape
from clover.cache.whole import WholeCache as WholeCache
