"""The mathematics of the loss, once: subsets, factors, planes, and the function, module and bank on top of them."""

# Each file imports those before it only.
ORDER = ("subsets", "factors", "planes", "quadratic", "moments", "functional", "module", "bank", "mixup", "sampler")
