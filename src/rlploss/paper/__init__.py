"""The paper's reproduction: what was published, every table and figure as a study, a verdict on
every claim.
"""
