"""Train networks on any objective: the paper's Algorithms 2 and 3, the released loop, every
baseline.
"""
