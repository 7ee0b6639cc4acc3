"""What quantizers share whose weights are `(code - zero) * scale`, with a scale and a zero point per group of columns.

No plugin of its own: `gptq` and `awq` are built from it.
"""
