"""Compute the loss: draw subsets, factor them, fit planes; a function, a module and a bank build on
that.
"""
