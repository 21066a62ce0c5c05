"""Handwritten digits, learnt asynchronously by clients that hold only some of them."""
