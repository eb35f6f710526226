"""Compiled steps of fixed shape, with the interface of `clover.engine.runner` (docs/development/compile.md)."""

from clover.engine.compiled.runner import CompiledRunner as CompiledRunner
