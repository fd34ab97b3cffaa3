"""The mathematics of the loss, once: subsets, factors, planes, and the function, module and bank on
top of them.
"""
