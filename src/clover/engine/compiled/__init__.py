"""Decoding steps compiled in fixed shapes, behind the calls of `clover.engine.runner` (docs/development/compile.md)."""

from clover.engine.compiled.runner import CompiledRunner as CompiledRunner
