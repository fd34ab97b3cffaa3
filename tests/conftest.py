"""Shared set-up of the tests."""

import contextlib
import os

from hypothesis import settings

# The same examples in every run, so that a red build means a changed program; RLPLOSS_RANDOM=1
# explores.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("explore" if os.environ.get("RLPLOSS_RANDOM") else "fixed")

# torch's compiler imports setuptools, which refuses to follow a distutils that another package has
# imported before it.
with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401 - for its effect
