"""The frozen target's hidden states of training text: computed when they are needed, or once and stored on disk."""

from clover.data.features.compute import Features, compute_features, hidden_scale, require_finite
from clover.data.features.index import StoreConfig, has_begun, read_index
from clover.data.features.store import FeatureStore, check_store
from clover.data.features.write import write_features

__all__ = [
    "Features",
    "FeatureStore",
    "StoreConfig",
    "check_store",
    "require_finite",
    "compute_features",
    "has_begun",
    "hidden_scale",
    "read_index",
    "write_features",
]
