"""Conformance with real producers: their quantised files, their own decoded weights and logits, and loadmaster beside them.

A development tool that is not shipped: `make conformance`, see docs/conformance.md.
"""
